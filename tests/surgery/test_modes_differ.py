"""A model may go another way in training than in evaluation; both are merged, or neither."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import archlearn as al


class Net(nn.Module):
    """Three layers; subclasses decide by the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.side, self.last = nn.Linear(6, 12), nn.Linear(6, 6), nn.Linear(12, 3)
        self.other = nn.Linear(12, 3)


class MoreInTraining(Net):
    """The same call has another name in each graph, because another one is made before it."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = x + F.relu(self.side(x))
        return self.last(F.relu(self.first(x)))


class OtherReader(Net):
    """The layer behind is another one."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        return self.last(x) if self.training else self.other(x)


class OtherUse(Net):
    """In training the layer is read as it is, too."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.training:
            return self.last(x).abs() + self.other(x)
        return self.last(F.relu(x))


def inputs() -> Tensor:
    return torch.randn(4, 6, dtype=torch.float64)


def gate(net: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    model = al.add_gates(net.double(), inputs())
    with torch.no_grad():
        for gate in al.depth_gates(model).values():
            gate.fill_(0.9)
    return model


def test_each_mode_loses_its_own_calls() -> None:
    model = gate(MoreInTraining())
    small, x = al.compact(model), inputs()
    assert any(merge.made for merge in al.plan(model).merges)
    for training in (False, True):
        model.train(training)
        small.train(training)
        torch.testing.assert_close(small(x), model(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("network", [OtherReader, OtherUse])
def test_layers_that_are_not_always_neighbours_do_not_merge(network: type[Net]) -> None:
    row = next(row for row in al.inspect(network(), inputs().float()).rows if row.name == "first")
    assert not row.depth
    assert "in training and in evaluation" in row.reason
