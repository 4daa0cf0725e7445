"""The shape, type and device of a weight may be read in `forward`: that is no use of it."""

import pytest
import torch
from torch import Tensor, nn

import archlearn as al


class Net(nn.Module):
    """Two convolutions and a layer; subclasses read how their weights are."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 1)
        self.last = nn.Linear(6 * 16, 4)


class ByShape(Net):
    """Sizes for views, and a scale that must stay what it is."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x)) / self.first.weight.shape[0] ** 0.5
        x = torch.relu(self.second(x)) * self.second.weight.size(0)
        return self.last(x.view(-1, self.last.weight.shape[1])) / self.second.weight.numel()


class ByKind(Net):
    """Inputs follow the model's precision and device, as Hugging Face writes it."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.first.weight.dtype).to(device=self.first.weight.device)
        x = torch.relu(self.second(torch.relu(self.first(x))))
        return self.last(x.flatten(1).to(self.last.weight).type_as(self.second.weight))


class ByRank(Net):
    """Decides by a weight's number of dimensions."""

    def forward(self, x: Tensor) -> Tensor:
        if self.first.weight.dim() == 4 and self.last.weight.ndim == 2:
            x = torch.relu(self.first(x))
        return self.last(torch.relu(self.second(x)).flatten(1))


def inputs() -> Tensor:
    return torch.randn(3, 3, 6, 6, dtype=torch.float64)


@pytest.mark.parametrize("network", [ByShape, ByKind, ByRank])
def test_what_describes_a_weight_does_not_use_it(network: type[Net]) -> None:
    torch.manual_seed(0)
    net = network().double()
    model = al.add_gates(net, inputs()).eval()
    x = inputs()
    torch.testing.assert_close(model(x), net(x), rtol=0, atol=1e-12)
    assert set(al.width_gates(model)) == {"first", "second"}
    with torch.no_grad():
        for gate in al.width_gates(model).values():
            gate[::2] = 0.1
    small = al.compact(model)
    torch.testing.assert_close(small(x), model(x), rtol=0, atol=1e-10)
    assert al.read_architecture(model).widths == (4, 3, 4)
    assert al.count_costs(small) == al.plan(model).after


def test_a_layer_whose_shape_is_read_may_merge() -> None:
    torch.manual_seed(0)
    model = al.add_gates(ByRank().double(), inputs()).eval()
    with torch.no_grad():
        for gate in al.depth_gates(model).values():
            gate.fill_(0.9)
    small, x = al.compact(model), inputs()
    assert any(merge.made for merge in al.plan(model).merges)
    torch.testing.assert_close(small(x), model(x), rtol=0, atol=1e-10)
