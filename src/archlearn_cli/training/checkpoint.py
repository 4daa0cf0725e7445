"""Checkpoints: model, optimisers, random state, position in the data.

The one before the last is kept. A torn file is found by its digest and passed over.
"""

import hashlib
import json
import logging
import os
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor, nn

from archlearn.errors import CheckpointError, FileError, first_line
from archlearn.gating.cost_counter import count_parameters
from archlearn.gating.gate_container import CONTAINER
from archlearn.optim.shrinking import shrink_
from archlearn.serialization.file_format import open_safetensors, read_tensor
from archlearn.serialization.schema import parse_json, read_entry
from archlearn_cli.data.file_cache import write_atomically
from archlearn_cli.training.train_step import Optimizers

_MASK = (1 << 63) - 1


def seed_everything(seed: int, rank: int) -> None:
    """Start torch, numpy and Python from a seed, each process from its own."""
    mixed = (seed * 1_000_003 + rank) & _MASK
    torch.manual_seed(mixed)
    np.random.seed(mixed % (1 << 32))
    random.seed(mixed)


def order_of_epoch(n_examples: int, seed: int, epoch: int) -> Tensor:
    """Return the order in which an epoch takes the examples: a function of seed and epoch."""
    generator = torch.Generator().manual_seed((seed * 7_368_787 + epoch * 104_729) & _MASK)
    return torch.randperm(n_examples, generator=generator)


def capture_random_states() -> dict[str, Tensor]:
    """Return the states of every generator a training step may draw from."""
    _, python_state, gauss = random.getstate()
    numpy_state = np.random.get_state(legacy=False)
    inner = numpy_state["state"]
    rest = [inner["pos"], numpy_state["has_gauss"], numpy_state["gauss"]]
    states = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor(python_state, dtype=torch.int64),
        "python_gauss": torch.tensor([gauss or 0.0, gauss is not None], dtype=torch.float64),
        "numpy": torch.from_numpy(inner["key"].astype(np.int64)),
        "numpy_rest": torch.tensor(rest, dtype=torch.float64),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random_states(states: dict[str, Tensor]) -> None:
    """Set every generator to a captured state."""
    torch.set_rng_state(states["torch"])
    gauss, has_gauss = states["python_gauss"].tolist()
    python_state = tuple(states["python"].tolist())
    random.setstate((3, python_state, gauss if has_gauss else None))
    position, numpy_gauss, cached = states["numpy_rest"].tolist()
    keys = states["numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, int(position), int(numpy_gauss), cached))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


MODEL, OPTIMIZER, RANDOM = "model/", "optimiser/", "random/"


def collect_tensors(model: nn.Module, optimizers: Optimizers) -> dict[str, Tensor]:
    """Return all tensors of a model and its optimiser by name; nothing is copied."""
    tensors = {f"{MODEL}{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for optimizer in optimizers:
            for key, value in optimizer.state.get(parameter, {}).items():
                if value is not None:
                    tensors[f"{OPTIMIZER}{name}/{key}"] = torch.as_tensor(value)
    return tensors


@torch.no_grad()
def restore_tensors_(
    tensors: Mapping[str, Tensor], model: nn.Module, optimizers: Optimizers
) -> bool:
    """Set a model and its optimiser to what a checkpoint holds; return whether the model shrank.

    Values are copied into the tensors that are there, so their layout in memory stays: sums
    in another order would differ in the last bit.
    """
    kept = {name.removeprefix(MODEL): t for name, t in tensors.items() if name.startswith(MODEL)}
    n_before = count_parameters(model)
    if any(f"{CONTAINER}.kept." in name for name in kept):
        shrink_(model, *optimizers, like=kept)
    current = model.state_dict()
    if current.keys() != kept.keys() or any(current[n].shape != kept[n].shape for n in current):
        raise CheckpointError(
            "the checkpoint is of another model: names or shapes of tensors differ; "
            "resume with the code the run was started with"
        )
    for name, value in current.items():
        value.copy_(kept[name])
    _restore_optimizers_(tensors, model, optimizers)
    return count_parameters(model) < n_before


def _restore_optimizers_(
    tensors: Mapping[str, Tensor], model: nn.Module, optimizers: Optimizers
) -> None:
    owners = {p: o for o in optimizers for g in o.param_groups for p in g["params"]}
    for name, parameter in model.named_parameters() if optimizers else ():
        prefix = f"{OPTIMIZER}{name}/"
        for key, value in tensors.items():
            if not key.startswith(prefix) or "/" in key.removeprefix(prefix):
                continue
            if parameter not in owners:
                raise CheckpointError(
                    "the checkpoint holds the state of a parameter that is not learnt now"
                )
            if value.numel() != 1 and value.shape != parameter.shape:
                raise CheckpointError(
                    f"the checkpoint holds {key!r} of shape {tuple(value.shape)} for a "
                    f"parameter of shape {tuple(parameter.shape)}; start the run anew in "
                    "another folder"
                )
            state, label = owners[parameter].state[parameter], key.removeprefix(prefix)
            if isinstance(state.get(label), Tensor):  # which a captured step may hold
                state[label].copy_(value)
            elif value.shape == parameter.shape:  # laid out in memory as its parameter
                empty = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False)
                state[label] = empty.copy_(value)
            else:  # single numbers stay on the CPU
                state[label] = value.clone()


def restore_random(tensors: Mapping[str, Tensor], rank: int) -> None:
    """Set the generators of this process to what the checkpoint holds for its rank."""
    prefix = f"{RANDOM}{rank}/"
    states = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    if not states:
        return
    try:
        restore_random_states(states)
    except (KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the checkpoint's random states cannot be restored ({first_line(error)}); start the "
            "run anew in another folder"
        ) from error


logger = logging.getLogger(__name__)
LATEST = "checkpoint.safetensors"
PREVIOUS = "checkpoint.previous.safetensors"
_FORMAT = "archlearn-checkpoint-1"
MAX_POSITION_LENGTH = 2**21  # characters; most of it is the command, for which systems have limits


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Where a run stands: epochs and steps that are finished, and how often it was resumed.

    Attributes:
        loss_sum: Sum of the losses of the steps of the unfinished epoch; so of their penalties.
        seconds: Time spent so far, all sittings together.
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
    write_atomically(incoming, content)
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
    try:
        fields: Any = parse_json(written) if len(written) <= MAX_POSITION_LENGTH else None
        position: Position = read_entry(asdict(Position()) | fields, Position)
    except (FileError, RecursionError, TypeError) as error:
        raise CheckpointError(f"the checkpoint {path} is torn (it has no position)") from error
    # Two texts can stand for one number, so the text itself must be as it was written.
    if metadata.get("digest") != _digest(tensors, fields) or json.dumps(fields) != written:
        raise CheckpointError(f"the checkpoint {path} is torn (its digest does not fit)")
    return position, tensors


def _digest(tensors: Mapping[str, Tensor], position: Mapping[str, object]) -> str:
    """Return the sha256 of the position and of every tensor's name, shape, type and bytes."""
    digest = hashlib.sha256(json.dumps(position, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()
