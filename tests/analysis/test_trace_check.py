"""A trace is rehearsed beside `forward` itself: on the example inputs both must do the same."""

import types
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archlearn as al

X = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 2, 3)
        self.other = nn.BatchNorm2d(6)
        self.dropout = nn.Dropout(0.5)

    def both(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(self.first(x)))).mean((2, 3))


class ByExactType(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.both(x * 2 if type(x) is Tensor else x)


class ByExactTypeInTraining(Base):
    def forward(self, x: Tensor) -> Tensor:
        is_tensor = type(x) is Tensor
        return self.both(self.dropout(x) if self.training and is_tensor else x)


class ByAnotherNorm(Base):
    def forward(self, x: Tensor) -> Tensor:
        norm = self.other if type(x) is Tensor else self.norm
        return self.last(torch.relu(norm(self.first(x)))).mean((2, 3))


class ByResult(Base):
    def forward(self, x: Tensor) -> Any:
        y = self.both(x)
        return (y, y) if type(x) is Tensor else y


class Pooling(Base):
    def __init__(self) -> None:
        super().__init__()
        self.pool, self.mean = nn.MaxPool2d(2, 1), nn.AvgPool2d(2, 1)


class ByWhatIsPooled(Pooling):
    def forward(self, x: Tensor) -> Tensor:
        return self.both(self.pool(-x if type(x) is Tensor else x))


class ByAnotherPool(Pooling):
    def forward(self, x: Tensor) -> Tensor:
        return self.both((self.mean if type(x) is Tensor else self.pool)(x))


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (ByWhatIsPooled, "gives 'pool' other numbers to read"),
        (ByAnotherPool, "calls 'pool' where forward calls 'mean'"),
        (ByExactType, "gives 'first' other numbers to read"),
        (ByExactTypeInTraining, "gives 'first' other numbers to read"),
        (ByAnotherNorm, "calls 'norm' where forward calls 'other'"),
        (ByResult, "returns Tensor where forward returns tuple"),
    ],
)
def test_a_trace_that_does_something_else_is_refused(kind: type[nn.Module], what: str) -> None:
    with pytest.raises(al.TracingError, match=what):
        al.add_gates(kind(), X)


class BySmallChange(Base):
    """A branch that starts small, as scales of layers do, has the other sign."""

    def forward(self, x: Tensor) -> Tensor:
        y, small = self.norm(self.first(x)), 1e-5 * self.other(self.first(x))
        return self.last(torch.relu(y - small if type(x) is Tensor else y + small)).mean((2, 3))


class ByOnePixel(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(62 * 62).index_fill(0, torch.tensor(9), 0.5))
        self.mask: Tensor

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.first(x)))
        y = y * self.mask.view(62, 62) if type(x) is Tensor else y
        return self.last(y).mean((2, 3))


@pytest.mark.parametrize("kind", [BySmallChange, ByOnePixel])
def test_a_change_that_is_small_beside_all_numbers_is_seen(kind: type[nn.Module]) -> None:
    x = torch.rand(1, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    with pytest.raises(al.TracingError, match="on the example inputs its trace"):
        al.add_gates(kind(), x)


def test_a_forward_of_the_instance_is_noticed() -> None:
    net = ByDropout()
    net.forward = types.MethodType(lambda self, x: self.both(x) * 2, net)
    with pytest.raises(al.InputError, match=r"model\.forward was put on the instance"):
        al.add_gates(net, X)


class Swallowing(Base):
    def forward(self, x: Tensor) -> Tensor:
        try:
            factor = 2.0 if x.sum() > -1e9 else 1.0
        except Exception:
            factor = 3.0
        return self.both(x) * factor


def test_a_refusal_cannot_be_caught() -> None:
    with pytest.raises(al.TracingError, match="cannot be used as inputs to control flow"):
        al.add_gates(Swallowing(), X)


class ByDropout(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.both(F.dropout(x, 0.5, self.training))


def test_nothing_is_left_behind() -> None:
    net = ByDropout()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    model = al.add_gates(net, X)
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in before.items():
        assert torch.equal(net.state_dict()[name], value)
        assert torch.equal(model.state_dict()[name], value)
    assert all("forward" not in vars(module) for module in model.modules())


class Averaging(nn.Module):
    """Moves an average as people write it, past what torch counts as a change."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.mean: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.data.mul_(0.9).add_(0.1 * x.mean().item())
        return x - self.mean


class ByStatistics(Base):
    """Layers that must be called to be rehearsed: a norm without weights, and an unknown call."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(6, affine=False)
        self.average = Averaging()

    def forward(self, x: Tensor) -> Tensor:
        return torch.cumsum(self.average(self.both(F.dropout(x, 0.5, self.training))), 1)


@pytest.mark.parametrize("mode", [True, False])
def test_no_statistics_move(mode: bool) -> None:
    net = ByStatistics().train(mode)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    model = al.add_gates(net, X + 3)
    for name, value in before.items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=0)
        torch.testing.assert_close(net.state_dict()[name], value, rtol=0, atol=0)


class Leaf(nn.Module):
    """Never gives the same twice."""

    count = 0

    def forward(self, x: Tensor) -> Tensor:
        Leaf.count += 1
        return x * (x.detach().sum().item() + Leaf.count)


def test_what_is_never_the_same_is_not_compared() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3), Leaf())
    model = al.add_gates(net, torch.randn(2, 3))
    assert list(al.width_gates(model)) == ["0"]


class HiddenByZeros(nn.Module):
    """Decides by the class of its input, which no trace sees, behind a layer of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)
        nn.init.zeros_(self.first.weight)
        nn.init.zeros_(self.first.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x))
        return self.last(y * 2 if type(y) is Tensor else y * 3)


def test_weights_of_zero_do_not_hide_another_branch() -> None:
    with pytest.raises(al.TracingError, match="other numbers"):
        al.add_gates(HiddenByZeros(), torch.randn(2, 4))


def test_a_norm_takes_an_example_of_one_row() -> None:
    class OneRow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = F.dropout(torch.relu(self.norm(self.first(x))), 0.5, self.training)
            return self.last(y)

    assert al.width_gates(al.add_gates(OneRow(), torch.randn(1, 4)))


def test_inputs_that_do_not_fit_are_refused() -> None:
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 3))
    with pytest.raises(al.InputError, match="does not run on the example inputs: at '0'") as caught:
        al.add_gates(net, torch.randn(1, 2, 8, 8))
    assert str(caught.value).endswith("on the device and in the dtype of the model")
