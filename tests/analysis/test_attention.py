"""Attention loses whole heads, and channels within all heads: queries with keys, and values."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archlearn as al

WIDTH, HEADS, SIZE = 12, 4, 3


class Attention(nn.Module):
    """Queries, keys and values, an `attend` that subclasses write, and a projection."""

    n_heads = n_kv = HEADS

    def __init__(self) -> None:
        super().__init__()
        inner, outer = self.n_kv * SIZE, self.n_heads * SIZE
        self.stem = nn.Linear(5, WIDTH)
        self.query, self.key = nn.Linear(WIDTH, outer), nn.Linear(WIDTH, inner)
        self.value, self.out = nn.Linear(WIDTH, inner), nn.Linear(outer, WIDTH)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.stem(x))
        x = x + self.out(self.attend(x))
        return self.head(x)

    def attend(self, x: Tensor) -> Tensor:
        raise NotImplementedError


def softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(SIZE)
    return torch.matmul(F.softmax(scores, dim=-1), v)


class ByHand(Attention):
    def attend(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = (
            f(x).view(n, length, self.n_heads, SIZE).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        return softmax_attention(q, k, v).transpose(1, 2).reshape(n, length, self.n_heads * SIZE)


class Inferred(Attention):
    """As transformers writes it: the number of heads is -1."""

    def attend(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-1], -1, SIZE)
        q, k, v = (f(x).view(shape).transpose(1, 2) for f in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1 and k.shape[2] < 1)
        return y.transpose(1, 2).reshape(*x.shape[:-1], -1).contiguous()


class Causal(Attention):
    """Positions are masked, and a mask for all heads is added."""

    def attend(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = (
            f(x).view(n, length, self.n_heads, SIZE).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        mask = torch.ones(length, length, device=x.device).tril()
        scores = (q @ k.transpose(-2, -1)) * SIZE**-0.5
        scores = scores.masked_fill(mask == 0, float("-inf"))
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class Batched(Attention):
    """Batch and heads are one dimension, as in `bmm`."""

    def attend(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = (
            f(x)
            .view(n, length, self.n_heads, SIZE)
            .transpose(1, 2)
            .reshape(n * self.n_heads, length, SIZE)
            for f in (self.query, self.key, self.value)
        )
        y = torch.bmm(F.softmax(torch.bmm(q, k.transpose(1, 2)), -1), v)
        return (
            y.view(n, self.n_heads, length, SIZE)
            .transpose(1, 2)
            .reshape(n, length, self.n_heads * SIZE)
        )


class Einsum(Attention):
    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (
            f(x).unflatten(-1, (self.n_heads, SIZE)) for f in (self.query, self.key, self.value)
        )
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * SIZE**-0.5
        return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(-2)


class Turned(Attention):
    """Queries and keys are turned by their positions, a channel with one half a head away."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = (nn.Linear(WIDTH, 4 * self.n_heads) for _ in range(2))
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        self.speed = nn.Buffer(torch.tensor([1.0, 0.1, 1.0, 0.1]))

    def attend(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q = self.q_norm(self.query(x).view(n, length, -1, 4).transpose(1, 2))
        k = self.k_norm(self.key(x).view(n, length, -1, 4).transpose(1, 2))
        v = self.value(x).view(n, length, -1, SIZE).transpose(1, 2)
        angle = torch.arange(length, device=x.device)[:, None] * self.speed
        q, k = (self.turn(y, angle) for y in (q, k))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, length, -1)

    def turn(self, y: Tensor, angle: Tensor) -> Tensor:
        return y * angle.cos() + half_turn(y) * angle.sin()


class TurnedInPairs(Turned):
    """Neighbours are turned together, as in GPT-J."""

    def turn(self, y: Tensor, angle: Tensor) -> Tensor:
        swapped = torch.stack((-y[..., 1::2], y[..., ::2]), dim=-1).flatten(-2)
        angle = angle[:, :2].repeat_interleave(2, 1)
        return y * angle.cos() + swapped * angle.sin()


class TurnedLikeAnother(Turned):
    """The same as in RoFormer: the shape is another tensor's."""

    def turn(self, y: Tensor, angle: Tensor) -> Tensor:
        angle = torch.stack([angle[:, :2], angle[:, :2]], dim=-1).reshape_as(angle)
        swapped = torch.stack([-y[..., 1::2], y[..., ::2]], dim=-1).reshape_as(y)
        return y * angle.cos() + swapped * angle.sin()


class TurnedApart(Turned):
    """Neighbours are taken apart, turned and joined again."""

    def turn(self, y: Tensor, angle: Tensor) -> Tensor:
        one, two = y.unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = angle[:, :2].cos(), angle[:, :2].sin()
        return torch.stack([one * cos - two * sin, one * sin + two * cos], dim=-1).flatten(-2)


class TurnedByTables(Turned):
    """Cosines and sines are in buffers, for more positions than channels of a head."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(9.0)[:, None] * self.speed
        self.cos, self.sin = nn.Buffer(angles.cos()), nn.Buffer(angles.sin())

    def turn(self, y: Tensor, angle: Tensor) -> Tensor:
        cos, sin = self.cos[: y.shape[2]], self.sin[: y.shape[2]]
        return (y * cos + half_turn(y) * sin).type_as(y)


class TurnedAsComplex(Turned):
    """Neighbours are one complex number, as in Llama's own code; its angles are in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(9.0)[:, None] * self.speed[:2]
        self.register_buffer("angles", torch.polar(torch.ones_like(angles), angles))
        self.angles: Tensor

    def turn(self, y: Tensor, angle: Tensor) -> Tensor:
        pairs = torch.view_as_complex(y.reshape(*y.shape[:-1], -1, 2))
        angles = self.angles[: y.shape[2]].view(1, 1, y.shape[2], -1)
        return torch.view_as_real(pairs * angles).flatten(3).type_as(y)


class SharedAndTurned(Turned):
    """One head of keys and values serves all queries, which are turned by their positions."""

    n_kv = 1

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(WIDTH, 4)


