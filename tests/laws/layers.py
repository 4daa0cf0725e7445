"""Blocks with one path: layers of every kind with their norms and activations."""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.laws.pieces import (
    CONVOLUTIONS,
    TRANSPOSED,
    activation,
    channels_along,
    keeping,
    layer,
    norm,
    normalised_weight,
    pointwise,
)
from tests.laws.programs import Chooser

Shape = tuple[int, ...]
Maker = Callable[[Shape, int, Chooser], nn.Module | None]


def plain(shape: Shape, width: int, pick: Chooser) -> nn.Module:
    """A layer and an activation, with a BatchNorm before, between, behind or nowhere."""
    n_in, space = shape[0], shape[1:]
    made = normalised_weight(layer(n_in, width, space, pick), pick)
    act = activation(width, pick)
    order = pick(("none", "none", "between", "between", "behind", "before", "both", "no act"))
    inside, behind = norm(width, len(space), pick), norm(width, len(space), pick)
    parts = {
        "none": [made, act],
        "between": [made, inside, act],
        "behind": [made, act, behind],
        "before": [norm(n_in, len(space), pick), made, act],
        "both": [made, inside, act, behind],
        "no act": [made],
    }
    return nn.Sequential(*parts[order])


def pair(shape: Shape, width: int, pick: Chooser) -> nn.Module:
    """Two layers with one activation between: what depth gates are for."""
    n_in, space = shape[0], shape[1:]
    n_mid = pick((2, 5, 1, 6))
    first = normalised_weight(keeping(n_in, n_mid, len(space), pick), pick)
    middle = [norm(n_mid, len(space), pick)] if pick((False, True)) else []
    between = [nn.Dropout(0.3)] if pick((False, False, True)) else []
    second = layer(n_mid, width, space, pick)
    return nn.Sequential(first, *middle, activation(n_mid, pick), *between, second)


def depthwise(shape: Shape, width: int, pick: Chooser) -> nn.Module | None:
    """A convolution with a group for each channel, one or two outputs each."""
    n_in, space = shape[0], shape[1:]
    if not space:
        return None
    n_out = n_in * pick((1, 1, 2))
    made = layer(n_in, n_out, space, pick, groups=n_in)
    middle = [norm(n_out, len(space), pick)] if pick((False, True)) else []
    tail = [activation(n_out, pick)] if pick((True, True, False)) else []
    return nn.Sequential(made, *middle, *tail)


def grouped(shape: Shape, width: int, pick: Chooser) -> nn.Module | None:
    """A convolution with two or three groups."""
    n_in, space = shape[0], shape[1:]
    groups = next((g for g in pick(((2, 3), (3, 2))) if n_in % g == 0), None)
    if not space or groups is None:
        return None
    n_out = groups * pick((1, 2, 3))
    made = layer(n_in, n_out, space, pick, groups=groups)
    return nn.Sequential(made, activation(n_out, pick))


def resnext(shape: Shape, width: int, pick: Chooser) -> nn.Module | None:
    """ResNeXt's block: of many groups of many channels whole ones go, and parts of each."""
    n_in, space = shape[0], shape[1:]
    if not space:
        return None
    groups, n_out = pick(((4, 16), (4, 16), (5, 20), (4, 20)))
    first = layer(n_in, pick((1, 1, 1, 2)) * groups * 4, space, pick)
    n_mid = first.out_channels
    act, norms = activation(n_mid, pick), pick(((), ("one",), ("one", "two")))
    made = CONVOLUTIONS[len(space)](n_mid, n_out, 1, groups=groups, bias=pick((True, False)))
    if pick((False, False, True)):
        made = TRANSPOSED[len(space)](n_mid, n_out, 2, groups=groups)
    parts = [norm(n_mid, len(space), pick)] * ("one" in norms) + [act] * pick((1, 1, 0)) + [made]
    parts += [norm(n_out, len(space), pick)] * ("two" in norms)
    parts += [activation(n_out, pick)] * pick((1, 1, 0))
    last = [pointwise(n_out, width, len(space), pick)] if n_out > 16 or pick((False, True)) else []
    return nn.Sequential(first, *parts, *last)


def transposed(shape: Shape, width: int, pick: Chooser) -> nn.Module | None:
    """A transposed convolution, with groups where they fit."""
    n_in, n_space = shape[0], len(shape) - 1
    if not n_space or max(shape[1:]) > 8:
        return None
    groups = pick((1, 1, 2, n_in))
    groups = groups if n_in % groups == 0 else 1
    n_out = groups * (1 + width % 3)
    kernel, stride, padding, extra = pick(((2, 1, 0, 0), (2, 2, 0, 0), (3, 1, 1, 0), (3, 2, 1, 1)))
    made = TRANSPOSED[n_space](
        n_in, n_out, kernel, stride=stride, padding=padding, output_padding=extra,
        groups=groups, bias=pick((True, False)),
    )  # fmt: skip
    return nn.Sequential(made, activation(n_out, pick))


class Functional(nn.Module):
    """A layer whose weight and bias are raw parameters."""

    def __init__(self, made: nn.Module, call: Callable[..., Tensor], act: nn.Module) -> None:
        super().__init__()
        self.weight = made.weight
        self.bias = made.bias
        self.call = call
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.call(x, self.weight, self.bias))


def functional(shape: Shape, width: int, pick: Chooser) -> nn.Module:
    """A layer called as a function."""
    n_space = len(shape) - 1
    made = CONVOLUTIONS[n_space](shape[0], width, *[1] * (n_space > 0), bias=pick((True, False)))
    call = (F.linear, F.conv1d, F.conv2d, F.conv3d)[n_space]
    return Functional(made, call, activation(width, pick))


class Repeated(nn.Module):
    """One layer and one activation, called several times."""

    def __init__(self, inner: nn.Module, act: nn.Module, n_times: int) -> None:
        super().__init__()
        self.inner, self.act, self.n_times = inner, act, n_times

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.n_times):
            x = self.act(self.inner(x))
        return x


def shared(shape: Shape, width: int, pick: Chooser) -> nn.Module:
    """A layer that reads what it wrote."""
    inner = keeping(shape[0], shape[0], len(shape) - 1, pick)
    return Repeated(inner, activation(shape[0], pick), pick((2, 3)))


def tied(shape: Shape, width: int, pick: Chooser) -> nn.Module:
    """Two layers that hold the same weight."""
    first = keeping(shape[0], shape[0], len(shape) - 1, pick)
    second = copy.deepcopy(first)
    second.weight = first.weight
    return nn.Sequential(first, activation(shape[0], pick), second, activation(shape[0], pick))


class Scaled(nn.Module):
    """A learnt number for each channel, or one for all."""

    def __init__(self, scale: Tensor, shift: Tensor | None) -> None:
        super().__init__()
        self.scale = nn.Parameter(scale)
        self.shift = None if shift is None else nn.Parameter(shift)

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale
        return x if self.shift is None else x + self.shift


def scaled(shape: Shape, width: int, pick: Chooser) -> nn.Module:
    """Raw parameters that scale, and perhaps shift."""
    n_space = len(shape) - 1
    values = channels_along(torch.ones(pick((shape[0], 1))), n_space)
    return Scaled(values, values.clone() if pick((False, True)) else None)


MAKERS: dict[str, Maker] = {
    "plain": plain,
    "pair": pair,
    "depthwise": depthwise,
    "grouped": grouped,
    "resnext": resnext,
    "transposed": transposed,
    "functional": functional,
    "shared": shared,
    "tied": tied,
    "scaled": scaled,
}
