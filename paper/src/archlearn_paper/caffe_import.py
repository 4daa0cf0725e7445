"""Turn a `.caffemodel` file into a `state_dict`, without Caffe or protobuf.

    python -m archlearn_paper.caffe_import net.caffemodel net.safetensors

Only what is there is read: every length is held against the bytes that are left, and nothing
is allocated on a file's word alone. Fields are numbered as in Caffe's schema. Layers stand in field
2 of the network in the form that was used until 2014 (BVLC's published models), and in field 100
since then.

Caffe feeds blue, green, red from 0 to 255, less a mean of each colour. The first convolution is
rewritten for red, green, blue with ImageNet's normalisation (`--normalise imagenet`), exactly where
that layer has no padding. Where BVLC's CaffeNet was trained with a mean image, its mean over the
pixels is used, as Caffe's own examples do for deployment.
"""

import itertools
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from archlearn.errors import FileError
from archlearn.serialization.limits import Limit
from archlearn_cli.models.pretrained import IMAGENET_MEAN, IMAGENET_STD

# Numbers are packed into one field: real files of a few hundred layers have some 20,000.
MAX_FIELDS = Limit("MAX_FIELDS", 250_000, "fields", "archlearn_paper.caffe_import")
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
_FIXED = {FIXED64: 8, FIXED32: 4}


Field = tuple[int, int | memoryview]
"""Number of a field of a message, and its value, or the bytes of its content."""


def read_fields(message: memoryview, count: Iterator[int]) -> Iterator[Field]:
    """Yield the fields of a message in the order they are written in.

    `count` counts those of all messages inside one another, which are at most MAX_FIELDS.
    """
    place = 0
    while place < len(message):
        MAX_FIELDS.check(next(count))
        found, place = _read_field(message, place)
        yield found


def _read_field(message: memoryview, start: int) -> tuple[Field, int]:
    """Return the field that begins at a place, and the place behind it."""
    tag, place = read_varint(message, start)
    number, kind = tag >> 3, tag & 7
    if number == 0:
        raise FileError("it has a field with the number 0, which no message may have")
    if kind == VARINT:
        value, place = read_varint(message, place)
        return (number, value), place
    if kind == BYTES:
        length, place = read_varint(message, place)
    elif kind in _FIXED:
        length = _FIXED[kind]
    else:
        raise FileError(f"its field {number} is of the kind {kind}, which is not in use")
    if length > len(message) - place:
        raise FileError(
            f"its field {number} promises {length} bytes, but {len(message) - place} are left"
        )
    return (number, message[place : place + length]), place + length


def read_varint(message: memoryview, place: int) -> tuple[int, int]:
    """Return the number that begins at a place, and the place behind it."""
    value = 0
    for count in range(_LONGEST_VARINT):
        if place + count >= len(message):
            raise FileError("it ends inside a number")
        byte = message[place + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, place + count + 1
    raise FileError("it has a number of more than ten bytes")


def read_packed(content: memoryview, n_most: int) -> list[int]:
    """Return the numbers that are packed into a field."""
    numbers: list[int] = []
    place = 0
    while place < len(content):
        number, place = read_varint(content, place)
        numbers.append(number)
        if len(numbers) > n_most:
            raise FileError(f"a field has more than {n_most} numbers")
    return numbers


Blobs = dict[str, tuple[Tensor, ...]]


_FORMS = {2: (4, 6), 100: (1, 7)}
"""The numbers of a layer's name and of its blobs, by the field that the layer is in."""
_OLD_SIZES = (1, 2, 3, 4)
_SHAPE, _DATA = 7, {5: "<f4", 8: "<f8"}
_MOST_DIMENSIONS = 8


def read_caffemodel(path: Path) -> Blobs:
    """Return the blobs of every layer that has some, by the layer's name.

    Values are copied into memory of their own, in float32 or float64 as they are in the file. A
    blob of the old form has four dimensions, leading ones included.
    """
    try:
        content = memoryview(path.read_bytes())
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}; give a .caffemodel file") from error
    blobs: Blobs = {}
    count = itertools.count(1)
    try:
        for number, part in read_fields(content, count):
            if number in _FORMS and isinstance(part, memoryview):
                name, found = _read_layer(count, part, _FORMS[number])
                if name in blobs and found:
                    raise FileError(f"two layers have the name {name!r}")
                if found:
                    blobs[name] = found
    except FileError as error:
        raise FileError(
            f"{path} is no Caffe model, or truncated: {error}; fetch it again"
        ) from error
    if not blobs:
        raise FileError(
            f"{path} holds no layer with weights; give the .caffemodel, not a .prototxt or a "
            "solver's state"
        )
    return blobs


