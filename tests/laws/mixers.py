"""Blocks that take places for tokens: MLPs over channels or places, and attention."""

import math
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.laws.layers import Maker, Shape
from tests.laws.pieces import Calls, activation, keeping
from tests.laws.programs import Chooser


def tokens(shape: Shape, width: int, pick: Chooser) -> nn.Module | None:
    """Places become a line, and a Linear works over channels or over places."""
    if len(shape) != 3:
        return None
    n_places = shape[1] * shape[2]
    if pick((True, False)):
        steps = [Calls(lambda x: x.flatten(2)), nn.Linear(n_places, width), nn.ReLU()]
        return nn.Sequential(*steps)
    mlp = nn.Sequential(nn.Linear(shape[0], width), nn.GELU(), nn.Linear(width, shape[0]))
    turn = pick((lambda x: x.flatten(2).transpose(1, 2), lambda x: x.flatten(2).permute(0, 2, 1)))
    start = [nn.LayerNorm(shape[0])] if pick((False, True)) else []
    return nn.Sequential(Calls(turn), *start, mlp, Calls(lambda x: x.transpose(1, 2)))


class Mixer(nn.Module):
    """An MLP over places, with channels beside, and one over channels; each added or not."""

    def __init__(self, n: int, n_places: int, width: int, pick: Chooser) -> None:
        super().__init__()
        self.norm = pick((nn.LayerNorm, nn.RMSNorm, lambda _: nn.Identity()))(n)
        self.over_places = pick((_mlp, _gated_mlp, _pointwise_mlp))(n_places, width, pick)
        self.mlp = nn.Sequential(nn.Linear(n, width), activation(1, pick), nn.Linear(width, n))
        self.way = pick(("added", "scaled", "behind", "alone", "multiplied"))
        self.scale = nn.Parameter(torch.ones(n if self.way == "scaled" else 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        y = self.over_places(self.norm(x).transpose(1, 2)).transpose(1, 2) * self.scale
        if self.way in ("added", "scaled"):
            x = x + y
        elif self.way == "behind":
            x = y + x
        else:
            x = y if self.way == "alone" else x * y
        return (x + self.mlp(x)).transpose(1, 2)


def _mlp(n: int, width: int, pick: Chooser) -> nn.Module:
    return nn.Sequential(nn.Linear(n, width), activation(1, pick), nn.Linear(width, n))


def _gated_mlp(n: int, width: int, pick: Chooser) -> nn.Module:
    gate = pick((lambda x: torch.mul(*x.chunk(2, -1)), lambda x: F.glu(x, -1)))
    return nn.Sequential(nn.Linear(n, 2 * width), Calls(gate), nn.Linear(width, n))


def _pointwise_mlp(n: int, width: int, pick: Chooser) -> nn.Module:
    first, second = nn.Conv1d(n, width, 1), nn.Conv1d(width, n, 1)
    turn = Calls(lambda x: x.transpose(1, 2))
    return nn.Sequential(turn, first, activation(1, pick), nn.Dropout(0.1), second, turn)


def mixed(shape: Shape, width: int, pick: Chooser) -> nn.Module | None:
    """A block of an MLP-Mixer over the places of a line or of an image."""
    if len(shape) not in (2, 3):
        return None
    line = [Calls(lambda x: x.flatten(2))] if len(shape) == 3 else []
    return nn.Sequential(*line, Mixer(shape[0], math.prod(shape[1:]), width, pick))


class Transformer(nn.Module):
    """Attention and an MLP, each added to what went in; channels in front, as elsewhere."""

    def __init__(self, mix: nn.Module, norm: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.mix, self.norm, self.mlp = mix, norm, mlp

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        x = x + self.mix(self.norm(x))
        x = x + self.mlp(x)
        return x.transpose(1, 2)


class TorchAttention(nn.Module):
    """Attention as torch has it."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(n, 1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class OwnAttention(nn.Module):
    """Attention written by hand, with keys of any width."""

    def __init__(self, n: int, n_key: int) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(n, n_key), nn.Linear(n, n_key), nn.Linear(n, n)
        self.project = nn.Linear(n, n)

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.matmul(self.query(x), self.key(x).transpose(-2, -1)) * 0.5
        return self.project(scores.softmax(-1) @ self.value(x))


def transformer(shape: Shape, width: int, pick: Chooser) -> nn.Module | None:
    """A transformer's block over the places of a line or of an image."""
    n = shape[0]
    if len(shape) not in (2, 3):
        return None
    mix = pick((lambda: OwnAttention(n, width), lambda: TorchAttention(n), nn.Identity))()
    mlp = nn.Sequential(nn.Linear(n, width), activation(1, pick), nn.Linear(width, n))
    line = [Calls(lambda x: x.flatten(2))] if len(shape) == 3 else []
    return nn.Sequential(*line, Transformer(mix, pick((nn.LayerNorm, nn.RMSNorm))(n), mlp))


class HeadedAttention(nn.Module):
    """Several heads, written in the ways that people write them.

    Heads of keys and values that several of queries share are repeated for each by `repeat`.
    """

    def __init__(self, n: int, heads: tuple[int, int], size: int, way: str, repeat: str) -> None:
        super().__init__()
        self.n_heads, self.n_kv = heads
        self.size, self.way, self.repeat = size, way, repeat
        n_heads = self.n_heads
        self.qkv = nn.Linear(n, (n_heads + 2 * self.n_kv) * size)
        self.project = nn.Linear(n_heads * size, n)

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = self.split(self.qkv(x))
        if "early" in self.repeat:
            k, v = REPEATS[self.repeat](q, k), REPEATS[self.repeat](q, v)
        if "normed" in self.way:
            q = q * torch.rsqrt(q.square().mean(-1, keepdim=True) + 1e-6)
        if "cosine" in self.way:
            q, k = F.normalize(q, dim=-1), F.normalize(k, 2, -1)
        if "turned" in self.way:
            q, k = turn_pairs(q), turn_pairs(k)
        if "in pairs" in self.way:
            q, k = turn_neighbours(q), turn_neighbours(k)
        if "early" not in self.repeat:
            k, v = REPEATS[self.repeat](q, k), REPEATS[self.repeat](q, v)
        if self.way in ("fused", "sdpa", "turned", "in pairs") or self.repeat == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, enable_gqa=self.repeat == "sdpa")
        else:
            y = (q * self.size**-0.5 @ k.transpose(-2, -1)).softmax(-1) @ v
            y = y + q @ (k.transpose(-2, -1) @ v) if "twice" in self.way else y
        return self.project(y.transpose(1, 2).reshape(n, length, -1))

    def split(self, x: Tensor) -> Iterable[Tensor]:
        n, length, _ = x.shape
        if self.way == "fused":
            heads = x.view(n, length, 3, self.n_heads, self.size)
            return heads.permute(2, 0, 3, 1, 4).unbind(0)
        if self.repeat.startswith("beside") and self.n_kv == 1:  # as in Falcon
            y = x.view(n, length, self.n_heads + 2, self.size)
            parts = y[..., :-2, :], y[..., [-2], :], y[..., [-1], :]
        elif self.repeat.startswith("beside"):  # as in InternLM 2
            y = x.view(n, length, self.n_kv, self.n_heads // self.n_kv + 2, self.size)
            parts = y[..., :-2, :].flatten(2, 3), y[..., -2, :], y[..., -1, :]
        else:
            sizes = [self.n_heads * self.size, *[self.n_kv * self.size] * 2]
            parts = (y.view(n, length, -1, self.size) for y in x.split(sizes, -1))
        return (y.transpose(1, 2) for y in parts)


def repeat_kv(q: Tensor, y: Tensor) -> Tensor:
    """Repeat keys or values as transformers does."""
    n, n_kv, length, size = y.shape
    times = q.shape[1] // n_kv
    return y[:, :, None].expand(n, n_kv, times, length, size).reshape(n, -1, length, size)


REPEATS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "": lambda q, y: y,
    "sdpa": lambda q, y: y,
    "expand": lambda q, y: y.expand(-1, q.shape[1], -1, -1),
    "expand_as": lambda q, y: y.expand_as(q),
    "repeat": lambda q, y: y.repeat(1, q.shape[1], 1, 1),
    "repeat_interleave": lambda q, y: y.repeat_interleave(q.shape[1] // y.shape[1], dim=1),
    "repeat_kv": repeat_kv,
    "early repeat_kv": repeat_kv,
    "tile": lambda q, y: y.repeat(1, q.shape[1] // y.shape[1], 1, 1),
    "beside": lambda q, y: y,
    "beside expand": lambda q, y: y.expand(-1, q.shape[1], -1, -1),
    "beside repeat_kv": repeat_kv,
}
GROUPED = (
    "repeat_interleave", "sdpa", "repeat_kv", "early repeat_kv", "tile", "beside repeat_kv",
)  # fmt: skip


def turn_pairs(x: Tensor) -> Tensor:
    """Turn all but an odd last channel by their positions, each with one half a head away."""
    half = x.shape[-1] // 2
    if x.shape[-1] % 2:
        return torch.cat((turn_pairs(x[..., : 2 * half]), x[..., 2 * half :]), dim=-1)
    speeds = torch.linspace(1.0, 0.1, half, dtype=x.dtype).repeat(2)
    angles = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * speeds
    swapped = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * angles.cos() + swapped * angles.sin()


def turn_neighbours(x: Tensor) -> Tensor:
    """Turn all but an odd last channel by their positions, each with the one beside it."""
    even = x.shape[-1] // 2 * 2
    if even < x.shape[-1]:
        return torch.cat((turn_neighbours(x[..., :even]), x[..., even:]), dim=-1)
    speeds = torch.linspace(1.0, 0.1, even // 2, dtype=x.dtype).repeat_interleave(2)
    angles = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * speeds
    swapped = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    return x * angles.cos() + swapped * angles.sin()


def headed(shape: Shape, width: int, pick: Chooser) -> nn.Module | None:
    """A transformer's block with several heads: whole ones go, and channels within."""
    n = shape[0]
    if len(shape) not in (2, 3):
        return None
    ways = ("by hand", "sdpa", "fused", "normed", "turned", "grouped", "in pairs", "cosine")
    more = (" turned", " in pairs", " normed", " cosine", " twice")
    shared = [f"{front}{end}" for front in ("shared", "grouped") for end in ("", *more)]
    way = pick((*ways, *shared, "twice"))
    n_heads, size = pick((2, 4, 3, 5)), pick((2, 3, 4))
    heads, repeat = (n_heads, n_heads), ""
    if way.startswith("shared"):
        heads, repeat = (n_heads, 1), pick(list(REPEATS))
    elif way.startswith("grouped"):
        heads, repeat = (n_heads * pick((2, 3)), n_heads), pick(GROUPED)
    mix = HeadedAttention(n, heads, size, way, repeat)
    mlp = nn.Sequential(nn.Linear(n, width), activation(1, pick), nn.Linear(width, n))
    line = [Calls(lambda x: x.flatten(2))] if len(shape) == 3 else []
    return nn.Sequential(*line, Transformer(mix, pick((nn.LayerNorm, nn.RMSNorm))(n), mlp))


class FunctionalNorm(nn.Module):
    """A norm over the last dimension, called as a function or written by hand."""

    def __init__(self, n: int, kind: str, affine: bool) -> None:
        super().__init__()
        self.n, self.kind = n, kind
        self.weight = nn.Parameter(torch.ones(n)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "layer":
            return F.layer_norm(x, (self.n,), self.weight)
        if self.kind == "length":
            return F.normalize(x, dim=-1)
        if self.kind == "rms":
            return F.rms_norm(x, (self.n,), self.weight, 1e-6)
        if self.kind == "centred by hand":
            x = x - x.mean(-1, keepdim=True)
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return y if self.weight is None else self.weight * y


class Scaled(nn.Module):
    """What a branch adds, times a scale for each channel (LayerScale), and sometimes dropped."""

    def __init__(self, n: int, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.scale = inner, nn.Parameter(torch.ones(n))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.inner(x) * self.scale)


class Stream(nn.Module):
    """A residual stream, with a norm in front of each branch or behind each sum."""

    def __init__(self, norm: nn.Module, mlp: nn.Module, *, is_first: bool) -> None:
        super().__init__()
        self.norm, self.mlp, self.is_first = norm, mlp, is_first

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x)) if self.is_first else self.norm(x + self.mlp(x))


def _block(n: int, width: int, pick: Chooser) -> nn.Module:
    kind = pick(("layer", "rms", "by hand", "centred by hand", "length"))
    norms = (
        lambda: nn.LayerNorm(n, elementwise_affine=pick((True, False))),
        lambda: FunctionalNorm(n, kind, pick((True, False))),
        lambda: nn.RMSNorm(n),
    )
    mlp = nn.Sequential(nn.Linear(n, width), activation(1, pick), nn.Linear(width, n))
    scales = (lambda: mlp, lambda: Scaled(n, mlp))
    return Stream(pick(norms)(), pick(scales)(), is_first=pick((True, False)))


def stream(shape: Shape, width: int, pick: Chooser) -> nn.Module | None:
    """A stream that a layer starts: its channels pass norms, and no activation."""
    n_in, *space = shape
    if len(space) > 2:
        return None
    n = pick((4, 6, 3))
    body = nn.Sequential(*[_block(n, width, pick) for _ in range(pick((1, 2, 3)))])
    if not space:
        return nn.Sequential(nn.Linear(n_in, n), body)
    turn, back = (lambda x: x.transpose(1, -1)), (lambda x: x.transpose(1, -1))
    return nn.Sequential(Calls(turn), nn.Linear(n_in, n), body, Calls(back))


def group_normed(shape: Shape, width: int, pick: Chooser) -> nn.Module | None:
    """A layer, a GroupNorm and an activation: whole groups go, or parts of each.

    Of one number alone a norm would give a constant.
    """
    n_groups, size = pick((3, 2, 1, 4)), pick((2, 3, 4, 1))
    made = keeping(shape[0], n_groups * size, len(shape) - 1, pick)
    if len(shape) == 1 and size == 1:
        return None
    return nn.Sequential(made, nn.GroupNorm(n_groups, n_groups * size), activation(1, pick))


def stacked(shape: Shape, width: int, pick: Chooser) -> nn.Module | None:
    """Layers whose results are stacked, and summed or averaged."""
    n_space = len(shape) - 1
    layers = [keeping(shape[0], width, n_space, pick) for _ in range(pick((2, 3)))]
    reading = pick((lambda x: x.sum(0), lambda x: x.mean(0), lambda x: x.amax(0)))
    return Stacked(layers, reading, activation(1, pick))


class Stacked(nn.Module):
    """What several layers give, reduced as one tensor."""

    def __init__(
        self, layers: list[nn.Module], reading: Callable[[Tensor], Tensor], last: nn.Module
    ) -> None:
        super().__init__()
        self.layers, self.reading, self.last = nn.ModuleList(layers), reading, last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.reading(torch.stack([layer(x) for layer in self.layers])))


MAKERS: dict[str, Maker] = {
    "tokens": tokens,
    "mixed": mixed,
    "transformer": transformer,
    "headed": headed,
    "stream": stream,
    "group_normed": group_normed,
    "stacked": stacked,
}
