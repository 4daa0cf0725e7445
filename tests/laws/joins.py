"""Blocks with several paths: sums, concatenations, products, skips."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.laws.layers import Maker, Shape
from tests.laws.pieces import (
    CONVOLUTIONS,
    Calls,
    activation,
    keeping,
    norm,
    pointwise,
)
from tests.laws.programs import Chooser


class Sum(nn.Module):
    """A body and a shortcut, added."""

    def __init__(self, body: nn.Module, shortcut: nn.Module, act: nn.Module, order: str) -> None:
        super().__init__()
        self.body, self.shortcut, self.act, self.order = body, shortcut, act, order

    def forward(self, x: Tensor) -> Tensor:
        if self.order == "add":
            x = self.body(x) + self.shortcut(x)
        elif self.order == "add in place":
            kept = self.shortcut(x)
            x = self.body(x)
            x += kept
        else:
            x = torch.add(self.shortcut(x), self.body(x))
        return self.act(x)


def residual(shape: Shape, width: int, pick: Chooser) -> nn.Module:
    """A residual sum: identity, projection, or a shortcut padded with zero channels."""
    n_in, n_space = shape[0], len(shape) - 1
    kind = pick(("identity", "projection", "zero channels"))
    n_out = {"identity": n_in, "projection": width, "zero channels": n_in + width}[kind]
    n_mid = pick((3, 5, 2))
    inner = keeping(n_in, n_mid, n_space, pick)
    outer = keeping(n_mid, n_out, n_space, pick)
    norms = [norm(n_mid, n_space, pick)] if pick((False, True)) else []
    last = [norm(n_out, n_space, pick)] if pick((False, True)) else []
    early = [activation(n_in, pick)] if pick((False, False, True)) else []
    body = nn.Sequential(*early, inner, *norms, activation(n_mid, pick), outer, *last)
    shortcut = _shortcut(kind, n_in, n_out, n_space, pick)
    tail = activation(n_out, pick) if pick((True, True, False)) else nn.Identity()
    return Sum(body, shortcut, tail, pick(("add", "add in place", "torch")))


def _shortcut(kind: str, n_in: int, n_out: int, n_space: int, pick: Chooser) -> nn.Module:
    if kind == "identity":
        return nn.Identity()
    if kind == "projection":
        made = pointwise(n_in, n_out, n_space, pick)
        return nn.Sequential(made, norm(n_out, n_space, pick)) if pick((False, True)) else made
    before = (n_out - n_in) // pick((2, 1))
    amounts = (0, 0) * n_space + (before, n_out - n_in - before)
    return Calls(lambda x: F.pad(x, amounts))


class Concat(nn.Module):
    """Several paths side by side."""

    def __init__(self, *paths: nn.Module) -> None:
        super().__init__()
        self.paths = nn.ModuleList(paths)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([path(x) for path in self.paths], dim=1)


def concat(shape: Shape, width: int, pick: Chooser) -> nn.Module:
    """A dense block, a fire module, or one path twice."""
    n_in, n_space = shape[0], len(shape) - 1
    width = min(width, 3)
    left = nn.Sequential(keeping(n_in, width, n_space, pick), activation(width, pick))
    right = nn.Sequential(keeping(n_in, 2, n_space, pick), activation(2, pick))
    kinds = ("dense", "dense before", "fire", "twice", "norm")
    kind = pick(kinds if n_in < 8 else kinds[2:4])
    if kind == "norm":
        return nn.Sequential(Concat(left, right), norm(width + 2, n_space, pick), nn.ReLU())
    if kind == "twice":
        return Concat(left, left)
    paths = {"dense": (nn.Identity(), left), "dense before": (left, nn.Identity())}
    return Concat(*paths.get(kind, (left, right)))


class Excite(nn.Module):
    """Channels multiplied by gates of their own, squeezed out of the whole image."""

    def __init__(self, squeeze: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.squeeze, self.gate = squeeze, gate

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.squeeze(x))


def excite(shape: Shape, width: int, pick: Chooser) -> nn.Module:
    """Squeeze-and-excite over channels, or a gate for each place that all channels share."""
    n_in, n_space = shape[0], len(shape) - 1
    space = tuple(range(2, 2 + n_space))
    squash = pick((nn.Sigmoid, nn.Hardsigmoid, lambda: Calls(torch.sigmoid), nn.Tanh))
    first = keeping(n_in, n_in, n_space, pick)
    if pick((False, False, True)):
        gate = nn.Sequential(pointwise(n_in, 1, n_space, pick), squash())
        return nn.Sequential(first, activation(n_in, pick), Excite(nn.Identity(), gate))
    mean = Calls(lambda x: x.mean(space, keepdim=True)) if space else nn.Identity()
    gate = nn.Sequential(
        pointwise(n_in, 2, n_space, pick),
        activation(2, pick),
        pointwise(2, n_in, n_space, pick),
        squash(),
    )
    return nn.Sequential(first, activation(n_in, pick), Excite(mean, gate))


class Meeting(nn.Module):
    """Two paths that meet place by place."""

    def __init__(self, left: nn.Module, right: nn.Module, kind: str) -> None:
        super().__init__()
        self.left, self.right, self.kind = left, right, kind

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.left(x), self.right(x)
        if self.kind == "product":
            return left * right
        if self.kind == "difference":
            return left - 0.5 * right
        if self.kind == "largest":
            return torch.maximum(left, right)
        if self.kind == "quotient":
            return left / (1.5 + right.abs())
        return torch.where(left > 0, left, right)


def meeting(shape: Shape, width: int, pick: Chooser) -> nn.Module:
    """Two activated layers, multiplied, subtracted, divided or chosen between."""
    n_in, n_space = shape[0], len(shape) - 1
    left, right = (
        nn.Sequential(keeping(n_in, width, n_space, pick), activation(width, pick))
        for _ in range(2)
    )
    return Meeting(left, right, pick(("product", "difference", "largest", "quotient", "where")))


class Skip(nn.Module):
    """Down, through and up again, beside what stayed (a U-Net in small)."""

    def __init__(self, enter: nn.Module, inside: nn.Module, n_space: int) -> None:
        super().__init__()
        self.enter, self.inside = enter, inside
        self.down = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[n_space - 1](2, ceil_mode=True)
        self.n_space = n_space

    def forward(self, x: Tensor) -> Tensor:
        kept = self.enter(x)
        y = self.inside(self.down(kept))
        y = F.interpolate(y, size=kept.shape[2:], mode="nearest")
        return torch.cat((kept, y), 1)


def skip(shape: Shape, width: int, pick: Chooser) -> nn.Module | None:
    """A U-Net's skip."""
    n_in, n_space = shape[0], len(shape) - 1
    if not n_space or min(shape[1:]) < 2:
        return None
    enter = nn.Sequential(keeping(n_in, width, n_space, pick), activation(width, pick))
    inside = nn.Sequential(keeping(width, 2, n_space, pick), activation(2, pick))
    return Skip(enter, inside, n_space)


