"""What `forward` runs under is kept: without gradients, or in a precision of its own."""

import pytest
import torch
from torch import Tensor, nn

import archlearn as al

X = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)


class Frozen(Base):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.layer(x)


class Decorated(Base):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x))


class Wide(Base):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.layer(x.float())


class Asking(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * (2 if torch.is_autocast_enabled("cpu") else 1)


@pytest.mark.parametrize("kind", [Frozen, Decorated])
def test_a_part_without_gradients_stays_without(kind: type[nn.Module]) -> None:
    net = nn.Sequential(kind(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
    with torch.no_grad():
        model = al.add_gates(net, X)
    model(X).sum().backward()
    assert model[0].layer.weight.grad is None
    assert model[1].weight.grad is not None
    torch.testing.assert_close(model(X), net(X))


@pytest.mark.parametrize("kind", [Wide, Asking])
def test_a_part_with_a_precision_of_its_own_keeps_it(kind: type[nn.Module]) -> None:
    net = nn.Sequential(kind(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
    model = al.add_gates(net, X)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(model[0](X), net[0](X), rtol=0, atol=0)
        torch.testing.assert_close(model(X), net(X), rtol=0.05, atol=0.05)
    assert "autocast" in al.inspect(net, X).opaque["0"]


@pytest.mark.parametrize(
    ("kind", "why"), [(Frozen, "without gradients"), (Wide, "autocast"), (Asking, "autocast")]
)
def test_a_model_that_does_so_itself_is_refused(kind: type[nn.Module], why: str) -> None:
    with pytest.raises(al.TracingError, match=why):
        al.add_gates(kind(), X)
    assert torch.is_autocast_enabled.__name__ == "is_autocast_enabled"
