"""Checkpoints are safetensors files, written whole, checked by a digest, never pickled.

The one before the last is kept. A torn file is found by its digest and passed over.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor

from archlearn.data.file_cache import write_whole
from archlearn.errors import CheckpointError, FileError
from archlearn.serialization.file_format import open_safetensors, read_tensor

logger = logging.getLogger(__name__)

LATEST = "checkpoint.safetensors"
PREVIOUS = "checkpoint.previous.safetensors"
_FORMAT = "archlearn-checkpoint-1"
MAX_POSITION_LENGTH = 2**21  # characters; most of it is the command, for which systems have limits
_KINDS: dict[Any, tuple[type, ...]] = {int: (int,), float: (float, int), str: (str,)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Where a run stands.

    Attributes:
        epoch: Epochs that are finished.
        step: Steps that are finished, over all epochs.
        loss_sum: Sum of the losses of the steps of the unfinished epoch.
        penalty_sum: Sum of their penalties.
        seconds: Time spent so far, all sittings together.
        resumed: How often the run was taken up again.
        data: Fingerprint of the data that are learnt from.
        command: What started the run, as it was typed.
    """

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    penalty_sum: float = 0.0
    seconds: float = 0.0
    resumed: int = 0
    data: str = ""
    command: str = ""


def write_checkpoint(folder: Path, position: Position, tensors: Mapping[str, Tensor]) -> None:
    """Write a checkpoint; until it is whole, the last one stays where it is."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {
        "format": _FORMAT,
        "position": json.dumps(asdict(position)),
        "digest": _digest(plain, asdict(position)),
    }
    content = save(plain, metadata=metadata)
    latest, incoming = folder / LATEST, folder / f".{LATEST}.incoming"
    write_whole(incoming, content)
    if latest.exists():
        os.replace(latest, folder / PREVIOUS)
    os.replace(incoming, latest)


def read_checkpoint(folder: Path) -> tuple[Position, dict[str, Tensor]] | None:
    """Return the newest whole checkpoint of a run, or None if it has none yet.

    Raises:
        CheckpointError: If there are checkpoints and none of them is whole.
    """
    troubles: list[str] = []
    for name in (LATEST, PREVIOUS):
        if not (folder / name).exists():
            continue
        try:
            return _read_one(folder / name)
        except CheckpointError as error:
            logger.warning("%s; trying the one before", error)
            troubles.append(str(error))
    if troubles:
        raise CheckpointError("; ".join(troubles) + "; start the run anew in another folder")
    return None


def is_checkpoint(path: Path) -> bool:
    """Return whether a file is a checkpoint of a run, of whatever version."""
    try:
        with open_safetensors(path) as file:
            return (file.metadata() or {}).get("format", "").startswith("archlearn-checkpoint")
    except (SafetensorError, FileError, OSError):
        return False


def _read_one(path: Path) -> tuple[Position, dict[str, Tensor]]:
    try:
        with open_safetensors(path) as file:
            metadata = file.metadata() or {}
            tensors = {name: read_tensor(file, name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, FileError, OSError) as error:
        raise CheckpointError(f"the checkpoint {path} is torn ({error})") from error
    if metadata.get("format") != _FORMAT:
        raise CheckpointError(f"{path} is no checkpoint of this version of archlearn")
    written = metadata.get("position", "")
    position = _parse_position(written)
    if position is None:
        raise CheckpointError(f"the checkpoint {path} is torn (it has no position)")
    # Two texts can stand for one number, so the text itself must be as it was written.
    if metadata.get("digest") != _digest(tensors, position) or json.dumps(position) != written:
        raise CheckpointError(f"the checkpoint {path} is torn (its digest does not fit)")
    return Position(**position), tensors


def _parse_position(text: str) -> dict[str, Any] | None:
    """Return the fields of a position, or None if the text does not hold just those."""
    try:
        found = json.loads(text) if len(text) <= MAX_POSITION_LENGTH else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    position = cast("dict[str, Any]", found)
    kinds = {item.name: _KINDS[item.type] for item in fields(Position)}
    fits = all(type(value) in kinds.get(name, ()) for name, value in position.items())
    counts = [value for value in position.values() if isinstance(value, int)]
    return position if fits and all(0 <= count < 2**63 for count in counts) else None


def _digest(tensors: Mapping[str, Tensor], position: Mapping[str, object]) -> str:
    """Return the sha256 of the position and of every tensor's name, shape, type and bytes."""
    digest = hashlib.sha256(json.dumps(position, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()
