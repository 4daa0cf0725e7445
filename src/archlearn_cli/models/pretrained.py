"""Pretrained weights from files of torchvision, training scripts and this package."""

import copy
import logging
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any, cast

import safetensors
import torch
from torch import Tensor, nn

from archlearn.errors import FileError, InputError
from archlearn.serialization import load
from archlearn.serialization.file_format import FORMAT, open_safetensors, read_tensor

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_STATE_KEYS = ("state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "model.")


def strip_prefixes(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors without the prefixes that wrappers put in front of every name.

    "module." comes from DataParallel and DDP, "_orig_mod." from torch.compile (also of a part),
    "model." from LightningModules and training scripts.
    """
    stripped = {name.replace("_orig_mod.", ""): value for name, value in state.items()}
    if len(stripped) != len(state):
        return dict(state)
    for prefix in _PREFIXES * 2:  # DDP around a LightningModule, and the other way round
        if all(name.startswith(prefix) for name in stripped):
            stripped = {name.removeprefix(prefix): value for name, value in stripped.items()}
    return stripped


def from_state(state: Mapping[str, object]) -> dict[str, Tensor]:
    """Return the tensors of a `state_dict` without the prefixes of wrappers.

    A checkpoint that holds it under "state_dict", "model_state_dict" or "model", as training
    scripts write it, will do.
    """
    tensors: dict[str, Tensor] = {}
    inner = next((state[key] for key in _STATE_KEYS if isinstance(state.get(key), Mapping)), state)
    for name, value in cast(Mapping[str, object], inner).items():
        if not isinstance(value, torch.Tensor):
            raise FileError(
                f"{name!r} is a {type(value).__name__} and not a tensor; give a plain state_dict, "
                "as torch.save(net.state_dict(), path) writes it"
            )
        if value.layout is not torch.strided or value.is_complex() or value.is_quantized:
            raise FileError(
                f"{name!r} is {value.layout}, {value.dtype}, which no weight here can take; give "
                "a plain state_dict of dense real numbers"
            )
        tensors[str(name)] = value
    return strip_prefixes(tensors)


logger = logging.getLogger(__name__)
_LONGEST = 500
_PICKLED = (".pth", ".pt", ".bin", ".ckpt")
_SUFFIXES = (".safetensors", *_PICKLED)


def read_pretrained(path: Path) -> dict[str, Tensor] | nn.Module:
    """Return weights by name, or the network itself where `archlearn.save` wrote the file."""
    if path.is_dir():
        raise FileError(
            f"cannot start from {path}: it is a folder; name a file in it, as that of a run's "
            "network: compact.safetensors"
        )
    if not path.is_file():
        raise FileError(f"cannot start from {path}: there is no such file")
    if path.suffix == ".safetensors":
        state = _read_safetensors(path)
        return load(path) if state is None else from_state(state)
    if path.suffix in _PICKLED:
        return from_state(_read_state_dict(path))
    raise FileError(f"cannot start from {path}: it must end in {', '.join(_SUFFIXES)}")


def _read_safetensors(path: Path) -> dict[str, Any] | None:
    """Return the tensors of a safetensors file, or None if `archlearn.save` wrote it."""
    try:
        with open_safetensors(path) as handle:
            if (handle.metadata() or {}).get("format") == FORMAT:
                return None
            return {name: read_tensor(handle, name) for name in handle.keys()}  # noqa: SIM118
    except (FileError, safetensors.SafetensorError) as error:
        raise FileError(
            f"cannot start from {path}: it is truncated, or not a safetensors file of weights "
            f"({error})"
        ) from error


def _read_state_dict(path: Path) -> dict[str, Any]:
    _refuse_bomb(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # Torch's reader lets through whatever odd bytes make it stumble.
        raise FileError(
            f"cannot start from {path}: it is truncated, or holds more than tensors "
            f"({type(error).__name__}); write it anew with torch.save(net.state_dict(), path)"
        ) from error
    if not isinstance(state, dict):
        raise FileError(
            f"cannot start from {path}: it holds a {type(state).__name__}; write "
            "torch.save(net.state_dict(), path)"
        )
    return state


def _refuse_bomb(path: Path) -> None:
    """Refuse an archive that unpacks to more than its own size; torch.save compresses nothing."""
    try:
        with zipfile.ZipFile(path) as archive:
            n_bytes = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error):
        return  # of the older form, or for torch to refuse
    if n_bytes > path.stat().st_size:
        raise FileError(
            f"cannot start from {path}: its {path.stat().st_size:,} bytes unpack to {n_bytes:,}; "
            "write it anew with torch.save(net.state_dict(), path), which does not compress"
        )


def with_weights(network: nn.Module, state: Mapping[str, Tensor], n_outputs: int) -> nn.Module:
    """Return a copy of a network with the weights of another, all of which must fit.

    The last layer stays as it is, with a warning, where only its number of outputs differs.
    """
    copied = copy.deepcopy(network)
    target = copied.state_dict()
    names = dict(zip(strip_prefixes(target), target, strict=True))
    source = {names.get(n, n): value for n, value in strip_prefixes(state).items()}
    fresh = {  # of the last layer, which differs only in the number of outputs
        name: target[name]
        for name in sorted(target.keys() & source.keys())
        if target[name].shape != source[name].shape
        and target[name].shape[:1] == (n_outputs,)
        and target[name].shape[1:] == source[name].shape[1:]
    }
    try:
        copied.load_state_dict(source | fresh)
    except RuntimeError as error:
        reason = " ".join(str(error).split()).partition(": ")[2]
        raise InputError(
            f"the pretrained weights are of another network: {shorten(reason, _LONGEST)} "
            "(choose the model and input size that they are of, as --model alexnet for "
            "torchvision's AlexNet)"
        ) from error
    if fresh:
        logger.warning(
            "the pretrained network has other outputs than these data: %s start afresh",
            " and ".join(fresh),
        )
    return copied