class Normed(Turned):
    """Queries and keys are normalised before they are turned."""

    def __init__(self) -> None:
        super().__init__()
        self.q_norm, self.k_norm = nn.LayerNorm(4), nn.RMSNorm(4)


class Decomposed(Attention):
    """Queries are multiplied by a table of positions, too, as in SAM; heads are in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(6, SIZE))

    def attend(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = (
            f(x).view(n, length, self.n_heads, SIZE).transpose(1, 2).reshape(-1, length, SIZE)
            for f in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(1, 2) + torch.einsum("bic,ic->bi", q, self.table)[..., None]
        y = (scores.softmax(-1) @ v).view(n, self.n_heads, length, SIZE)
        return y.transpose(1, 2).reshape(n, length, -1)


class NormedByHand(Attention):
    """Queries are normalised as in Qwen3: one weight, as long as a head, multiplies each."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(SIZE) + 0.5)

    def attend(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = (f(x).view(n, length, -1, SIZE) for f in (self.query, self.key, self.value))
        y = q.to(self.weight.dtype)
        q = self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6))
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        return softmax_attention(q, k, v).transpose(1, 2).reshape(n, length, -1)


class BetweenChannels(Attention):
    """Channels attend to channels, as in DaViT."""

    def attend(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = (
            f(x).view(n, length, self.n_heads, SIZE).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        y = (q.transpose(-1, -2) @ k).softmax(-1) @ v.transpose(-1, -2)
        return y.permute(0, 3, 1, 2).reshape(n, length, -1)


def half_turn(x: Tensor) -> Tensor:
    return torch.cat([-x[..., 2:], x[..., :2]], -1)


class Grouped(Attention):
    """Each head of keys and values serves two of queries, repeated as transformers does."""

    n_kv = HEADS // 2

    def attend(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q = self.query(x).view(n, length, -1, SIZE).transpose(1, 2)
        k, v = (f(x).view(n, length, -1, SIZE).transpose(1, 2) for f in (self.key, self.value))
        k, v = (
            y[:, :, None].expand(n, y.shape[1], 2, length, SIZE).reshape(n, -1, length, SIZE)
            for y in (k, v)
        )
        return softmax_attention(q, k, v).transpose(1, 2).reshape(n, length, -1)


class GroupedBySdpa(Grouped):
    def attend(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = (
            f(x).view(n, length, -1, SIZE).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return y.transpose(1, 2).reshape(n, length, -1)


class MultiQuery(Attention):
    """One head of keys and values serves all queries."""

    n_kv = 1

    def attend(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q = self.query(x).view(n, length, self.n_heads, SIZE).transpose(1, 2)
        k, v = self.key(x)[:, None], self.value(x)[:, None]
        return softmax_attention(q, k, v).transpose(1, 2).reshape(n, length, self.n_heads * SIZE)


class MultiQueryByEinsum(MultiQuery):
    """As in PaLM: keys and values have no dimension of heads."""

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.query(x).unflatten(-1, (self.n_heads, SIZE)), self.key(x), self.value(x)
        scores = torch.einsum("b i h d, b j d -> b h i j", q, k) * SIZE**-0.5
        return torch.einsum("bhij,bjd->bihd", scores.softmax(-1), v).flatten(-2)


class MultiQueryBySdpa(MultiQuery):
    """The same, in the ways in which one head is repeated for all."""

    def attend(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = (
            f(x).view(n, length, -1, SIZE).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        k, v = self.repeat(k, q), self.repeat(v, q)
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=k.shape[1] == 1)
        return y.transpose(1, 2).reshape(n, length, -1)

    def repeat(self, y: Tensor, q: Tensor) -> Tensor:
        return y


class Expanded(MultiQueryBySdpa):
    def repeat(self, y: Tensor, q: Tensor) -> Tensor:
        return y.expand(-1, HEADS, -1, -1)


class ExpandedAs(MultiQueryBySdpa):
    def repeat(self, y: Tensor, q: Tensor) -> Tensor:
        return y.expand_as(q)


class Repeated(MultiQueryBySdpa):
    def repeat(self, y: Tensor, q: Tensor) -> Tensor:
        return y.repeat(1, HEADS, 1, 1)


class Interleaved(MultiQueryBySdpa):
    def repeat(self, y: Tensor, q: Tensor) -> Tensor:
        return torch.repeat_interleave(y, q.shape[1], dim=1)


class RepeatKv(MultiQueryBySdpa):
    """As transformers does."""

    def repeat(self, y: Tensor, q: Tensor) -> Tensor:
        n, n_kv, length, size = y.shape
        y = y[:, :, None].expand(n, n_kv, HEADS // n_kv, length, size)
        return y.reshape(n, HEADS, length, size)


class SharedAndNormed(Normed):
    """As in Gemma 3: normalised and turned, then repeated."""

    n_kv = 1

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(WIDTH, 4)

    def turn(self, y: Tensor, angle: Tensor) -> Tensor:
        y = super().turn(y, angle)
        return y if y.shape[1] > 1 else y.expand(-1, HEADS, -1, -1)


class RepeatedAndTurned(SharedAndTurned):
    """Keys are repeated before they are turned."""

    def turn(self, y: Tensor, angle: Tensor) -> Tensor:
        y = y if y.shape[1] > 1 else y.repeat_interleave(HEADS, 1)
        return super().turn(y, angle)


class Fused(Attention):
    """One layer for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * self.n_heads * SIZE)
        del self.query, self.key, self.value

    def attend(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        qkv = self.qkv(x).reshape(n, length, 3, self.n_heads, SIZE).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        y = F.scaled_dot_product_attention(q * 1.0, k, v)
        return y.transpose(1, 2).reshape(n, length, self.n_heads * SIZE)


class FusedAndPicked(Fused):
    def attend(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        qkv = self.qkv(x).view(n, length, 3, self.n_heads, SIZE).permute(2, 0, 3, 1, 4)
        y = softmax_attention(qkv[0], qkv[1], qkv[2])
        return y.transpose(1, 2).reshape(n, length, self.n_heads * SIZE)


class FusedAndSplit(Fused):
    def attend(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).split(self.n_heads * SIZE, dim=2)
        q, k, v = (y.view(*y.shape[:2], self.n_heads, SIZE).transpose(1, 2) for y in parts)
        return softmax_attention(q, k, v).permute(0, 2, 1, 3).reshape(*x.shape[:2], -1)


class FusedAndShared(Fused):
    """As in Falcon: the heads of keys and of values lie beside those of queries."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, (HEADS + 2) * SIZE)

    def attend(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        qkv = self.qkv(x).view(n, length, HEADS + 2, SIZE)
        q, k, v = (
            y.transpose(1, 2) for y in (qkv[..., :-2, :], qkv[..., [-2], :], qkv[..., [-1], :])
        )
        return softmax_attention(q, k, v).transpose(1, 2).reshape(n, length, HEADS * SIZE)


class FusedAndRepeated(FusedAndShared):
    def attend(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        qkv = self.qkv(x).view(n, length, HEADS + 2, SIZE)
        q, k, v = qkv[..., :-2, :], qkv[..., [-2], :], qkv[..., [-1], :]
        k, v = (torch.broadcast_to(y, q.shape) for y in (k, v))
        y = F.scaled_dot_product_attention(*(y.transpose(1, 2) for y in (q, k, v)))
        return y.transpose(1, 2).reshape(n, length, HEADS * SIZE)


class WithComputedBias(Fused):
    """As in BEiT: keys have no bias, and one for all three is put together."""

    def __init__(self) -> None:
        super().__init__()
        width = self.n_heads * SIZE
        self.qkv = nn.Linear(WIDTH, 3 * width, bias=False)
        self.q_bias, self.v_bias = (
            nn.Parameter(torch.randn(width)),
            nn.Parameter(torch.randn(width)),
        )
        self.k_bias = nn.Buffer(torch.zeros(width), persistent=False)

    def attend(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        bias = torch.cat([self.q_bias, self.k_bias, self.v_bias])
        qkv = F.linear(x, self.qkv.weight, bias=bias).view(n, length, 3, self.n_heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        return y.transpose(1, 2).reshape(n, length, self.n_heads * SIZE)


class ReadTwice(Attention):
    """Two products read the same values: heads of both go together."""

    def __init__(self) -> None:
        super().__init__()
        self.other, self.more = (nn.Linear(WIDTH, self.n_heads * SIZE) for _ in range(2))

    def attend(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v, other, more = (
            f(x).view(n, length, self.n_heads, SIZE).transpose(1, 2)
            for f in (self.query, self.key, self.value, self.other, self.more)
        )
        y = softmax_attention(q, k, v) + softmax_attention(other, more, v)
        return y.transpose(1, 2).reshape(n, length, self.n_heads * SIZE)


class Cosine(Fused):
    """As in Swin v2: queries and keys have length one, heads a scale, and keys no bias."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(self.n_heads, 1, 1))

    def attend(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        bias = self.qkv.bias.clone()
        third = bias.numel() // 3
        bias[third : 2 * third].zero_()
        qkv = F.linear(x, self.qkv.weight, bias).reshape(n, length, 3, self.n_heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = 2 * F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        scores = scores * torch.clamp(self.scale, max=math.log(100)).exp()
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(n, length, -1)


class Biased(Attention):
    """A number for each head and distance is added to the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(9, self.n_heads))
        self.slope = nn.Buffer(torch.linspace(0.1, 1.0, self.n_heads).view(self.n_heads, 1, 1))
        self.far = nn.Embedding(9, self.n_heads)

    def attend(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = (
            f(x).view(n, length, self.n_heads, SIZE).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        place = torch.arange(length, device=x.device)
        distance = (place[:, None] - place).abs()
        bias = self.table[distance.view(-1)].view(length, length, self.n_heads).permute(2, 0, 1)
        scores = q @ k.transpose(-2, -1) + bias - self.slope * distance
        scores = scores + self.far(distance).permute(2, 0, 1).unsqueeze(0)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(n, length, self.n_heads * SIZE)


KINDS: dict[Callable[[], Attention], int] = {
    ByHand: 4, Inferred: 4, Causal: 4, Batched: 4, Einsum: 4, Normed: 4, NormedByHand: 4,
    Turned: 4, TurnedInPairs: 4, TurnedLikeAnother: 4, TurnedApart: 4, TurnedAsComplex: 4,
    TurnedByTables: 4, SharedAndTurned: 4, Decomposed: 4,
    Grouped: 2, GroupedBySdpa: 2, MultiQuery: 4, Fused: 4, FusedAndPicked: 4, FusedAndSplit: 4,
    Biased: 4, BetweenChannels: 4, WithComputedBias: 4, Cosine: 4,
    ReadTwice: 4,
    MultiQueryByEinsum: 4, MultiQueryBySdpa: 4, Expanded: 4, ExpandedAs: 4, Repeated: 4,
    Interleaved: 4, RepeatKv: 4,
    SharedAndNormed: 4, RepeatedAndTurned: 4, FusedAndShared: 4, FusedAndRepeated: 4,
}  # fmt: skip
SHARED = (
    MultiQuery, MultiQueryByEinsum, MultiQueryBySdpa, Expanded, ExpandedAs, Repeated, Interleaved,
    RepeatKv,
    SharedAndTurned, SharedAndNormed, RepeatedAndTurned, FusedAndShared, FusedAndRepeated,
)  # fmt: skip
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def add_gates(kind: Callable[[], Attention]) -> nn.Module:
    torch.manual_seed(0)
    return al.add_gates(kind().double(), draw(2, 6, 5))


def heads_of(gated: nn.Module) -> nn.Parameter:
    names = [n for n in al.width_gates(gated) if n in ("query", "qkv")]
    return al.width_gates(gated)[names[0]]


def close_(gated: nn.Module, *places: int) -> None:
    with torch.no_grad():
        heads_of(gated)[list(places)] = 0.1


@each_kind
def test_a_gate_closes_a_whole_head_exactly(kind: Callable[[], Attention]) -> None:
    gated = add_gates(kind)
    assert len(heads_of(gated)) == KINDS[kind]
    before = gated(draw(2, 6, 5))
    close_(gated, *range(0, KINDS[kind], 2))
    small: Any = al.compact(gated)
    for x in (draw(2, 6, 5), draw(3, 6, 5)):
        for mode in (True, False):
            assert (gated.train(mode)(x) - small.train(mode)(x)).abs().max() < 1e-10
    assert (gated(draw(2, 6, 5)) - before).abs().max() > 1e-3
    assert small.out.in_features == HEADS * SIZE // 2
    assert al.plan(gated).after == al.count_costs(small)


@each_kind
def test_a_closed_head_has_a_gradient(kind: Callable[[], Attention]) -> None:
    gated = add_gates(kind)
    close_(gated, 1)
    gated(draw(2, 6, 5)).square().sum().backward()
    gradient = heads_of(gated).grad
    assert gradient is not None
    assert (gradient != 0).all()


@each_kind
def test_one_head_always_stays(kind: Callable[[], Attention]) -> None:
    gated = add_gates(kind)
    close_(gated, *range(KINDS[kind]))
    small: Any = al.compact(gated)
    assert small.out.in_features == HEADS * SIZE // KINDS[kind]
    assert (gated(draw(2, 6, 5)) - small(draw(2, 6, 5))).abs().max() < 1e-10


@each_kind
def test_a_model_with_fewer_heads_is_saved_and_shrunk(
    kind: Callable[[], Attention], tmp_path: Path
) -> None:
    gated = add_gates(kind)
    close_(gated, 0)
    x, path = draw(2, 6, 5), tmp_path / "small.safetensors"
    small = al.compact(gated)
    kept = al.kept_channels(small)["out.weight"][1]
    columns = HEADS * SIZE // KINDS[kind]
    assert kept == tuple(range(columns, HEADS * SIZE))
    al.save(small, path)
    assert torch.equal(al.load(path)(x), small(x))
    before = gated(x)
    al.shrink_(gated)
    assert len(heads_of(gated)) == max(2, KINDS[kind] - 1)
    assert (gated(x) - before).abs().max() < 1e-10


@each_kind
def test_inspect_names_heads_after_the_layer_that_writes_them(
    kind: Callable[[], Attention],
) -> None:
    gated = add_gates(kind)
    found = [row for row in al.inspect(gated).rows if row.activation == "(attention)"]
    n_gates = [
        sum(len(gate) for n, gate in gates_of(gated).items() if n.startswith(row.name))
        for row in found
    ]
    assert [(row.channels, row.width) for row in found] == [(n, True) for n in n_gates]
    assert found[0].name in ("query", "qkv")


def test_the_products_of_attention_are_a_part_of_the_costs() -> None:
    gated = add_gates(Inferred)
    n, length = 2, 6
    layers = n * length * (5 * WIDTH + 4 * WIDTH * HEADS * SIZE + WIDTH * 2)
    products = 2 * n * HEADS * length * length * SIZE
    assert al.plan(gated).before.multiply_adds == layers + products
    close_(gated, 2, 3)
    layers -= n * length * 4 * WIDTH * HEADS * SIZE // 2
    assert al.plan(gated).after.multiply_adds == layers + products // 2


APART, JOINT = {"query/2": SIZE, "value": SIZE}, {"qkv/2": SIZE}
IN_PAIRS = {"query/2": 2, "value": SIZE}
BY_PLACE = {**APART, "query/3": 2}  # heads of queries, one of each group at a time
WITHIN: dict[Callable[[], Attention], dict[str, int]] = {
    ByHand: APART, Inferred: APART, Causal: APART, Batched: APART, Einsum: APART, Biased: APART,
    Grouped: BY_PLACE, GroupedBySdpa: BY_PLACE,
    Turned: IN_PAIRS, TurnedInPairs: IN_PAIRS, TurnedLikeAnother: IN_PAIRS, TurnedApart: IN_PAIRS,
    TurnedAsComplex: IN_PAIRS, TurnedByTables: IN_PAIRS,
    Decomposed: {"value": SIZE}, Normed: {"value": SIZE}, NormedByHand: {"value": SIZE},
    Fused: JOINT, FusedAndPicked: JOINT, WithComputedBias: JOINT,
    FusedAndSplit: {"qkv/2": SIZE, "qkv/3": SIZE}, BetweenChannels: {}, Cosine: JOINT,
    ReadTwice: {**APART, "other": SIZE}, **dict.fromkeys(SHARED, APART),
    SharedAndTurned: IN_PAIRS, RepeatedAndTurned: IN_PAIRS, SharedAndNormed: {"value": SIZE},
    FusedAndShared: JOINT, FusedAndRepeated: JOINT,
}  # fmt: skip


TURNED_OR_NORMED = (
    Batched, Grouped, GroupedBySdpa, Decomposed, Normed, NormedByHand, Turned, TurnedInPairs,
    TurnedLikeAnother, TurnedApart, TurnedAsComplex, TurnedByTables,
)  # fmt: skip


def gates_of(gated: nn.Module) -> dict[str, nn.Parameter]:
    """Return the gates of attention."""
    return {name: gate for name, gate in al.width_gates(gated).items() if name != "stem"}


@each_kind
def test_heads_lose_the_same_channels_each_beside_whole_heads(
    kind: Callable[[], Attention], tmp_path: Path
) -> None:
    x, path = draw(2, 6, 5), tmp_path / "small.safetensors"
    gated = add_gates(kind)
    gates = gates_of(gated)
    whole = heads_of(gated)
    assert {n: len(g) for n, g in gates.items() if g is not whole} == WITHIN[kind]
    with torch.no_grad():
        for gate in gates.values():
            gate[1] = 0.1
    gated(x).square().sum().backward()
    assert all(gate.grad is not None and bool((gate.grad != 0).all()) for gate in gates.values())
    small: Any = al.compact(gated)
    for mode in (True, False):
        wide = draw(3, 6, 5)
        assert (gated.train(mode)(wide) - small.train(mode)(wide)).abs().max() < 1e-10
    n_heads, n_left = HEADS * (len(whole) - 1) // len(whole), SIZE - bool(WITHIN[kind])
    n_heads //= 2 if WITHIN[kind] is BY_PLACE else 1
    assert small.out.in_features == n_heads * n_left
    if n_left < SIZE:
        assert al.kept_channels(small)["out.weight"][1][:n_left] == (0, 2)
    assert al.plan(gated).after == al.count_costs(small)
    assert al.read_architecture(gated).layers[-2].name == "out"
    al.save(small, path)
    assert torch.equal(al.load(path)(x), small(x))
    before = gated(x)
    al.shrink_(gated)
    assert (gated(x) - before).abs().max() < 1e-10
    assert al.plan(gated).after == al.count_costs(small)


# Of which gates each head may lose other channels: not where all heads share something within.
FREE: dict[Callable[[], Attention], set[str]] = {
    kind: {"value"} if kind in TURNED_OR_NORMED else set(WITHIN[kind]) for kind in KINDS
} | {kind: set() for kind in (*SHARED, Cosine)}


def shuffle_(gated: nn.Module) -> None:
    """Let each gate within heads stand for another channel in each of them."""
    generator = torch.Generator().manual_seed(1)
    container: Any = gated.archlearn_gates
    for order in container.orders().values():
        order.copy_(torch.rand(order.shape, generator=generator).argsort(1))


@each_kind
def test_each_head_may_lose_other_channels_but_equally_many(
    kind: Callable[[], Attention], tmp_path: Path
) -> None:
    x, path = draw(3, 6, 5), tmp_path / "small.safetensors"
    gated, other = add_gates(kind), add_gates(kind)
    container: Any = gated.archlearn_gates
    assert set(container.orders()) == FREE[kind]
    before, alike = gated(x), al.compact(close_within(add_gates(kind)))
    shuffle_(gated)
    assert torch.equal(gated(x), before)
    close_within(gated).train()(x).square().sum().backward()
    for name, probe in container.probes().items():
        assert bool((probe.grad != 0).all())
        torch.testing.assert_close(probe.grad.sum(0), gates_of(gated)[name].grad)
    small: Any = al.compact(gated)
    for mode in (True, False):
        assert (gated.train(mode)(x) - small.train(mode)(x)).abs().max() < 1e-10
    assert al.plan(gated).after == al.count_costs(small) == al.count_costs(alike)
    kept = al.kept_channels(small)
    if FREE[kind] & {"value", "qkv/2", "qkv/3"}:
        n_places = len(kept["out.weight"][1]) // len(container.orders()[max(FREE[kind])])
        places = [column % SIZE for column in kept["out.weight"][1]]
        assert len({tuple(places[i : i + n_places]) for i in range(0, len(places), n_places)}) > 1
    al.save(small, path)
    assert (al.load(path)(x) - small(x)).abs().max() < 1e-12
    after = gated(x)
    al.shrink_(gated)
    assert (gated(x) - after).abs().max() < 1e-10
    assert al.kept_channels(al.compact(gated)) == kept
    al.shrink_(other, like=gated.state_dict())
    other.load_state_dict(gated.state_dict())
    assert torch.equal(other(x), gated(x))
    assert al.kept_channels(al.compact(other)) == kept


def close_within(gated: nn.Module) -> nn.Module:
    """Close a gate of each group within heads."""
    with torch.no_grad():
        for name, gate in gates_of(gated).items():
            if gate is not heads_of(gated):
                gates_of(gated)[name][1] = 0.1
    return gated


def test_a_state_from_before_heads_had_an_order_is_loaded() -> None:
    gated, other = add_gates(ByHand), add_gates(ByHand)
    close_within(gated)
    state = {name: value for name, value in gated.state_dict().items() if ".order." not in name}
    other.load_state_dict({name: value for name, value in state.items() if ".probe." not in name})
    assert torch.equal(other(draw(2, 6, 5)), gated(draw(2, 6, 5)))


def test_probes_are_no_weights() -> None:
    gated = add_gates(ByHand)
    container: Any = gated.archlearn_gates
    known = {id(weight) for weight in al.weights(gated)}
    assert container.probes()
    assert not known & {id(probe) for probe in container.probes().values()}


class OneHead(Attention):
    """Attention without heads: channels of queries go with those of keys, and values alone."""

    def attend(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))


def test_without_heads_single_channels_go_and_the_scale_stays() -> None:
    gated = add_gates(OneHead)
    gates = al.width_gates(gated)
    assert {name: len(gates[name]) for name in ("query", "value")} == {"query": 12, "value": 12}
    with torch.no_grad():
        gates["query"][[1, 4, 5]] = 0.1
        gates["value"][[0, 7]] = 0.1
    small: Any = al.compact(gated)
    x = draw(3, 6, 5)
    assert (gated(x) - small(x)).abs().max() < 1e-10
    assert (small.query.out_features, small.key.out_features) == (9, 9)
    assert (small.value.out_features, small.out.in_features) == (10, 10)
    gated(x).square().sum().backward()
    assert all(bool((gates[name].grad != 0).all()) for name in ("query", "value"))
    assert al.plan(gated).after == al.count_costs(small)


def with_two_heads(kind: type[Attention]) -> type[Attention]:
    return type(kind.__name__, (kind,), {"n_heads": 2, "n_kv": 2})


TOGETHER = {"query": SIZE, "value": SIZE}
FEW: dict[type[Attention], dict[str, int]] = {
    ByHand: TOGETHER, Inferred: TOGETHER, Causal: TOGETHER, Batched: TOGETHER, Einsum: TOGETHER,
    GroupedBySdpa: TOGETHER, Biased: TOGETHER, FusedAndSplit: {"qkv": SIZE, "qkv/2": SIZE},
    Fused: {"qkv": SIZE}, FusedAndPicked: {"qkv": SIZE}, Normed: {"query": 2},
    Turned: {"query": 2, "value": SIZE},
    NormedByHand: {"query": 2}, BetweenChannels: {"query": 2},
}  # fmt: skip


@pytest.mark.parametrize("kind", FEW, ids=lambda kind: kind.__name__)
def test_few_heads_lose_channels_within_and_the_scale_stays(
    kind: type[Attention], tmp_path: Path
) -> None:
    x, path = draw(2, 6, 5), tmp_path / "small.safetensors"
    gated = add_gates(with_two_heads(kind))
    gates = {name: gate for name, gate in al.width_gates(gated).items() if name != "stem"}
    assert {name: len(gate) for name, gate in gates.items()} == FEW[kind]
    with torch.no_grad():
        for gate in gates.values():
            gate[1] = 0.1
    gated(x).square().sum().backward()
    assert all(gate.grad is not None and bool((gate.grad != 0).all()) for gate in gates.values())
    small: Any = al.compact(gated)
    for mode in (True, False):
        wide = draw(3, 6, 5)
        assert (gated.train(mode)(wide) - small.train(mode)(wide)).abs().max() < 1e-10
    within = SIZE in FEW[kind].values()
    assert small.out.in_features == (2 * (SIZE - 1) if within else SIZE)
    assert al.plan(gated).after == al.count_costs(small)
    al.save(small, path)
    assert torch.equal(al.load(path)(x), small(x))
    before = gated(x)
    al.shrink_(gated)
    assert (gated(x) - before).abs().max() < 1e-10


@pytest.mark.parametrize(
    "kind", [kind for kind in FEW if kind is not BetweenChannels], ids=lambda kind: kind.__name__
)
def test_few_heads_go_whole_where_heads_are_asked_for(kind: type[Attention]) -> None:
    torch.manual_seed(0)
    example, x = draw(2, 6, 5), draw(3, 6, 5)
    gated = al.add_gates(with_two_heads(kind)().double(), example, learn={"*[qk]*": al.Learn.HEADS})
    gates = {name: gate for name, gate in al.width_gates(gated).items() if name != "stem"}
    assert [len(gate) for gate in gates.values()] == [2]
    with torch.no_grad():
        heads_of(gated)[0] = 0.1
    gated(x).square().sum().backward()
    assert all(gate.grad is not None and bool((gate.grad != 0).all()) for gate in gates.values())
    small: Any = al.compact(gated)
    for mode in (True, False):
        assert (gated.train(mode)(x) - small.train(mode)(x)).abs().max() < 1e-10
    assert small.out.in_features == SIZE
    assert al.plan(gated).after == al.count_costs(small)
    before = gated(x)
    al.shrink_(gated)
    assert (gated(x) - before).abs().max() < 1e-10


class MaskedByHead(Attention):
    """A fixed mask has a place for each head."""

    def attend(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = (
            f(x).view(n, length, HEADS, SIZE).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-2, -1) + torch.zeros(HEADS, 1, 1, dtype=x.dtype)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(n, length, HEADS * SIZE)


def test_heads_that_a_fixed_tensor_is_added_to_stay() -> None:
    gates = gates_of(add_gates(MaskedByHead))
    assert {name: len(gate) for name, gate in gates.items()} == {"query": SIZE, "value": SIZE}


class Torch(nn.Module):
    """Self-attention by `nn.MultiheadAttention` between layers that read and write a stream."""

    def __init__(
        self, options: dict[str, Any], given: dict[str, Any], n_heads: int = HEADS
    ) -> None:
        super().__init__()
        self.stem, self.norm = nn.Linear(5, WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, n_heads, **options)
        self.head, self.given = nn.Linear(WIDTH, 2), given

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(x)
        y, _ = self.attention(y, y, y, **self.given)
        return self.head(x + y)


HIDDEN = torch.tensor([[False, False, False, False, True, True], [False] * 6])
CAUSAL = torch.ones(6, 6, dtype=torch.bool).triu(1)
TORCH: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "weights": ({"batch_first": True}, {}),
    "no weights": ({"batch_first": True}, {"need_weights": False}),
    "no bias": ({"batch_first": True, "bias": False}, {"need_weights": False}),
    "length first": ({}, {"need_weights": False}),
    "causal": (
        {"batch_first": True},
        {"need_weights": False, "attn_mask": CAUSAL, "is_causal": True},
    ),
    "masks": ({"batch_first": True}, {"attn_mask": CAUSAL, "key_padding_mask": HIDDEN}),
    "bias": (
        {"batch_first": True},
        {"need_weights": False, "attn_mask": draw(6, 6), "key_padding_mask": draw(2, 6)},
    ),
}


@pytest.mark.parametrize("name", TORCH)
def test_multihead_attention_loses_heads_and_its_stream(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Torch(*TORCH[name]).double()
    x = draw(6, 2, 5) if name == "length first" else draw(2, 6, 5)
    gated = al.add_gates(net, x)
    assert (gated(x) - net(x)).abs().max() < 1e-12
    gates = al.width_gates(gated)
    assert {n: len(gate) for n, gate in gates.items()} == {
        "stem": WIDTH,
        "attention.in_proj_weight": HEADS,
        "attention.in_proj_weight/2": SIZE,
        "attention.in_proj_weight/3": SIZE,
    }
    with torch.no_grad():
        gates["attention.in_proj_weight"][[0, 2]] = 0.1
        gates["attention.in_proj_weight/3"][1] = 0.1
        gates["stem"][::3] = 0.1
    small: Any = al.compact(gated)
    for mode in (True, False):
        assert (gated.train(mode)(x) - small.train(mode)(x)).abs().max() < 1e-10
    assert small.attention.in_proj_weight.shape == (2 * (3 * SIZE - 1), 8)
    assert small.attention.out_proj.weight.shape == (8, 2 * (SIZE - 1))
    assert al.plan(gated).after == al.count_costs(small)
    al.save(small, tmp_path / "small.safetensors")
    assert torch.equal(al.load(tmp_path / "small.safetensors")(x), small(x))


@pytest.mark.parametrize("name", ["weights", "no weights"])
def test_multihead_attention_of_two_heads_loses_channels_within(name: str) -> None:
    torch.manual_seed(0)
    gated = al.add_gates(Torch(*TORCH[name], n_heads=2).double(), draw(2, 6, 5))
    gates = al.width_gates(gated)
    names = ["attention.in_proj_weight", "attention.in_proj_weight/2"]
    assert [len(gates[n]) for n in names] == [WIDTH // 2] * 2
    with torch.no_grad():
        gates[names[0]][[0, 2]] = 0.1
        gates[names[1]][1] = 0.1
    small: Any = al.compact(gated)
    assert (gated(draw(3, 6, 5)) - small(draw(3, 6, 5))).abs().max() < 1e-10
    assert small.attention.in_proj_weight.shape == (2 * (4 + 4 + 5), WIDTH)
    assert small.attention.out_proj.weight.shape == (WIDTH, 2 * 5)
    assert al.plan(gated).after == al.count_costs(small)


class AskingForANumber(ByHand):
    """As attention with relative positions does."""

    def attend(self, x: Tensor) -> Tensor:
        places = torch.linspace(0, 1, int(2 * x.shape[1] - 1), dtype=x.dtype)[: x.shape[1], None]
        return super().attend(x + places)


def test_attention_that_asks_for_a_size_as_a_number_is_learnt() -> None:
    gated = al.add_gates(nn.Sequential(AskingForANumber()).double(), draw(2, 6, 5))
    assert {"0.stem", "0.query"} <= set(al.width_gates(gated))


class Encoder(nn.Module):
    def __init__(self, *, norm_first: bool) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 2)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 20, batch_first=True, norm_first=norm_first, dropout=0.0
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        x = self.encoder(self.stem(x), src_key_padding_mask=hidden)
        return self.head(x).masked_fill(hidden[..., None], 0.0)


@pytest.mark.parametrize("norm_first", [True, False])
def test_encoders_of_torch_lose_heads_stream_and_hidden_units(norm_first: bool) -> None:
    torch.manual_seed(0)
    inputs = draw(2, 6, 5), HIDDEN
    gated = al.add_gates(Encoder(norm_first=norm_first).double(), inputs)
    gates = al.width_gates(gated)
    within = [SIZE] * 4
    assert sorted(map(len, gates.values())) == [*within, HEADS, HEADS, WIDTH, 20, 20]
    with torch.no_grad():
        for gate in gates.values():
            gate[::2] = 0.1
    small = al.compact(gated)
    for mode in (True, False):
        assert (gated.train(mode)(*inputs) - small.train(mode)(*inputs)).abs().max() < 1e-10


class Cross(nn.Module):
    """Attention by `nn.MultiheadAttention` from one stream to others, which a line names."""

    def __init__(self, reads: str, options: dict[str, Any], given: dict[str, Any]) -> None:
        super().__init__()
        self.reads, self.given = reads, given
        sizes = WIDTH, options.get("kdim", WIDTH), options.get("vdim", WIDTH)
        self.q, self.k, self.v = (
            nn.Linear(n, size) for n, size in zip((5, 6, 7), sizes, strict=True)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, **options)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = self.q(q)
        streams = {"q": self.norm(q), "k": self.k(k), "v": self.v(v)}
        y, _ = self.attention(*(streams[name] for name in self.reads), **self.given)
        return self.head(q + y)


WEIGHT, APART = "attention.in_proj_weight", "attention.q_proj_weight"
OF_HEADS = {WEIGHT: HEADS, f"{WEIGHT}/2": SIZE, f"{WEIGHT}/3": SIZE}
APART_HEADS = {APART: HEADS, f"{APART}/2": SIZE, "attention.v_proj_weight": SIZE}
FIRST, QUICK = {"batch_first": True}, {"need_weights": False}
CROSS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, int]]] = {
    "weights": ("qkk", FIRST, {}, {}),
    "no weights": ("qkk", FIRST, QUICK, {}),
    "no bias": ("qkk", {**FIRST, "bias": False}, QUICK, {}),
    "length first": ("qkk", {}, QUICK, {}),
    "three streams": ("qkv", FIRST, QUICK, {}),
    "three streams, length first": ("qkv", {"bias": False}, {}, {}),
    "values alone": ("qqv", FIRST, QUICK, {}),
    "keys alone": ("qkq", FIRST, {}, {}),
    "causal": ("qkk", FIRST, {**QUICK, "attn_mask": CAUSAL, "is_causal": True}, {}),
    "masks": ("qkk", FIRST, {"attn_mask": CAUSAL, "key_padding_mask": HIDDEN}, {}),
    "padding": ("qkv", FIRST, {**QUICK, "key_padding_mask": HIDDEN}, {}),
    "apart": ("qkv", {**FIRST, "kdim": 6, "vdim": 9}, QUICK, {"k": 6, "v": 9}),
    "apart, no bias": ("qkk", {**FIRST, "kdim": 6, "vdim": 6, "bias": False}, {}, {"k": 6}),
}


def cross(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    reads, options, given, _ = CROSS[name]
    net = Cross(reads, {"dropout": 0.2, **options}, given).double()
    shape = (2, 6) if options.get("batch_first") else (6, 2)
    return net, tuple(draw(*shape, n) for n in (5, 6, 7))


@pytest.mark.parametrize("name", CROSS)
def test_cross_attention_loses_heads_and_the_streams_that_it_reads(
    name: str, tmp_path: Path
) -> None:
    net, inputs = cross(name)
    gated = al.add_gates(net, inputs)
    gates = al.width_gates(gated)
    streams = {"q": WIDTH, **CROSS[name][-1]}  # keys and values of one size are tied to queries
    heads = APART_HEADS if "apart" in name else OF_HEADS
    assert {n: len(gate) for n, gate in gates.items()} == streams | heads
    for mode in (True, False):
        torch.testing.assert_close(
            run(gated.train(mode), inputs), run(net.train(mode), inputs), rtol=0, atol=1e-12
        )
    generator = torch.Generator().manual_seed(1)
    optimizer = al.GateOptimizer(gated, 10, budget={"multiply_adds": "100%"})
    for _ in range(3):
        for gate in gates.values():
            closed = torch.rand(gate.shape, generator=generator) < 0.5
            gate.data.copy_(torch.where(closed, 0.1, 0.9))
        small = al.compact(gated)
        assert (run(gated, inputs) - run(small, inputs)).abs().max() < 1e-10
        plan, n_examples = al.plan(gated), len(inputs[0])
        assert plan.after == al.count_costs(small)
        assert plan.before == al.count_costs(net, inputs)
        assert optimizer.costs() == pytest.approx(
            {
                "parameters": plan.after.parameters,
                "multiply_adds": plan.after.multiply_adds / n_examples,
            }
        )
        al.save(small, tmp_path / "small.safetensors")
        loaded = al.load(tmp_path / "small.safetensors")
        assert torch.equal(run(loaded, inputs), run(small, inputs))
        kept, before = al.kept_channels(small), net.state_dict()
        for key, tensor in small.state_dict().items():
            of_each_dim = torch.meshgrid(*map(torch.tensor, kept[key].values()), indexing="ij")
            assert torch.equal(tensor, before[key][of_each_dim])


def run(net: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    """Return what a network gives, with the same dropout each time."""
    torch.manual_seed(7)
    return net(*inputs)


def test_a_cut_of_cross_attention_is_one_of_its_optimizer_too() -> None:
    net, inputs = cross("no weights")
    gated = al.add_gates(net, inputs)
    optimizer = torch.optim.Adam(al.weights(gated), lr=0.01)
    run(gated, inputs).square().sum().backward()
    optimizer.step()
    gates = al.width_gates(gated)
    with torch.no_grad():
        gates["q"][::3] = 0.1
        gates[WEIGHT][1] = 0.1
        gates[f"{WEIGHT}/2"][0] = 0.1
    before = run(gated.eval(), inputs)
    weight: Any = gated.get_parameter(WEIGHT)
    whole = optimizer.state[weight]["exp_avg"]
    rows = al.plan(gated).kept()[WEIGHT]
    al.shrink_(gated, optimizer)
    assert (run(gated, inputs) - before).abs().max() < 1e-10
    assert gated.get_parameter(WEIGHT) is weight
    assert weight.shape == ((HEADS - 1) * (3 * SIZE - 2), 8)
    assert torch.equal(optimizer.state[weight]["exp_avg"], whole[list(rows[0])][:, list(rows[1])])
    run(gated.train(), inputs).square().sum().backward()
    optimizer.step()
    small = al.compact(gated)
    assert (run(gated.eval(), inputs) - run(small.eval(), inputs)).abs().max() < 1e-10


class ByRows(nn.Module):
    """Layers that take rows of one parameter, some of which two of them share."""

    def __init__(self, factor: float = 0.0) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(5, 6), nn.Linear(20, 2)
        self.weight, self.bias = nn.Parameter(draw(14, 6)), nn.Parameter(draw(14))
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        first = F.linear(x, self.weight[:10], self.bias[:10])
        second = F.linear(x, self.weight[4:, :], self.bias[4:])
        y = self.head(torch.cat([first, second], -1).relu())
        return y + self.factor * self.weight.sum() if self.factor else y


def test_layers_that_take_rows_of_one_parameter_lose_theirs() -> None:
    torch.manual_seed(0)
    net = ByRows().double()
    gated = al.add_gates(net, draw(3, 5))
    gates = al.width_gates(gated)
    assert sorted(map(len, gates.values())) == [4, 4, 6, 6]
    with torch.no_grad():
        for gate in gates.values():
            gate[1::2] = 0.1
    small: Any = al.compact(gated)
    assert (gated(draw(4, 5)) - small(draw(4, 5))).abs().max() < 1e-10
    assert small.weight.shape == (7, 3)
    assert al.plan(gated).after == al.count_costs(small)
    assert al.plan(gated).before == al.count_costs(net, draw(3, 5))


def test_a_parameter_stays_that_layers_take_rows_of_and_something_else_reads() -> None:
    with pytest.raises(al.InputError, match="'weight' is used in two ways"):
        al.add_gates(ByRows(factor=0.1).double(), draw(3, 5))


@pytest.mark.parametrize("option", ["add_zero_attn", "add_bias_kv"])
def test_attention_that_cannot_be_followed_says_how_it_can(option: str) -> None:
    net = Cross("qkk", {**FIRST, option: True}, QUICK)
    model = al.add_gates(net, (torch.randn(2, 6, 5), torch.randn(2, 4, 6), torch.randn(2, 4, 7)))
    lines = str(al.inspect(model)).splitlines()
    (line,) = (line for line in lines if "around F.scaled_dot_product_attention, which" in line)
    names, _, _ = line.removeprefix("width not learnt at ").partition(": ")
    assert {"q", "k"} <= set(names.split(", "))


class Linear(nn.Module):
    """Keys and values make a matrix for each head, by an outer product, which queries read."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.stem, self.query, self.key = nn.Linear(5, 6), nn.Linear(6, 12), nn.Linear(6, 12)
        self.value, self.out = nn.Linear(6, 4 * size), nn.Linear(4 * size, 6)
        self.last = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        layers = self.query, self.key, self.value
        q, k, v = (layer(x).unflatten(-1, (4, -1)) for layer in layers)
        memory = (k[..., None] * v[..., None, :]).cumsum(1)
        read = (q[..., None, :] @ memory).flatten(2)
        return self.last(F.relu(x + self.out(read)))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_heads_of_an_outer_product_go_on_both_sides(size: int) -> None:
    torch.manual_seed(0)
    gated = al.add_gates(Linear(size).double(), draw(3, 6, 5))
    gates = al.width_gates(gated)
    assert (len(gates["query"]), len(gates["out"])) == (4, 6)
    with torch.no_grad():
        gates["query"][1] = 0.0
    small: Any = al.compact(gated)
    x = draw(2, 7, 5)
    assert (gated(x) - small(x)).abs().max() < 1e-10
    layers = small.query, small.key, small.value
    assert [layer.out_features for layer in layers] == [9, 9, 3 * size]
