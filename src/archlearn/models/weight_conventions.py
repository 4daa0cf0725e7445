"""Weights go with the inputs they were learnt on: the order of colours, and what is taken off.

Caffe reads images as blue, green, red from 0 to 255 and takes a mean off each colour. This package
gives a network red, green, blue. So the first convolution's input channels are turned round when
Caffe's weights are read, and the mean is given in our order and in parts of 255, with a deviation
of 1/255: `(x / 255 - mean) / std` is then what Caffe computes. Where BVLC's CaffeNet was trained
with a mean image, its mean over the pixels is used, as Caffe's own examples do for deployment.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from archlearn.errors import FileError
from archlearn.models.caffe_import import Blobs

_CAFFE_MEAN = (122.67891434 / 255, 116.66876762 / 255, 104.00698793 / 255)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_STATE_KEYS = ("state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "model.")
_TORCHVISION_KEYS = ("features.0.weight", "classifier.6.bias")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pretrained:
    """Weights by name, and the normalisation of the inputs they were learnt on.

    Attributes:
        mean: By colour, red first, where bytes count as 0 to 1; None where it is not known.
        std: Likewise.
    """

    state: Mapping[str, Tensor]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


def from_caffe(blobs: Blobs) -> Pretrained:
    """Return the weights and biases of Caffe's layers as `layer.weight` and `layer.bias`.

    The first layer that reads three channels has them turned round, to red, green, blue. Leading
    dimensions of size one, which the old form has, go from biases and matrices.

    Raises:
        FileError: If a layer has something else than a weight and a bias.
    """
    state: dict[str, Tensor] = {}
    turned = False
    for layer, found in blobs.items():
        if len(found) not in (1, 2):
            raise FileError(
                f"the layer {layer!r} has {len(found)} blobs; only layers with a weight and a "
                "bias are read"
            )
        weight = _without_leading_ones(found[0])
        if not turned and weight.ndim == 4 and weight.shape[1] == 3:
            weight, turned = weight.flip(1), True
        state[f"{layer}.weight"] = weight.float()
        if len(found) == 2:
            state[f"{layer}.bias"] = found[1].reshape(-1).float()
    return Pretrained(state=state, mean=_CAFFE_MEAN, std=(1 / 255,) * 3)


def _without_leading_ones(blob: Tensor) -> Tensor:
    """Return a matrix where the old form has 1 x 1 x rows x columns."""
    return blob.reshape(blob.shape[2:]) if blob.ndim == 4 and blob.shape[:2] == (1, 1) else blob


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


def _find_state(whole: Mapping[str, object]) -> Mapping[str, object]:
    """Return the state_dict of a checkpoint, which may hold an optimiser and more besides."""
    for key in _STATE_KEYS:
        inner = whole.get(key)
        if isinstance(inner, Mapping):
            return cast(Mapping[str, object], inner)
    return whole


def from_state(state: Mapping[str, object]) -> Pretrained:
    """Return a `state_dict` with torchvision's normalisation where it is of its AlexNet.

    A checkpoint that holds it under "state_dict", "model_state_dict" or "model", as training
    scripts write it, will do, and names may have the prefixes of wrappers.

    Raises:
        FileError: If it holds anything but tensors, or tensors that are no plain numbers.
    """
    tensors: dict[str, Tensor] = {}
    for name, value in _find_state(state).items():
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
    tensors = strip_prefixes(tensors)
    if all(key in tensors for key in _TORCHVISION_KEYS):
        return Pretrained(state=tensors, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    return Pretrained(state=tensors)
