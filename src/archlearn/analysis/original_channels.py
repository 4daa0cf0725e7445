"""`kept_channels`: which of the original channels each tensor of a compact model holds."""

import json
import re
from typing import cast

from torch import nn

from archlearn.errors import FileError, InputError
from archlearn.module_utils import first_names, list_tensors

KeptChannels = dict[str, dict[int, tuple[int, ...]]]
"""Original indices, by the name of a tensor and by its dimension."""

KEPT = "_archlearn_kept"

_HEXADECIMAL = re.compile("[0-9a-f]+")


def kept_channels(model: nn.Module) -> KeptChannels:
    """Return for each parameter and buffer of a compact model the original indices it holds.

    `kept_channels(small)["conv1.weight"][0]` are the output channels of `conv1` that stayed, in
    order, and `[1]` its input channels; a dimension that lost nothing has all its indices. A layer
    that others were merged into has its own inputs and the outputs of the last of them. Where a
    model was compacted several times, indices are those of the first. Files keep this.

    Args:
        model: A model from `compact`, or from `load` of a file that such a model was saved in.

    Raises:
        InputError: If the model is not compact. Of a gated one, `plan(model).kept()` says what will
            stay.
    """
    kept: KeptChannels | None = getattr(model, KEPT, None)
    if kept is None:
        raise InputError(
            f"{type(model).__name__} does not know which channels it kept: it does not come from "
            "compact, or from a file that an earlier version wrote; of a model with gates, "
            "plan(model).kept() says what will stay"
        )
    first = first_names(model)
    return {
        name: {
            dim: kept.get(first.get(name, name), {}).get(dim, tuple(range(size)))
            for dim, size in enumerate(tensor.shape)
        }
        for name, tensor in list_tensors(model)
    }


def write_kept(model: nn.Module) -> str | None:
    """Return what a compact model kept as JSON, or None if it does not know.

    Indices are written as the bits of a number in hexadecimal: a list would make the description of
    a large model longer than what is read.
    """
    kept: KeptChannels | None = getattr(model, KEPT, None)
    if kept is None:
        return None
    present = {name for name, _ in list_tensors(model)}
    bits: dict[str, dict[str, str]] = {}
    for name in kept.keys() & present:
        bits[name] = {}
        for dim, indices in kept[name].items():
            digits = bytearray(b"0" * (max(indices, default=0) + 1))
            for index in indices:
                digits[-1 - index] = ord("1")
            bits[name][str(dim)] = f"{int(digits, 2):x}"
    return json.dumps(bits, sort_keys=True, separators=(",", ":"))


def read_kept(data: object, model: nn.Module) -> KeptChannels:
    """Return what `write_kept` wrote, as read from JSON."""
    sizes = {
        (name, str(dim)): size
        for name, tensor in list_tensors(model)
        if tensor.numel()  # so that there are no more indices than numbers in the file
        for dim, size in enumerate(tensor.shape)
    }
    kept: KeptChannels = {}
    for name, by_dim in _items(data):
        for dim, text in _items(by_dim):
            is_number = isinstance(text, str) and _HEXADECIMAL.fullmatch(text)
            bits = f"{int(cast(str, text), 16):b}" if is_number else ""
            if not is_number or bits.count("1") != sizes.get((name, dim)):
                raise FileError("its kept channels do not fit its tensors")
            indices = tuple(i for i, bit in enumerate(reversed(bits)) if bit == "1")
            kept.setdefault(name, {})[int(dim)] = indices
    return kept


def _items(data: object) -> list[tuple[str, object]]:
    if not isinstance(data, dict):
        raise FileError("its kept channels are not told by tensor and dimension")
    return list(cast(dict[str, object], data).items())
