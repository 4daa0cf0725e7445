"""What the gates say at a moment, worked by hand."""

import pytest
import torch
from torch import nn

import archlearn as al
from archlearn_cli.training.metrics import GateMonitor, count_memory, read_gates

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))


def gated(widths: list[float], depth: float) -> nn.Module:
    model = al.add_gates(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), X)
    with torch.no_grad():
        al.width_gates(model)["0"].copy_(torch.tensor(widths))
        al.depth_gates(model)["0"].fill_(depth)
    return model


def test_a_snapshot_worked_by_hand() -> None:
    model = gated([0.2, 0.95, 1.0, 0.7], 0.45)
    snapshot = GateMonitor(model, X, "parameters").measure(*read_gates(model))
    assert snapshot["widths"] == {"0": 3, "2": 2}
    assert snapshot["linear"] == {"0": False}
    assert snapshot["binarisation_gap"] == pytest.approx((0.2 + 0.05 + 0.0 + 0.3 + 0.45) / 5)
    assert snapshot["binarised_share"] == pytest.approx(2 / 5)
    assert snapshot["parameters"] == 3 * 3 + 3 + 2 * 3 + 2
    assert snapshot["multiply_adds"] == 3 * 3 + 2 * 3


def test_memory_of_training_worked_by_hand() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    rule = torch.optim.Adam(net.parameters())
    weights, statistics = 4 * (12 + 4 + 4 + 4), 4 * (4 + 4) + 8
    assert count_memory(net, [rule]) == 2 * weights + statistics
    net(X).sum().backward()
    rule.step()
    assert count_memory(net, [rule]) == 4 * weights + statistics + 4 * 4  # a step of each tensor
