"""Turn a `.caffemodel` file into a `state_dict`, without Caffe.

    python -m archlearn_paper.caffe_import net.caffemodel net.safetensors

Layers stand in field 2 of the network in the form that was used until 2014 (BVLC's published
models), and in field 100 since then.

Caffe feeds blue, green, red from 0 to 255, less a mean of each colour. The first convolution is
rewritten for red, green, blue with ImageNet's normalisation (`--normalise imagenet`), exactly where
that layer has no padding. Where BVLC's CaffeNet was trained with a mean image, its mean over the
pixels is used, as Caffe's own examples do for deployment.
"""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
from torch import Tensor

from archlearn.errors import FileError
from archlearn_cli.models.pretrained import IMAGENET_MEAN, IMAGENET_STD

_FIELDS = {
    "Shape": "dim 1 INT64",
    "Blob": "num 1 INT64, channels 2 INT64, height 3 INT64, width 4 INT64, data 5 FLOAT, "
    "shape 7 Shape, double_data 8 DOUBLE",
    "OldLayer": "name 4 STRING, blobs 6 Blob",
    "Layer": "name 1 STRING, blobs 7 Blob",
    "Net": "layers 2 OldLayer, layer 100 Layer",
}
"""The part of Caffe's schema that is read; every field may be repeated."""
Blobs = dict[str, tuple[Tensor, ...]]


def _make_reader() -> Any:
    """Return the class of a whole network."""
    file: Any = descriptor_pb2.FileDescriptorProto(name="caffe.proto", package="caffe")
    for name, fields in _FIELDS.items():
        kind = file.message_type.add(name=name)
        for field, number, of in (entry.split() for entry in fields.split(", ")):
            added = kind.field.add(name=field, number=int(number), label=3)
            if of in _FIELDS:
                added.type_name = f".caffe.{of}"
            added.type = getattr(added, f"TYPE_{'MESSAGE' if of in _FIELDS else of}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("caffe.Net"))


def read_caffemodel(path: Path) -> Blobs:
    """Return the blobs of every layer that has some, by the layer's name.

    A blob of the old form has four dimensions, leading ones included.
    """
    net, blobs = _make_reader()(), Blobs()
    try:
        net.ParseFromString(path.read_bytes())
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}; give a .caffemodel file") from error
    except (message.DecodeError, UnicodeDecodeError) as error:
        raise FileError(
            f"{path} is no Caffe model, or truncated: {error}; fetch it again"
        ) from error
    for layer in (*net.layers, *net.layer):
        name = "".join(layer.name)
        if name in blobs and layer.blobs:
            raise FileError(f"{path} is no Caffe model: two layers have the name {name!r}")
        if layer.blobs:
            blobs[name] = tuple(_read_blob(blob, name, path) for blob in layer.blobs)
    if not blobs:
        raise FileError(
            f"{path} holds no layer with weights; give the .caffemodel, not a .prototxt or a "
            "solver's state"
        )
    return blobs


def _read_blob(blob: Any, layer: str, path: Path) -> Tensor:
    values = np.array(blob.data, np.float32) if blob.data else np.array(blob.double_data)
    old = [*blob.num, *blob.channels, *blob.height, *blob.width]
    shape = [size for shape in blob.shape for size in shape.dim] or old
    if min(shape, default=1) < 0 or len(shape) > 8 or not 0 < len(values) == math.prod(shape):
        raise FileError(
            f"{path} is no Caffe model, or truncated: a blob of the layer {layer!r} has the shape "
            f"{shape[:8]} but {len(values)} values; fetch it again"
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
    for layer, tensors in blobs.items():
        if len(tensors) not in (1, 2):
            raise FileError(
                f"the layer {layer!r} has {len(tensors)} blobs; only layers with a weight and a "
                "bias are read"
            )
        weight = tensors[0]
        if weight.ndim == 4 and weight.shape[:2] == (1, 1):  # a matrix, in the old form
            weight = weight.reshape(weight.shape[2:])
        if not first and weight.ndim == 4 and weight.shape[1] == 3:
            first = layer
        state[f"{layer}.weight"] = weight.float()
        if len(tensors) == 2:
            state[f"{layer}.bias"] = tensors[1].reshape(-1).float()
    if first and f"{first}.bias" in state:
        weight = state[f"{first}.weight"].flip(1).double()
        mean, std, caffes = map(torch.tensor, (IMAGENET_MEAN, IMAGENET_STD, _MEAN))
        shift = torch.einsum("oihw,i->o", weight, (255 * mean - caffes).double())
        state[f"{first}.bias"] = (state[f"{first}.bias"] + shift).float()
        state[f"{first}.weight"] = (weight * (255 * std).reshape(3, 1, 1)).float()
    return state


if __name__ == "__main__":
    safetensors.torch.save_file(as_state_dict(read_caffemodel(Path(sys.argv[1]))), sys.argv[2])
