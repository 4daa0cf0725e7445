"""Looking at a model leaves it as it is, whatever a part of it does at each call."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import archlearn as al

X = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))


class Wanders(nn.Module):
    """Counts in a buffer and keeps what it has read, in every mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("n_calls", torch.zeros(()))
        self.n_calls: Tensor
        self.seen: list[Tensor] = []

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        self.n_calls += 1
        self.seen.append(x)
        return self.layer(x)


class Net(nn.Module):
    """Something is learnt on both sides of a part that changes itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.part = nn.Linear(6, 12), nn.Linear(12, 8), Wanders()
        self.third, self.norm, self.last = nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.part(self.second(F.relu(self.first(x))))
        return self.last(self.norm(F.relu(self.third(x))))


class Statistics(nn.Module):
    """Statistics move in every mode, by a call without a module."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 12), nn.Linear(12, 2)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("var", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        own: Any = self
        x = F.batch_norm(x, own.mean, own.var, training=True)
        return self.last(F.relu(self.first(x)))


class Pinned(nn.Module):
    """Statistics move in every mode, for the norm is never put into evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Linear(12, 2)

    def train(self, mode: bool = True) -> "Pinned":
        super().train(mode)
        self.norm.train()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.norm(self.first(x))))


class Hooked(Pinned):
    """A hook on a layer of torch's counts in a buffer of another."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = nn.Linear(2, 2)
        self.counted.register_forward_hook(self.count)

    def count(self, *_: object) -> None:
        assert self.norm.num_batches_tracked is not None
        self.norm.num_batches_tracked += 1

    def train(self, mode: bool = True) -> "Hooked":
        nn.Module.train(self, mode)
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.counted(super().forward(x))


def held(model: nn.Module) -> tuple[dict[str, Tensor], int]:
    n_seen = sum(len(m.seen) for m in model.modules() if isinstance(m, Wanders))
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}, n_seen


def assert_held(model: nn.Module, before: tuple[dict[str, Tensor], int]) -> None:
    now = held(model)
    assert now[1] == before[1]
    torch.testing.assert_close(now[0], before[0], rtol=0, atol=0)


def gated(net: nn.Module) -> nn.Module:
    model = al.add_gates(net, X, leaves=[Wanders] if isinstance(net, Net) else [])
    with torch.no_grad():
        for gate in al.width_gates(model).values():
            gate[::2] = 0.1
    return model


@pytest.mark.parametrize("network", [Net, Statistics, Pinned, Hooked])
@pytest.mark.parametrize("certified", [True, False])
def test_surgery_leaves_both_models_as_they_are(network: type[nn.Module], certified: bool) -> None:
    torch.manual_seed(0)
    model = gated(network())
    before = held(model)
    small = al.compact(model, certified=certified)
    al.plan(model)
    al.read_architecture(model)
    al.count_costs(model)
    al.count_costs(nn.Sequential(model, nn.Identity()), X)
    al.inspect(model)
    assert_held(model, before)
    if isinstance(small, Pinned):
        assert small.norm.num_batches_tracked == 0
    if isinstance(model, Net) and isinstance(small, Net):
        assert small.part.n_calls == 0


@pytest.mark.parametrize("network", [Net, Statistics])
def test_models_are_certified_and_counted_without_a_change(network: type[nn.Module]) -> None:
    torch.manual_seed(0)
    net = network()
    before = held(net)
    al.certify(net, net, X)
    al.count_costs(net, X)
    al.inspect(net, X)
    assert_held(net, before)