def _read_layer(
    count: Iterator[int], content: memoryview, form: tuple[int, int]
) -> tuple[str, tuple[Tensor, ...]]:
    name, blobs = "", []
    for number, part in read_fields(content, count):
        if number == form[0] and isinstance(part, memoryview):
            name = bytes(part).decode("utf-8", errors="replace")
        elif number == form[1] and isinstance(part, memoryview):
            blobs.append(_read_blob(count, part, name))
    return name, tuple(blobs)


def _read_blob(count: Iterator[int], content: memoryview, layer: str) -> Tensor:
    """Return the numbers of a blob; gradients and what else there may be are passed over."""
    shape: list[int] = []
    old_shape: dict[int, int] = {}
    pieces = [np.zeros(0, np.float32)]
    for number, part in read_fields(content, count):
        if isinstance(part, int):
            old_shape[number] = part
        elif number == _SHAPE:
            for inner, sizes in read_fields(part, count):
                if inner == 1:
                    one = isinstance(sizes, int)
                    shape += [sizes] if one else read_packed(sizes, _MOST_DIMENSIONS)
        elif number in _DATA:
            dtype = np.dtype(_DATA[number])
            if len(part) % dtype.itemsize:
                raise FileError(f"{len(part)} bytes are no whole number of values")
            pieces.append(np.frombuffer(part, dtype))
    shape = shape or [old_shape[n] for n in _OLD_SIZES if n in old_shape]
    values = np.concatenate(pieces)
    # Beside a size of 0 any other would pass, even one that no tensor can have.
    impossible = max(shape, default=0) > max(1, len(values))
    if impossible or len(shape) > _MOST_DIMENSIONS or math.prod(shape) != len(values):
        raise FileError(
            f"a blob of the layer {layer!r} has the shape {shape[:_MOST_DIMENSIONS]} but "
            f"{len(values)} values"
        )
    return torch.from_numpy(values).reshape(shape)


_MEAN = (122.67891434, 116.66876762, 104.00698793)
"""Of red, green and blue, from 0 to 255."""


def as_state_dict(blobs: Blobs) -> dict[str, Tensor]:
    """Return the weights and biases of Caffe's layers as `layer.weight` and `layer.bias`.

    Leading dimensions of size one, which the old form has, go from biases and matrices.
    """
    state: dict[str, Tensor] = {}
    first = ""
    for layer, found in blobs.items():
        if len(found) not in (1, 2):
            raise FileError(
                f"the layer {layer!r} has {len(found)} blobs; only layers with a weight and a "
                "bias are read"
            )
        weight = found[0]
        if weight.ndim == 4 and weight.shape[:2] == (1, 1):  # a matrix, in the old form
            weight = weight.reshape(weight.shape[2:])
        if not first and weight.ndim == 4 and weight.shape[1] == 3:
            first = layer
        state[f"{layer}.weight"] = weight.float()
        if len(found) == 2:
            state[f"{layer}.bias"] = found[1].reshape(-1).float()
    if first and f"{first}.bias" in state:
        weight = state[f"{first}.weight"].flip(1).double()
        mean, std, caffes = map(torch.tensor, (IMAGENET_MEAN, IMAGENET_STD, _MEAN))
        shift = torch.einsum("oihw,i->o", weight, (255 * mean - caffes).double())
        state[f"{first}.bias"] = (state[f"{first}.bias"] + shift).float()
        state[f"{first}.weight"] = (weight * (255 * std).reshape(3, 1, 1)).float()
    return state


if __name__ == "__main__":
    safetensors.torch.save_file(as_state_dict(read_caffemodel(Path(sys.argv[1]))), sys.argv[2])
