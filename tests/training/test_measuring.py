"""What the gates say at a moment, worked by hand."""

import pytest
import torch
from torch import nn

import archlearn as al
from archlearn.costs import Costs
from archlearn.gating import depth_gates, width_gates
from archlearn.training.measuring import Observatory, read_gates

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))


def gated(widths: list[float], depth: float) -> nn.Module:
    model = al.add_gates(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), X)
    with torch.no_grad():
        width_gates(model)["0"].copy_(torch.tensor(widths))
        depth_gates(model)["0"].fill_(depth)
    return model


def test_a_snapshot_worked_by_hand() -> None:
    model = gated([0.2, 0.95, 1.0, 0.7], 0.45)
    snapshot = Observatory(model, X, "parameters").measure(*read_gates(model), epochs_to_move=3.0)
    assert snapshot.widths == {"0": 3, "2": 2}
    assert snapshot.linear == {"0": False}
    assert snapshot.gap == pytest.approx((0.2 + 0.05 + 0.0 + 0.3 + 0.45) / 5)
    assert snapshot.binary_share == pytest.approx(2 / 5)
    assert snapshot.costs == Costs(3 * 3 + 3 + 2 * 3 + 2, 3 * 3 + 2 * 3)
    assert snapshot.projected == snapshot.costs.parameters


def test_gates_are_projected_to_go_on_as_in_the_last_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    pause = "archlearn.training.measuring._SECONDS_BETWEEN_PROJECTIONS"
    monkeypatch.setattr(pause, -1.0)
    model = gated([0.9, 0.95, 1.0, 0.7], 0.45)
    observatory = Observatory(model, X, "parameters")
    observatory.measure(*read_gates(model), epochs_to_move=4.0)
    with torch.no_grad():
        width_gates(model)["0"][3] = 0.6
    moving = observatory.measure(*read_gates(model), epochs_to_move=2.0)
    assert moving.widths["0"] == 4
    assert moving.costs.parameters == 4 * 4 + 2 * 5
    assert moving.projected == 3 * 4 + 2 * 4
    monkeypatch.setattr(pause, 1e9)  # the last projection is held, and no longer true
    still = observatory.measure(*read_gates(model), epochs_to_move=0.0)
    assert still.projected == still.costs.parameters == 4 * 4 + 2 * 5
