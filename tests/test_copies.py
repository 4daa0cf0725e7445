"""A model is copied with whatever its calls left on it, and leaves its inputs alone."""

import pytest
import torch
from torch import Tensor, nn

import archlearn as al
from archlearn.gating import width_gates

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Keeping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last, self.seen = nn.Linear(4, 4), None, list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.layer(x)
        self.seen.append(self.last)
        return self.last


def check_surgery(net: nn.Module) -> None:
    net(X)
    model = al.add_gates(net, X)
    torch.testing.assert_close(model(X), net(X))
    with torch.no_grad():
        next(iter(width_gates(model).values()))[[1, 2]] = 0.0
    model(X)
    torch.testing.assert_close(al.compact(model)(X), model(X))


def test_a_module_that_keeps_what_it_computed() -> None:
    check_surgery(nn.Sequential(Keeping(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)))


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_a_weight_that_is_computed_before_each_call() -> None:
    first = torch.nn.utils.weight_norm(nn.Linear(4, 6))  # pyright: ignore[reportDeprecated]
    check_surgery(nn.Sequential(first, nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)))


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x.mul_(2.0))))


def test_example_inputs_are_left_alone() -> None:
    x = X.clone()
    model = al.add_gates(InPlace(), x)
    al.compact(model)
    al.inspect(InPlace(), x)
    assert torch.equal(x, X)


def test_example_inputs_may_have_been_computed() -> None:
    x = X.clone().requires_grad_() * 2
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    small = al.compact(al.add_gates(net, x))
    torch.testing.assert_close(small(X), net(X))
