"""A part of a model may be in another mode than the model: frozen while the rest trains."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import archlearn as al


class Backbone(nn.Module):
    """Decides by its own mode, in a call that has no module."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 12)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(F.relu(self.layer(x)), 0.5, self.training)


class Net(nn.Module):
    """A backbone, a BatchNorm and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.norm, self.head = Backbone(), nn.BatchNorm1d(12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.backbone(x)))


class ByModules(nn.Module):
    """Every part that has a mode is a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Linear(12, 3)
        self.drop = nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(F.relu(self.norm(self.first(x)))))


def inputs() -> Tensor:
    return torch.randn(5, 6)


@pytest.mark.parametrize("training", [True, False])
def test_a_part_in_another_mode_is_refused_where_the_trace_holds_the_mode(training: bool) -> None:
    model = al.add_gates(Net(), inputs()).train(training)
    model(inputs())
    model.get_submodule("backbone").train(not training)
    for copied in (model, copy.deepcopy(model)):
        with pytest.raises(al.InputError, match=r"'backbone' is in (evaluation|training) mode"):
            copied(inputs())


def test_a_leaf_keeps_its_mode() -> None:
    net = Net()
    model = al.add_gates(
        nn.Sequential(net, nn.ReLU(), nn.Linear(3, 3)), inputs(), leaves=[Backbone]
    )
    model.train()
    part = model.get_submodule("0.backbone")
    part.eval()
    x = inputs()
    torch.testing.assert_close(part(x), F.relu(net.backbone.layer(x)))
    model(x)


def test_modules_keep_their_modes_through_surgery() -> None:
    net = ByModules().train()
    net.norm.eval()
    model = al.add_gates(net, inputs())
    assert not model.get_submodule("norm").training
    small = al.compact(model)
    assert small.training
    assert small.get_submodule("drop").training
    assert not small.get_submodule("norm").training
    before = copy.deepcopy(small.state_dict())
    small(inputs())
    torch.testing.assert_close(small.state_dict(), before, rtol=0, atol=0)
