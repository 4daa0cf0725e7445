"""Attention in which each head of keys and values serves several of queries.

A head of keys and values goes with all its queries, and of every such group the same place among
its queries: so all groups stay as large as one another.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archlearn as al

WIDTH, GROUPS, TIMES, SIZE = 12, 2, 4, 4
HEADS = GROUPS * TIMES


class Grouped(nn.Module):
    """Attention with eight heads of queries and two of keys and values, repeated for them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 2)
        self.query, self.out = nn.Linear(WIDTH, HEADS * SIZE), nn.Linear(HEADS * SIZE, WIDTH)
        self.key, self.value = (nn.Linear(WIDTH, GROUPS * SIZE) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.stem(x))
        q, k, v = self.split(x)
        y = self.attend(q, k, v).transpose(1, 2).reshape(*x.shape[:2], -1)
        return self.head(x + self.out(y))

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        layers = (self.query, self.key, self.value)
        return tuple(f(x).view(*x.shape[:2], -1, SIZE).transpose(1, 2) for f in layers)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = self.repeat(k), self.repeat(v)
        return (q @ k.transpose(-1, -2) / math.sqrt(SIZE)).softmax(-1) @ v

    def repeat(self, y: Tensor) -> Tensor:
        """As transformers does."""
        n, groups, length, size = y.shape
        y = y[:, :, None].expand(n, groups, TIMES, length, size)
        return y.reshape(n, groups * TIMES, length, size)


class Interleaved(Grouped):
    def repeat(self, y: Tensor) -> Tensor:
        return torch.repeat_interleave(y, TIMES, dim=1)


class BySdpa(Grouped):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


class RepeatedForSdpa(Grouped):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, self.repeat(k), self.repeat(v), is_causal=True)


class Turned(BySdpa):
    """Queries and keys are turned by their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.speed = nn.Buffer(torch.tensor([1.0, 0.1, 1.0, 0.1]))

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        q, k, v = super().split(x)
        angle = torch.arange(x.shape[1], device=x.device)[:, None] * self.speed
        q, k = (
            y * angle.cos() + torch.cat([-y[..., 2:], y[..., :2]], -1) * angle.sin() for y in (q, k)
        )
        return q, k, v


class Normed(Grouped):
    """Queries and keys are normalised within their heads, as in Qwen3."""

    def __init__(self) -> None:
        super().__init__()
        self.q_norm, self.k_norm = nn.RMSNorm(SIZE), nn.RMSNorm(SIZE)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        q, k, v = super().split(x)
        return self.q_norm(q), self.k_norm(k), v


class NormedForSdpa(Normed):
    attend = BySdpa.attend


class Biased(Grouped):
    """A slope for each head of queries is added to the scores, and a learnt number."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Buffer(torch.linspace(0.1, 1.0, HEADS).view(HEADS, 1, 1))
        self.scale = nn.Parameter(torch.rand(HEADS, 1, 1))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        place = torch.arange(q.shape[2])
        scores = q @ self.repeat(k).transpose(-1, -2) * self.scale
        scores = scores - self.slope * (place[:, None] - place).abs()
        return scores.softmax(-1) @ self.repeat(v)


class Fused(BySdpa):
    """One layer: each group's queries, and its key and value behind them, as in InternLM 2."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, GROUPS * (TIMES + 2) * SIZE)
        del self.query, self.key, self.value

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.qkv(x).view(*x.shape[:2], GROUPS, TIMES + 2, SIZE)
        q, k, v = y[..., :TIMES, :].flatten(2, 3), y[..., -2, :], y[..., -1, :]
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


class NormedAsOne(Fused):
    """Queries and keys are normalised over all their heads, as in OLMo 2, of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.q_norm, self.k_norm = nn.RMSNorm(HEADS * SIZE), nn.RMSNorm(GROUPS * SIZE)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.qkv(x).view(*x.shape[:2], GROUPS, TIMES + 2, SIZE)
        q, k, v = y[..., :TIMES, :].flatten(2), y[..., -2, :].flatten(2), y[..., -1, :].flatten(2)
        parts = (self.q_norm(q), self.k_norm(k), v)
        return tuple(y.view(*x.shape[:2], -1, SIZE).transpose(1, 2) for y in parts)


