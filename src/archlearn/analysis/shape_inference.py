"""Shape and dtype of a call's result, without computing it.

Labels are followed beside a run of the network, of which only shapes and types matter wherever
no call is unknown. The costly calls of that run are left out: their results are empty tensors.
"""

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from archlearn.module_utils import find_module, has_hooks

_CONVOLUTIONS = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}
_POOLS = {
    nn.MaxPool1d: 1, nn.MaxPool2d: 2, nn.MaxPool3d: 3,
    nn.AvgPool1d: 1, nn.AvgPool2d: 2, nn.AvgPool3d: 3,
}  # fmt: skip
_NORMS = {nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d}
_ACTIVATIONS = {
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish,
    nn.Hardswish, nn.Hardtanh, nn.Tanh, nn.Softplus, nn.Sigmoid, nn.Hardsigmoid,
}  # fmt: skip
_FUNCTIONS = {F.relu, torch.relu, F.gelu, F.silu, F.hardswish}
_SUMS = {operator.add, operator.iadd, torch.add}


def infer_output(node: fx.Node, net: nn.Module, args: Any, kwargs: Any) -> Tensor | None:
    """Return a tensor like what a call would return, or None if it must be made.

    It must be made wherever it might fail, so that it fails as it would.
    """
    x = args[0] if args else None
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return None
    if node.op == "call_module" and len(args) == 1 and not kwargs:
        return _guess_module(find_module(net, str(node.target)), x)
    if node.op == "call_function" and node.target in _FUNCTIONS:
        return x
    if node.op == "call_function" and node.target in _SUMS and len(args) == 2 and not kwargs:
        return x if isinstance(args[1], Tensor) and _is_like(x, args[1]) else None
    return None


def _guess_module(module: nn.Module, x: Tensor) -> Tensor | None:
    if has_hooks(module):
        return None
    if type(module) in _ACTIVATIONS:
        return x
    return infer_layer(module, x) if module._parameters else infer_pool(module, x)


def is_pool(module: nn.Module) -> bool:
    """Return whether a module pools over windows, and does nothing else."""
    return type(module) in _POOLS


def infer_pool(module: Any, x: Tensor) -> Tensor | None:
    """Return a tensor like what a pool would return, or None if it must be called."""
    n_space = _POOLS.get(type(module))
    if n_space is None or not x.is_floating_point() or x.dim() not in (n_space + 1, n_space + 2):
        return None
    if module.ceil_mode or getattr(module, "return_indices", False) or x.numel() == 0:
        return None
    lines = [
        _each(getattr(module, name, 1), n_space)
        for name in ("padding", "dilation", "kernel_size", "stride")
    ]
    pads, holes, kernels, steps = lines
    if any(2 * pad > kernel for pad, kernel in zip(pads, kernels, strict=True)):
        return None
    sizes = _slide(x.shape[-n_space:], pads, holes, kernels, steps)
    return None if min(sizes) < 1 else x.new_empty(*x.shape[:-n_space], *sizes)


def infer_layer(module: nn.Module, x: Tensor) -> Tensor | None:
    """Return a tensor like what a layer would return, or None if it must be called."""
    kind: Any = type(module)
    weight = module._parameters.get("weight")
    if weight is None or weight.dtype is not x.dtype or weight.device != x.device:
        return None
    if kind in _NORMS:
        return x if _fits_norm(module, x) else None
    if isinstance(module, nn.Linear) and kind is nn.Linear:
        fits = x.dim() > 0 and x.shape[-1] == module.in_features
        return x.new_empty(*x.shape[:-1], module.out_features) if fits else None
    return _guess_convolution(module, x) if kind in _CONVOLUTIONS else None


def _fits_norm(module: Any, x: Tensor) -> bool:
    mean: Tensor | None = module.running_mean
    n_dims = {nn.BatchNorm1d: (2, 3), nn.BatchNorm2d: (4,), nn.BatchNorm3d: (5,)}[type(module)]
    if mean is None or mean.dtype is not x.dtype or mean.device != x.device:
        return False
    return x.dim() in n_dims and x.shape[1] == len(mean)


def _guess_convolution(module: Any, x: Tensor) -> Tensor | None:
    n_space = _CONVOLUTIONS[type(module)]
    if isinstance(module.padding, str) or module.padding_mode != "zeros":
        return None
    if x.dim() not in (n_space + 1, n_space + 2) or x.shape[-1 - n_space] != module.in_channels:
        return None
    sizes = _slide(
        x.shape[-n_space:], module.padding, module.dilation, module.kernel_size, module.stride
    )
    if min(sizes) < 1 or x.numel() == 0:
        return None
    return x.new_empty(*x.shape[: -1 - n_space], module.out_channels, *sizes)


def _slide(
    sizes: Sequence[int],
    pads: Sequence[int],
    holes: Sequence[int],
    kernels: Sequence[int],
    steps: Sequence[int],
) -> list[int]:
    """Return how many places a window has along each dimension."""
    return [
        (size + 2 * pad - hole * (kernel - 1) - 1) // step + 1
        for size, pad, hole, kernel, step in zip(sizes, pads, holes, kernels, steps, strict=True)
    ]


def _each(value: Any, n: int) -> list[int]:
    given = list(value) if isinstance(value, tuple | list) else [value]
    return given * (n // len(given))


def _is_like(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and one.dtype is two.dtype and one.device == two.device
