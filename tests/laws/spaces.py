"""Blocks over space: pooling of every kind, resizing, padding, flattening."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.laws.layers import Maker, Shape
from tests.laws.pieces import Calls
from tests.laws.programs import Chooser


def pool(shape: Shape, width: int, pick: Chooser) -> nn.Module | None:
    """Pooling, as a module or as a function."""
    n_space = len(shape) - 1
    if not n_space or min(shape[1:]) < 3:
        return None
    made = pick((_modules, _modules, _functions))(n_space)
    return pick(made)()


def _modules(n_space: int) -> list[Callable[[], nn.Module]]:
    largest = getattr(nn, f"MaxPool{n_space}d")
    average = getattr(nn, f"AvgPool{n_space}d")
    power = getattr(nn, f"LPPool{n_space}d", nn.LPPool2d)
    to_average = getattr(nn, f"AdaptiveAvgPool{n_space}d")
    to_largest = getattr(nn, f"AdaptiveMaxPool{n_space}d")
    return [
        lambda: largest(2),
        lambda: largest(3, stride=1, padding=1),
        lambda: largest(2, ceil_mode=True),
        lambda: average(2),
        lambda: average(3, stride=2, padding=1),
        lambda: average(3, stride=1, padding=1, count_include_pad=False),
        lambda: average(2, ceil_mode=True),
        lambda: power(2, 2),
        lambda: to_average(1),
        lambda: to_average(3),
        lambda: to_largest(2),
    ]


def _functions(n_space: int) -> list[Callable[[], nn.Module]]:
    largest = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[n_space - 1]
    average = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[n_space - 1]
    to_average = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[n_space - 1]
    to_largest = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[n_space - 1]
    return [
        lambda: Calls(lambda x: largest(x, 2)),
        lambda: Calls(lambda x: largest(x, 3, 1, 1)),
        lambda: Calls(lambda x: average(x, 2, 1)),
        lambda: Calls(lambda x: average(x, 3, 2, 1)),
        lambda: Calls(lambda x: average(x, 3, stride=2, padding=1, count_include_pad=False)),
        lambda: Calls(lambda x: average(x, 2, ceil_mode=True)),
        lambda: Calls(lambda x: to_average(x, 2)),
        lambda: Calls(lambda x: to_largest(x, 1)),
    ]


def resize(shape: Shape, width: int, pick: Chooser) -> nn.Module | None:
    """Upsampling by neighbours or linearly."""
    n_space = len(shape) - 1
    if not n_space or max(shape[1:]) > 4:
        return None
    smooth = ("linear", "bilinear", "trilinear")[n_space - 1]
    mode = pick(("nearest", smooth))
    if pick((True, False)):
        return nn.Upsample(scale_factor=2, mode=mode)
    return Calls(lambda x: F.interpolate(x, scale_factor=2, mode=mode))


def padded(shape: Shape, width: int, pick: Chooser) -> nn.Module | None:
    """Padding by zeros, by a constant or by the image itself."""
    n_space = len(shape) - 1
    if not n_space or not 2 <= min(shape[1:]) <= max(shape[1:]) < 8:
        return None
    amounts = (1, 0) * n_space
    kind = pick(("zero", "constant", "reflect", "replicate", "module", "crop"))
    if kind == "module":
        return getattr(nn, f"ConstantPad{n_space}d")(1, pick((0.0, 0.7)))
    if kind == "crop":
        return Calls(lambda x: F.pad(x, (-1, 0) * n_space))
    if kind in ("reflect", "replicate"):
        return Calls(lambda x: F.pad(x, amounts, mode=kind))
    value = 0.0 if kind == "zero" else 0.6
    return Calls(lambda x: F.pad(x, amounts, value=value))


def flatten(shape: Shape, width: int, pick: Chooser) -> nn.Module | None:
    """The end of the image: a vector, by any of the ways that people write."""
    n_space = len(shape) - 1
    if not n_space:
        return None
    dims = tuple(range(2, 2 + n_space))
    last = -1 if n_space == 1 else (-1, -2) if n_space == 2 else (-1, -2, -3)
    n_features = torch.Size(shape).numel()
    forms: list[Callable[[Tensor], Tensor]] = [
        lambda x: x.flatten(1),
        lambda x: torch.flatten(x, 1),
        lambda x: x.contiguous().view(x.size(0), -1),
        lambda x: x.contiguous().view(-1, n_features),
        lambda x: x.reshape(x.shape[0], -1),
        lambda x: x.reshape(-1, n_features),
        lambda x: x.mean(dims),
        lambda x: torch.mean(x, dim=last),
        lambda x: x.amax(dims),
        lambda x: x.sum(dims),
        lambda x: x.mean(-1).flatten(1),
        lambda x: x.flatten(2).transpose(1, 2).flatten(1),
        lambda x: x.flatten(2).max(-1).values,
        lambda x: torch.logsumexp(x, dims),
    ]
    return pick([nn.Flatten, *[lambda form=form: Calls(form) for form in forms]])()


MAKERS: dict[str, Maker] = {
    "pool": pool,
    "resize": resize,
    "padded": padded,
    "flatten": flatten,
}
