"""Merge two Linear layers or two convolutions into one; fold BatchNorm."""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from archlearn.errors import SurgeryError

_CONVS: tuple[Any, ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@torch.no_grad()
def merge_linear(first: nn.Linear, second: nn.Linear) -> nn.Linear:
    """Return the single layer that computes `second(first(x))` for every `x`.

    Neither argument is changed.

    Raises:
        SurgeryError: If the layers do not fit one behind the other.
    """
    if first.out_features != second.in_features:
        raise SurgeryError(
            f"cannot merge: the first layer gives {first.out_features} features "
            f"but the second takes {second.in_features}"
        )
    has_bias = _has_bias(first) or _has_bias(second)
    merged = nn.Linear(first.in_features, second.out_features, bias=has_bias).to(second.weight)
    merged.weight.copy_(second.weight @ first.weight)
    if has_bias:
        merged.bias.copy_(bias_or_zero(second) + second.weight @ bias_or_zero(first))
    return _freeze_as_(merged, first, second)


@torch.no_grad()
def merge_convolutions(first: Any, second: Any) -> Any:
    """Return the single convolution that computes `second(first(x))` for every `x`.

    Neither argument is changed. Exact where the second does not pad, or where the first is a
    1×1 without bias and padding.

    Raises:
        SurgeryError: If the layers do not fit, or the result would differ at the border.
    """
    check_convolutions(first, second)
    stride = _times(first.stride, second.stride)
    steps = [s * d for s, d in zip(first.stride, second.dilation, strict=True)]
    dilation = [
        _common(d, k, e, q)
        for d, k, e, q in zip(
            first.dilation, first.kernel_size, steps, second.kernel_size, strict=True
        )
    ]
    kernel = _compose(first, second, steps, dilation)
    pads = any(second.padding)
    padding = _times(first.stride, second.padding) if pads else first.padding
    has_bias = first.bias is not None or second.bias is not None
    merged = type(second)(
        first.in_channels,
        second.out_channels,
        tuple(kernel.shape[2:]),
        stride=stride,
        padding=padding,
        dilation=tuple(dilation),
        bias=has_bias,
        padding_mode=second.padding_mode if pads else first.padding_mode,
    ).to(second.weight)
    merged.weight.copy_(kernel)
    if has_bias:
        summed = second.weight.flatten(2).sum(2)
        merged.bias.copy_(bias_or_zero(second) + summed @ bias_or_zero(first))
    return _freeze_as_(merged, first, second)


@torch.no_grad()
def fold_batch_norm(layer: Any, norm: Any) -> Any:
    """Return the single layer that computes `norm(layer(x))` in evaluation mode.

    Neither argument is changed.
    """
    if norm.running_mean is None:
        raise SurgeryError(
            "cannot fold a BatchNorm without running statistics: it depends on the batch; "
            "use track_running_stats=True"
        )
    folded = copy_layer(layer, with_bias=True)
    scale = torch.rsqrt(norm.running_var + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight
    shift = (bias_or_zero(layer) - norm.running_mean) * scale
    if norm.bias is not None:
        shift = shift + norm.bias
    folded.weight.copy_(layer.weight * scale.reshape(-1, *[1] * (layer.weight.dim() - 1)))
    folded.bias.copy_(shift)
    return _freeze_as_(folded, layer, norm)


def check_convolutions(first: Any, second: Any) -> None:
    """Raise if two convolutions cannot be merged exactly."""
    if not isinstance(first, _CONVS) or type(first).__name__ != type(second).__name__:
        raise SurgeryError(f"cannot merge a {type(first).__name__} into a {type(second).__name__}")
    if first.groups != 1 or second.groups != 1:
        raise SurgeryError("cannot merge a grouped convolution; learn width only there")
    if first.out_channels != second.in_channels:
        raise SurgeryError(
            f"cannot merge: the first layer gives {first.out_channels} channels "
            f"but the second takes {second.in_channels}"
        )
    if isinstance(first.padding, str) or isinstance(second.padding, str):
        raise SurgeryError("cannot merge: give the padding as numbers")
    is_point = all(k == 1 for k in first.kernel_size) and not any(first.padding)
    if any(second.padding) and not (is_point and first.bias is None):
        raise SurgeryError(
            f"cannot merge: the second convolution pads by {second.padding}, so the merged "
            "layer would differ at the border; use padding=0 there, or learn width only"
        )
    if any(second.padding) and second.padding_mode != "zeros":
        raise SurgeryError(f"cannot merge: the second convolution pads by {second.padding_mode}")


def bias_or_zero(layer: Any) -> Tensor:
    """Return a layer's bias, or zeros."""
    if layer.bias is not None:
        return layer.bias.detach()
    n_out = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
    return layer.weight.new_zeros(n_out)


def copy_layer(layer: Any, with_bias: bool) -> Any:
    """Return a layer with the same weight and, if asked for, a bias."""
    made = copy.deepcopy(layer)
    if with_bias:
        made.bias = nn.Parameter(bias_or_zero(layer).clone())
    return made


def _freeze_as_(merged: Any, *parts: nn.Module) -> Any:
    """Let a merged layer learn if any of its parts did."""
    return merged.requires_grad_(any(p.requires_grad for part in parts for p in part.parameters()))


def _compose(first: Any, second: Any, steps: list[int], dilation: list[int]) -> Tensor:
    sizes = [
        (d * (k - 1) + e * (q - 1)) // g + 1
        for d, k, e, q, g in zip(
            first.dilation, first.kernel_size, steps, second.kernel_size, dilation, strict=True
        )
    ]
    kernel = second.weight.new_zeros(second.out_channels, first.in_channels, *sizes)
    spread = [max(d // g, 1) for d, g in zip(first.dilation, dilation, strict=True)]
    for place in (
        torch.cartesian_prod(*[torch.arange(q) for q in second.kernel_size])
        .reshape(-1, len(steps))
        .tolist()
    ):
        part = torch.einsum("om,mi...->oi...", second.weight[(..., *place)], first.weight)
        starts = [p * e // g for p, e, g in zip(place, steps, dilation, strict=True)]
        region = tuple(
            slice(start, start + s * (k - 1) + 1, s)
            for start, s, k in zip(starts, spread, first.kernel_size, strict=True)
        )
        kernel[(..., *region)] += part
    return kernel


def _has_bias(layer: Any) -> bool:
    return layer.bias is not None


def _common(dilation: int, kernel: int, step: int, other: int) -> int:
    """Return the largest spacing on which both kernels lie."""
    parts = [dilation] * (kernel > 1) + [step] * (other > 1)
    return math.gcd(*parts) if parts else 1


def _times(first: Any, second: Any) -> tuple[int, ...]:
    return tuple(a * b for a, b in zip(first, second, strict=True))
