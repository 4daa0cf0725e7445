"""Dropout follows the connections that are left, and survives surgery."""

import pytest
import torch
from torch import nn

import archlearn as al
from archlearn.models.caffenet import CaffeNet, CaffeNetSizes
from archlearn_paper.parameter_budget import Dropped, Relaxing, Window

LAYERS = (Dropped("drop6", "fc6", "conv5"), Dropped("drop7", "fc7", "fc6"))


def test_rates_fall_with_the_root_of_the_connections_left() -> None:
    net = CaffeNet(CaffeNetSizes(side=67, n_outputs=5, factor=1 / 16))
    model = al.add_gates(net, torch.zeros(2, 3, 67, 67), learn={"fc*": al.Learn.WIDTH})
    with torch.no_grad():
        al.width_gates(model)["fc6"][:64] = 0.0
        al.width_gates(model)["fc7"][:128] = 0.0
    every = Relaxing(window=Window(epoch=2, least=0, most=10**9), layers=LAYERS)
    every(model, 1)
    assert [rate(model, name) for name in ("drop6", "drop7")] == [0.5, 0.5]
    every(model, 2)
    wanted = [0.5 * 0.75**0.5, 0.5 * (0.75 * 0.5) ** 0.5]
    small = al.compact(model.eval())
    assert [rate(model, name) for name in ("drop6", "drop7")] == pytest.approx(wanted)
    assert [rate(small, name) for name in ("drop6", "drop7")] == pytest.approx(wanted)
    assert net.drop6.p == 0.5, "the network it came from is left alone"


def rate(model: nn.Module, name: str) -> float:
    dropout = model.get_submodule(name)
    assert isinstance(dropout, nn.Dropout)
    return dropout.p