class Across(nn.Module):
    """ConvNeXt's block: channels last, Linear, activation, Linear, back, added."""

    def __init__(self, depth: nn.Module, inner: nn.Module, scale: nn.Parameter) -> None:
        super().__init__()
        self.depth, self.inner, self.scale = depth, inner, scale

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(self.depth(x).permute(0, 2, 3, 1)) * self.scale
        return x + y.permute(0, 3, 1, 2)


def across(shape: Shape, width: int, pick: Chooser) -> nn.Module | None:
    """Linear layers over the channels of an image."""
    if len(shape) != 3:
        return None
    n = shape[0]
    start = [nn.LayerNorm(n)] if pick((True, False)) else []
    inner = nn.Sequential(
        *start,
        nn.Linear(n, width),
        activation(1, pick),
        nn.Linear(width, n, bias=pick((True, False))),
    )
    depth = CONVOLUTIONS[2](n, n, 3, padding=1, groups=n)
    return Across(depth, inner, nn.Parameter(torch.ones(n)))


class Branches(nn.Module):
    """Residual branches: nested, side by side, one body twice, scaled and dropped at random."""

    def __init__(self, kind: str, norm: nn.Module, bodies: list[nn.Module], n: int) -> None:
        super().__init__()
        self.kind, self.norm, self.bodies = kind, norm, nn.ModuleList(bodies)
        self.scale = nn.Parameter(torch.ones(n))

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.bodies[0], self.bodies[-1]
        if self.kind == "nested":
            y = first(x)
            y = y + second(F.relu(y))
            return x + self.norm(y)
        if self.kind == "side by side":
            y = self.norm(x)
            return x + first(y) + second(y)
        if self.kind == "twice":
            x = x + first(self.norm(x))
            return x + first(x)
        if self.kind == "in place":
            y = F.relu(x + first(x), inplace=True)
            y += second(y)
            return F.relu(y, inplace=True) + x
        y = self.scale.reshape(-1, *[1] * (x.dim() - 2)) * first(self.norm(x))
        if self.training:
            y = y * (torch.rand(len(x), *[1] * (x.dim() - 1), dtype=x.dtype) < 0.9)
        return x + y


def branches(shape: Shape, width: int, pick: Chooser) -> nn.Module:
    """Residual branches of one or two layers."""
    n, n_space = shape[0], len(shape) - 1
    kind = pick(("scaled", "nested", "side by side", "twice", "in place"))
    norms = norm(n, n_space, pick) if pick((True, False)) else nn.Identity()
    bodies: list[nn.Module] = [
        nn.Sequential(
            keeping(n, width, n_space, pick),
            activation(width, pick),
            keeping(width, n, n_space, pick),
        )
        for _ in range(2)
    ]
    if pick((False, True)):
        bodies[1] = pointwise(n, n, n_space, pick)
    return Branches(kind, norms, bodies, n)


MAKERS: dict[str, Maker] = {
    "residual": residual,
    "branches": branches,
    "concat": concat,
    "excite": excite,
    "meeting": meeting,
    "skip": skip,
    "across": across,
}
