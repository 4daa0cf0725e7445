"""Weights have what was asked for; gates have a rate and nothing else."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import archlearn as al
from archlearn.training.defaults import Schedule
from archlearn.training.settings import OptimiserSettings
from archlearn.training.train_step import make_optimisers, set_rates_

SETTINGS = OptimiserSettings(momentum=0.8, weight_decay=0.03)


def gated() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    return al.add_gates(net, torch.ones(1, 3))


def test_gates_have_neither_momentum_nor_decay() -> None:
    model = gated()
    weights, gates = (o.param_groups[0] for o in make_optimisers(model, SETTINGS))
    assert (weights["momentum"], weights["weight_decay"]) == (0.8, 0.03)
    assert (gates["momentum"], gates["weight_decay"]) == (0, 0)
    assert [p.numel() for p in weights["params"]] == [12, 4, 8, 2]
    assert sorted(p.numel() for p in gates["params"]) == [1, 4]


@pytest.mark.parametrize("make", [gated, lambda: nn.Linear(3, 2)])
def test_adam_is_for_weights_alone(make: type[nn.Module]) -> None:
    weights, *gates = make_optimisers(make(), replace(SETTINGS, optimiser="adam"))
    assert isinstance(weights, torch.optim.AdamW)
    assert weights.param_groups[0]["weight_decay"] == 0.03
    assert all(isinstance(optimiser, torch.optim.SGD) for optimiser in gates)


def test_rates_worked_by_hand() -> None:
    """Ten steps: two of warm-up, gates from the third to the sixth, then a cosine to zero."""
    schedule = Schedule(
        n_steps=10, n_warmup=2, gates_from=2, gates_until=6, learning_rate=0.4, gate_rate=3.0
    )
    optimisers = make_optimisers(gated(), SETTINGS)
    found: list[tuple[float, float]] = []
    for step in range(10):
        set_rates_(optimisers, schedule, step)
        weights, gates = (o.param_groups[0]["lr"] for o in optimisers)
        found.append((weights, gates))
    assert [rate for rate, _ in found[:3]] == pytest.approx([0.2, 0.4, 0.4])
    assert found[6][0] == pytest.approx(0.2)
    assert found[9][0] == pytest.approx(0.2 * (1 + torch.tensor(7 * torch.pi / 8).cos().item()))
    assert [rate for _, rate in found] == [0, 0, 3, 3, 3, 3, 0, 0, 0, 0]
