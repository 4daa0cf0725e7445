"""Training from scratch on a learnt architecture."""

import pytest
import torch
from torch import nn

import archlearn as al
from archlearn.models import LeNet
from archlearn_paper.recipes import start_anew

DIGITS = torch.zeros(1, 1, 28, 28)


@pytest.fixture
def compact() -> nn.Module:
    torch.manual_seed(0)
    gated = al.add_gates(LeNet(), DIGITS)
    with torch.no_grad():
        for gate in al.width_gates(gated).values():
            gate[3:] = 0.0
    return al.compact(gated)


def test_architecture_stays_and_weights_are_new(compact: nn.Module) -> None:
    fresh = start_anew(compact, seed=1)
    shapes = {name: tensor.shape for name, tensor in compact.state_dict().items()}
    assert {name: tensor.shape for name, tensor in fresh.state_dict().items()} == shapes
    for name, parameter in fresh.named_parameters():
        assert not torch.equal(parameter, compact.get_parameter(name)), name
    assert fresh(DIGITS).shape == (1, 10)


def test_the_seed_decides_and_nothing_else(compact: nn.Module) -> None:
    first = start_anew(compact, seed=1)
    torch.randn(7)
    again, other = start_anew(compact, seed=1), start_anew(compact, seed=2)
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name))
    assert not torch.equal(first.get_parameter("fc1.weight"), other.get_parameter("fc1.weight"))


def test_callers_random_numbers_go_on_as_they_would() -> None:
    net = nn.Linear(2, 2)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    start_anew(net, seed=1)
    assert torch.equal(torch.rand(3), expected)


def test_running_statistics_start_anew() -> None:
    net = nn.Sequential(nn.BatchNorm1d(2))
    net(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    fresh = start_anew(net, seed=0)
    assert torch.equal(fresh.get_buffer("0.running_mean"), torch.zeros(2))
    assert not torch.equal(net.get_buffer("0.running_mean"), torch.zeros(2))


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


def test_a_layer_that_cannot_start_anew_is_named() -> None:
    with pytest.raises(al.InputError, match="'1', a Scale, has parameters but no"):
        start_anew(nn.Sequential(nn.Linear(1, 1), Scale()), seed=0)
