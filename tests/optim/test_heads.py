"""Every head keeps equally many channels, but each those that earn most."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archlearn as al

HEADS, SIZE, STEPS = 4, 3, 40
IDLE = (0, 2, 1, 0)  # of each head, a value that nothing reads and a query that is zero


class Attention(nn.Module):
    def __init__(self, size: int = SIZE) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(6, HEADS * size) for _ in range(3))
        self.out, self.last = nn.Linear(HEADS * size, 6), nn.Linear(6, 3)
        with torch.no_grad():
            for head, place in enumerate(IDLE if size == SIZE else ()):
                self.out.weight[:, head * SIZE + place] = 0.0
                self.query.weight[head * SIZE + place] = 0.0
                self.query.bias[head * SIZE + place] = 0.0

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.last(F.relu(self.out(y)))


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def add_gates(size: int = SIZE) -> nn.Module:
    torch.manual_seed(0)
    return al.add_gates(Attention(size).double(), draw(2, 5, 6))


def learn(model: nn.Module, gates: al.GateOptimizer, n_steps: int, lr: float = 0.0) -> None:
    weights = torch.optim.SGD(al.weights(model), lr=lr)
    for step in range(n_steps):
        x = draw(8, 5, 6, seed=step)
        loss = model(x).square().mean()
        loss.backward()
        for each in (weights, gates):
            each.step()
            each.zero_grad()


def test_of_each_head_the_channel_goes_that_earns_least() -> None:
    model = add_gates()
    x, before = draw(3, 5, 6), model(draw(3, 5, 6))
    start = al.plan(model).before.parameters
    one_less = HEADS * (6 + 1 + 6) + 2 * HEADS * (6 + 1)  # of values, and of queries and keys
    budget = {"parameters": start - one_less}
    gates = al.GateOptimizer(model, STEPS, budget=budget, protect=["out"])
    learn(model, gates, STEPS)
    small: Any = al.compact(model)
    kept = al.kept_channels(small)
    rest = tuple(
        head * SIZE + place for head in range(HEADS) for place in range(SIZE) if place != IDLE[head]
    )
    assert kept["query.weight"][0] == kept["key.weight"][0] == rest
    assert kept["value.weight"][0] == kept["out.weight"][1] == rest
    assert (small(x) - before).abs().max() < 1e-10
    assert al.count_costs(small).parameters == budget["parameters"]


def test_a_run_goes_on_from_its_state_with_the_same_channels_of_each_head() -> None:
    runs: list[nn.Module] = []
    for stops in (False, True):
        model = add_gates()
        gates = al.GateOptimizer(model, STEPS, budget={"parameters": "60%"})
        learn(model, gates, STEPS // 2, lr=0.1)
        if stops:
            states = copy.deepcopy((model.state_dict(), gates.state_dict()))
            model = add_gates()
            gates = al.GateOptimizer(model, STEPS, budget={"parameters": "60%"})
            model.load_state_dict(states[0])
            gates.load_state_dict(states[1])
        learn(model, gates, STEPS // 2, lr=0.1)
        runs.append(model)
    assert al.plan(runs[0]) == al.plan(runs[1])
    assert torch.equal(runs[0](draw(3, 5, 6)), runs[1](draw(3, 5, 6)))


def test_a_model_that_shrinks_learns_the_same_channels_of_each_head() -> None:
    runs: list[nn.Module] = []
    for shrinks in (False, True):
        model = add_gates(size=16)
        schedule = al.GateSchedule(decisions=20, patience=2, memory=0.5, depth_power=0.0)
        gates = al.GateOptimizer(model, STEPS, budget={"parameters": "30%"}, schedule=schedule)
        weights = torch.optim.SGD(al.weights(model), lr=0.1)
        for step in range(STEPS):
            model(draw(8, 5, 6, seed=step)).square().mean().backward()
            for each in (weights, gates):
                each.step()
                each.zero_grad()
            if shrinks and step in (STEPS // 2, STEPS // 2 + 4):
                al.shrink_(model, weights, gates)
                assert len(al.width_gates(model)["query/2"]) < 16
                assert len(al.width_gates(model)["value"]) < 16
        runs.append(al.compact(model))
    kept = al.kept_channels(runs[0])
    assert kept == al.kept_channels(runs[1])
    places = [{c % 16 for c in kept["value.weight"][0] if c // 16 == head} for head in range(HEADS)]
    assert len(set(map(frozenset, filter(None, places)))) > 1
    assert (runs[0](draw(3, 5, 6)) - runs[1](draw(3, 5, 6))).abs().max() < 1e-10


def test_whole_heads_alone_are_learnt_and_shrunk() -> None:
    torch.manual_seed(0)
    model = al.add_gates(Attention().double(), draw(2, 5, 6), learn={"query": al.Learn.HEADS})
    assert {name: len(gate) for name, gate in al.width_gates(model).items()} == {"query": HEADS}
    schedule = al.GateSchedule(decisions=20, patience=2, memory=0.5)
    gates = al.GateOptimizer(model, STEPS, budget={"parameters": "60%"}, schedule=schedule)
    learn(model, gates, STEPS * 3 // 4)
    al.shrink_(model, torch.optim.SGD(al.weights(model), lr=0.1), gates)
    assert {name: len(gate) for name, gate in al.width_gates(model).items()} == {"query": 2}
    learn(model, gates, STEPS // 4)
    small: Any = al.compact(model)
    (rows,) = {al.kept_channels(small)[f"{name}.weight"][0] for name in ("query", "key", "value")}
    heads = sorted({row // SIZE for row in rows})
    assert 0 < len(heads) < HEADS
    assert rows == tuple(head * SIZE + place for head in heads for place in range(SIZE))


def test_heads_are_refused_where_there_are_none() -> None:
    refusal = r"learn\['out'\] asks for the heads of 'out'.*: it has no heads"
    with pytest.raises(al.InputError, match=refusal):
        al.add_gates(Attention(), torch.randn(2, 5, 6), learn={"out": al.Learn.HEADS})


def test_gates_inside_branches_are_observed_beside_probes() -> None:
    torch.manual_seed(0)
    x = draw(8, 5, 16)
    block = nn.TransformerEncoderLayer(16, 4, 16, 0.0, batch_first=True, dtype=torch.float64)
    model = al.add_gates(nn.Sequential(block, nn.Linear(16, 3, dtype=torch.float64)), x)
    gates = al.GateOptimizer(model, STEPS, budget={"parameters": "80%"})
    learn_from = torch.randint(3, (8,))
    for _ in range(3):
        F.cross_entropy(model(x).mean(1), learn_from).backward()
        gates.step()
        gates.zero_grad()
    found = {name: gates.state[gate]["mean"] for name, gate in al.width_gates(model).items()}
    assert any("/2" in name for name in found)  # queries and keys within heads
    assert all(bool((mean > 0).all()) for mean in found.values())
