"""A pretrained network comes from a file of ours, Caffe's, or a `state_dict`; none is executed."""

import copy
import logging
import struct
import zipfile
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import nn

from archlearn.errors import FileError, InputError
from archlearn.models.caffe_import import read_caffemodel
from archlearn.models.weight_conventions import Pretrained, from_caffe, from_state, strip_prefixes
from archlearn.serialization import load
from archlearn.serialization.file_format import FORMAT, open_safetensors, read_tensor

logger = logging.getLogger(__name__)

_FEW_NAMES = 5
_PICKLED = (".pth", ".pt", ".bin", ".ckpt")
SUFFIXES = (".caffemodel", ".safetensors", *_PICKLED)


def read_pretrained(path: Path) -> Pretrained | nn.Module:
    """Return weights by name, or the network itself where `archlearn.save` wrote the file.

    Raises:
        FileError: If the file is missing, truncated, foreign, or would have to be executed.
    """
    if not path.is_file():
        raise FileError(f"cannot start from {path}: there is no such file")
    if path.suffix == ".caffemodel":
        return from_caffe(read_caffemodel(path))
    if path.suffix == ".safetensors":
        state = _read_safetensors(path)
        return load(path) if state is None else from_state(state)
    if path.suffix in _PICKLED:
        return from_state(_read_state_dict(path))
    raise FileError(f"cannot start from {path}: it must end in {', '.join(SUFFIXES)}")


def _read_safetensors(path: Path) -> dict[str, Any] | None:
    """Return the tensors of a safetensors file, or None if `archlearn.save` wrote it."""
    try:
        with open_safetensors(path) as handle:
            if (handle.metadata() or {}).get("format") == FORMAT:
                return None
            return {name: read_tensor(handle, name) for name in handle.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise FileError(
            f"cannot start from {path}: it is truncated, or not a safetensors file ({error})"
        ) from error
    except FileError as error:
        raise FileError(f"cannot start from {path}: {error}") from error


def _read_state_dict(path: Path) -> dict[str, Any]:
    _refuse_bomb(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # Torch's reader lets through whatever odd bytes make it stumble.
        raise FileError(
            f"cannot start from {path}: it is truncated, or holds more than tensors "
            f"({type(error).__name__}); write it anew with torch.save(net.state_dict(), path)"
        ) from error
    if not isinstance(found, dict):
        raise FileError(
            f"cannot start from {path}: it holds a {type(found).__name__}; write "
            "torch.save(net.state_dict(), path)"
        )
    return found


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


@torch.no_grad()
def with_weights(network: nn.Module, pretrained: Pretrained, n_outputs: int) -> nn.Module:
    """Return a copy of a network with the weights of another, all of which must fit.

    The last layer stays as it is, with a warning, where only its number of outputs differs. The
    numbers of batches that norms have seen may be missing, as in files of old versions of torch.

    Raises:
        InputError: If names or shapes differ elsewhere; the first ones are named.
    """
    made = copy.deepcopy(network)
    own, given = strip_prefixes(made.state_dict()), strip_prefixes(pretrained.state)
    missing = [name for name in own if name not in given and not _is_counter(name)]
    unexpected = [name for name in given if name not in own and not _is_counter(name)]
    if missing or unexpected:
        found = [("lacks", missing), ("has besides", unexpected)]
        told = " and ".join(f"{verb} {_list_names(names)}" for verb, names in found if names)
        raise InputError(
            f"the pretrained weights are of another network: the file {told} "
            f"({len(missing) + len(unexpected)} names differ); choose the model that they are of "
            "(--model caffenet for BVLC's, --model alexnet for torchvision's)"
        )
    fresh = _of_last_layer(own, given, n_outputs)
    for name, value in own.items():
        if name in fresh or name not in given:
            continue
        if value.shape != given[name].shape:
            raise InputError(
                f"the pretrained {name!r} has the shape {tuple(given[name].shape)}, but the "
                f"network's has {tuple(value.shape)}; choose the model and input size that it is of"
            )
        value.copy_(given[name])
    if fresh:
        logger.warning(
            "the pretrained network has other outputs than these data: %s start afresh",
            " and ".join(sorted(fresh)),
        )
    return made


def _is_counter(name: str) -> bool:
    return name.endswith("num_batches_tracked")


def _list_names(names: list[str]) -> str:
    few = ", ".join(repr(name) for name in names[:_FEW_NAMES])
    return few if len(names) <= _FEW_NAMES else f"{few} and {len(names) - _FEW_NAMES} more"


def _of_last_layer(own: Any, given: Any, n_outputs: int) -> set[str]:
    """Return the names of tensors that differ only in the number of outputs."""
    return {
        name
        for name in own.keys() & given.keys()
        if own[name].shape != given[name].shape
        and own[name].ndim == given[name].ndim
        and own[name].shape[0] == n_outputs
        and own[name].shape[1:] == given[name].shape[1:]
    }