class NormedBehind(Grouped):
    """What each head returns is normalised within it, as in Differential Transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(SIZE)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.norm(super().attend(q, k, v))


APART = {"query": GROUPS, "query/2": SIZE, "query/3": TIMES, "value": SIZE}
WHOLE = {"query": GROUPS, "query/2": TIMES, "value": SIZE}
KINDS: dict[Callable[[], nn.Module], dict[str, int]] = {
    Grouped: APART, Interleaved: APART, BySdpa: APART, RepeatedForSdpa: APART,
    Turned: {**APART, "query/2": SIZE // 2}, Normed: WHOLE, NormedForSdpa: WHOLE, Biased: APART,
    Fused: {"qkv": GROUPS, "qkv/2": SIZE, "qkv/3": TIMES},
    NormedBehind: {"query": GROUPS, "query/2": SIZE, "query/3": TIMES},
}  # fmt: skip
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def add_gates(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return al.add_gates(kind().double(), draw(2, 6, 5))


def gates_of(gated: nn.Module) -> dict[str, nn.Parameter]:
    """Return the gates of attention."""
    return {name: gate for name, gate in al.width_gates(gated).items() if name != "stem"}


def places_of(gated: nn.Module) -> nn.Parameter:
    """Return the gates of heads of queries, one for each place in all groups."""
    names = [name for name in gates_of(gated) if name[:-1] in ("query/", "qkv/")]
    return gates_of(gated)[names[-1]]


@each_kind
def test_every_group_loses_the_same_heads_of_queries_exactly(
    kind: Callable[[], nn.Module], tmp_path: Path
) -> None:
    x, path = draw(3, 6, 5), tmp_path / "small.safetensors"
    gated = add_gates(kind)
    assert {name: len(gate) for name, gate in gates_of(gated).items()} == KINDS[kind]
    places_of(gated).data[[0, 2]] = 0.1
    gated(x).square().sum().backward()
    gradients = [gate.grad for gate in gates_of(gated).values()]
    assert all(grad is not None and bool((grad != 0).all()) for grad in gradients)
    small: Any = al.compact(gated)
    for mode in (True, False):
        assert (gated.train(mode)(x) - small.train(mode)(x)).abs().max() < 1e-10
    kept = tuple(c for c in range(HEADS * SIZE) if c // SIZE % TIMES in (1, 3))
    assert al.kept_channels(small)["out.weight"][1] == kept
    assert al.plan(gated).after == al.count_costs(small)
    assert al.read_architecture(gated).layers[-2].name == "out"
    assert [row.channels for row in al.inspect(gated).rows if row.activation == "(attention)"]
    al.save(small, path)
    assert torch.equal(al.load(path)(x), small(x))
    before = gated(x)
    al.shrink_(gated)
    assert len(places_of(gated)) == 2
    assert (gated(x) - before).abs().max() < 1e-10
    assert al.plan(gated).after == al.count_costs(small)


@each_kind
def test_heads_of_queries_go_beside_whole_groups_and_channels_within(
    kind: Callable[[], nn.Module], tmp_path: Path
) -> None:
    x, path = draw(3, 6, 5), tmp_path / "small.safetensors"
    gated = add_gates(kind)
    with torch.no_grad():
        for gate in gates_of(gated).values():
            gate[1] = 0.1
    small: Any = al.compact(gated)
    for mode in (True, False):
        assert (gated.train(mode)(x) - small.train(mode)(x)).abs().max() < 1e-10
    n_within = SIZE if kind is NormedBehind else SIZE - 1  # of values
    assert small.out.in_features == (GROUPS - 1) * (TIMES - 1) * n_within
    assert al.plan(gated).after == al.count_costs(small)
    al.save(small, path)
    assert torch.equal(al.load(path)(x), small(x))
    before = gated(x)
    al.shrink_(gated)
    assert (gated(x) - before).abs().max() < 1e-10
    assert al.plan(gated).after == al.count_costs(small)


@pytest.mark.parametrize("kind", [Grouped, BySdpa])
def test_what_is_left_is_the_attention_of_the_other_heads(kind: Callable[[], Grouped]) -> None:
    """Worked by hand: the second query of each of two groups goes, heads 1 and 5 of 8."""
    gated = add_gates(kind)
    torch.manual_seed(0)
    net, x = kind().double(), draw(2, 6, 5)
    gone = [*range(4, 8), *range(20, 24)]  # four channels each
    net.out.weight.data[:, gone] = 0.0
    gates_of(gated)["query/3"].data[1] = 0.1
    small: Any = al.compact(gated)
    assert (small(x) - net(x)).abs().max() < 1e-10
    kept = tuple(channel for channel in range(32) if channel not in gone)
    found = al.kept_channels(small)
    assert found["query.weight"][0] == found["query.bias"][0] == found["out.weight"][1] == kept
    assert len(found["key.weight"][0]) == len(found["value.weight"][0]) == GROUPS * SIZE
    assert torch.equal(small.query.weight, net.query.weight[list(kept)])
    before, after = al.plan(gated).before, al.plan(gated).after
    # Eight rows and a bias each of queries, and eight columns, between them and 12 channels.
    assert before.parameters - after.parameters == 8 * (12 + 1) + 12 * 8
    # Those, once for each of 2 · 6 tokens, and both products, of 6 · 6 pairs and 4 channels.
    assert before.multiply_adds - after.multiply_adds == 2 * 6 * 2 * 8 * 12 + 2 * 2 * 2 * 36 * 4


@each_kind
def test_one_head_of_queries_always_stays(kind: Callable[[], nn.Module]) -> None:
    x, gated = draw(2, 6, 5), add_gates(kind)
    places_of(gated).data.fill_(0.1)
    small: Any = al.compact(gated)
    assert small.out.in_features == GROUPS * SIZE
    assert (gated(x) - small(x)).abs().max() < 1e-10


@pytest.mark.parametrize("kind", [*KINDS, NormedAsOne], ids=lambda kind: kind.__name__)
def test_something_stays_where_every_gate_is_closed(kind: Callable[[], nn.Module]) -> None:
    x, gated = draw(2, 6, 5), add_gates(kind)
    with torch.no_grad():
        for gate in gates_of(gated).values():
            gate.fill_(0.1)
    assert (gated(x) - al.compact(gated)(x)).abs().max() < 1e-10


@pytest.mark.parametrize("kind", [Grouped, BySdpa, Normed])
def test_a_budget_closes_heads_of_queries_that_nothing_reads(kind: Callable[[], Grouped]) -> None:
    torch.manual_seed(0)
    net, x = kind().double(), draw(2, 6, 5)
    idle = [c for c in range(HEADS * SIZE) if c // SIZE % TIMES in (0, 3)]
    net.out.weight.data[:, idle] = 0.0
    net.query.weight.requires_grad_(False)
    gated = al.add_gates(net, x)
    n_less = len(idle) * (WIDTH + 1 + WIDTH)
    budget = {"parameters": al.plan(gated).before.parameters - n_less}
    gates = al.GateOptimizer(gated, 30, budget=budget, protect=["stem"])
    for _ in range(30):
        gated(x).square().mean().backward()
        gates.step()
        gates.zero_grad()
    small: Any = al.compact(gated)
    assert al.count_costs(small).parameters == budget["parameters"]
    assert set(al.kept_channels(small)["out.weight"][1]) == set(range(HEADS * SIZE)) - set(idle)
    assert (small(x) - net(x)).abs().max() < 1e-10


class Summed(Grouped):
    """Heads of queries are told apart by a fixed tensor: they stay, channels within go."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ self.repeat(k).transpose(-1, -2) + torch.zeros(HEADS, 1, 1, dtype=q.dtype)
        return scores.softmax(-1) @ self.repeat(v)


