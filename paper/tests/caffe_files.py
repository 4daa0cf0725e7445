"""Writes real `.caffemodel` files, old form and new, byte by byte."""

import struct
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

Form = Literal["old", "new"]
_FIELDS = {"old": (2, 4, 6), "new": (100, 1, 7)}


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def content(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def blob(values: Tensor, form: Form, *, packed: bool = True) -> bytes:
    """One blob: four sizes and leading ones in the old form, a shape in the new one."""
    if form == "old":
        sizes = [1] * (4 - values.ndim) + list(values.shape)
        head = b"".join(number(place + 1, size) for place, size in enumerate(sizes))
    else:
        head = content(7, content(1, b"".join(varint(size) for size in values.shape)))
    flat = values.reshape(-1).tolist()
    if values.dtype == torch.float64:
        return head + content(8, struct.pack(f"<{len(flat)}d", *flat))
    if packed:
        return head + content(5, struct.pack(f"<{len(flat)}f", *flat))
    tag = varint(5 << 3 | 5)
    return head + b"".join(tag + struct.pack("<f", value) for value in flat)


def layer(name: str, blobs: Sequence[bytes], form: Form) -> bytes:
    """One layer, with its kind, a bottom and learning rates among the fields."""
    outer, name_field, blobs_field = _FIELDS[form]
    kind = number(5, 4) if form == "old" else content(2, b"Convolution")
    rates = b"".join(varint(7 << 3 | 5) + struct.pack("<f", 1.0) for _ in blobs)
    inner = content(name_field, name.encode()) + kind + content(3, b"data")
    inner += b"".join(content(blobs_field, each) for each in blobs)
    return content(outer, inner + (rates if form == "old" else b""))


def network(layers: Mapping[str, Sequence[Tensor]], form: Form, *, packed: bool = True) -> bytes:
    """A whole file: a name, a layer without weights, and the layers."""
    body = content(1, b"CaffeNet") + layer("relu1", [], form)
    for name, tensors in layers.items():
        body += layer(name, [blob(each, form, packed=packed) for each in tensors], form)
    return body


def as_caffe_has_them(state: Mapping[str, Tensor], first: str) -> dict[str, list[Tensor]]:
    """Weights and biases by layer, the first layer's channels in the order blue, green, red."""
    layers: dict[str, list[Tensor]] = {}
    for name, value in state.items():
        owner = name.rpartition(".")[0]
        turned = owner == first and value.ndim == 4
        layers.setdefault(owner, []).append(value.flip(1) if turned else value)
    return layers