class Tiled(Grouped):
    """Groups lie within places, not places within groups: heads of keys take theirs alone."""

    def repeat(self, y: Tensor) -> Tensor:
        return y.repeat(1, TIMES, 1, 1)


class PartlyRead(Grouped):
    """A part has three heads of one group: whole groups stay, and the fourth place of each."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y = super().attend(q, k, v)
        return torch.cat([y[:, :3] * 2.0, y[:, 3:]], 1)


KEPT: dict[Callable[[], nn.Module], dict[str, int]] = {
    Summed: {"query": SIZE, "value": SIZE},
    Tiled: {"query": GROUPS, "query/2": SIZE, "value": SIZE},
    PartlyRead: {"query": SIZE, "query/2": TIMES - 1, "value": SIZE},
}


@pytest.mark.parametrize("kind", KEPT, ids=lambda kind: kind.__name__)
def test_heads_of_queries_stay_where_it_would_not_be_exact(kind: Callable[[], nn.Module]) -> None:
    x, gated = draw(3, 6, 5), add_gates(kind)
    assert {name: len(gate) for name, gate in gates_of(gated).items()} == KEPT[kind]
    with torch.no_grad():
        for gate in gates_of(gated).values():
            gate[0] = 0.1
    small = al.compact(gated)
    assert (gated(x) - small(x)).abs().max() < 1e-10
    before = gated(x)
    al.shrink_(gated)
    assert (gated(x) - before).abs().max() < 1e-10


class Kernel(Grouped):
    """Linear attention: keys meet values before queries do."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = self.repeat(k), self.repeat(v)
        return torch.relu(q) @ (torch.relu(k).transpose(-1, -2) @ v)


@pytest.mark.parametrize("n_closed", [1, 2])
def test_linear_attention_of_grouped_queries_shrinks(n_closed: int) -> None:
    x, gated = draw(3, 6, 5), add_gates(Kernel)
    assert {name: len(gate) for name, gate in gates_of(gated).items()} == WHOLE
    places_of(gated).data[:n_closed] = 0.1
    before = gated(x)
    al.shrink_(gated)
    assert (gated(x) - before).abs().max() < 1e-10
    assert len(places_of(gated)) == TIMES - n_closed
