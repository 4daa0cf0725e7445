"""What a model asks of its own tensors, their class and what was noted on them, is answered."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archlearn as al


class Scale(nn.Parameter):
    """A parameter of the user's own class."""


class Table(Tensor):
    """A tensor of the user's own class, which can be copied as torchvision's can."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Table":
        return memo.setdefault(id(self), self.detach().clone().as_subclass(Table))


class Net(nn.Module):
    """Two layers, and tensors between them; subclasses ask about these."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.rand(8) + 1)
        self.register_buffer("table", torch.rand(8) + 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(torch.relu(self.first(x))))

    def between(self, h: Tensor) -> Tensor:
        raise NotImplementedError


class OfTorch(Net):
    def between(self, h: Tensor) -> Tensor:
        h = h * self.scale if isinstance(self.scale, nn.Parameter) else h
        h = h * self.table if isinstance(self.table, Tensor) else h
        return h + 1 if isinstance(self.table, nn.Parameter) or isinstance(h, nn.Parameter) else h


class OwnParameter(Net):
    def __init__(self) -> None:
        super().__init__()
        self.scale = Scale(torch.rand(8) + 1)

    def between(self, h: Tensor) -> Tensor:
        return h * self.scale if isinstance(self.scale, Scale) else h


class OwnBuffer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", (torch.rand(8) + 1).as_subclass(Table))

    def between(self, h: Tensor) -> Tensor:
        return h * self.table if isinstance(self.table, Table) else h


class Noted(Net):
    """Tensors have notes, as weights have that an optimiser is not to let decay."""

    def __init__(self) -> None:
        super().__init__()
        self.scale.is_used, self.scale.factor = True, 3.0  # pyright: ignore
        self.register_buffer("table", torch.rand(8).double())  # a cast would lose what is noted
        self.table.shift = 0.5  # pyright: ignore

    def between(self, h: Tensor) -> Tensor:
        if getattr(self.scale, "is_used", False) and not hasattr(self.first.weight, "is_used"):
            h = h * self.scale * self.scale.factor + self.table * self.table.shift  # pyright: ignore
        return h


class Casting(Net):
    """Casts in the old way, by a class of tensors."""

    def between(self, h: Tensor) -> Tensor:
        return h.type(torch.DoubleTensor) * self.scale


@pytest.mark.parametrize("network", [OfTorch, OwnParameter, OwnBuffer, Noted, Casting])
def test_a_class_and_notes_of_the_models_own_tensors_are_known(network: type[Net]) -> None:
    torch.manual_seed(0)
    net, x = network().double(), torch.randn(3, 4, dtype=torch.float64)
    model = al.add_gates(net, x)
    torch.testing.assert_close(model(x), net(x), rtol=0, atol=1e-12)
    with torch.no_grad():
        al.width_gates(model)["first"][:3] = 0.0
    small = al.compact(model)
    assert small.first.out_features == 5
    torch.testing.assert_close(small(x), model(x), rtol=0, atol=1e-9)
    for each in (model, small):
        assert type(each.scale) is type(net.scale)
        assert type(each.table) is type(net.table)
        assert (vars(each.scale), vars(each.table)) == (vars(net.scale), vars(net.table))


class Wrapping(Net):
    def between(self, h: Tensor) -> Tensor:
        return h.as_subclass(Table)


def test_a_class_that_a_call_is_given_is_named() -> None:
    with pytest.raises(al.TracingError, match="cannot hold the class Table"):
        al.add_gates(Wrapping(), torch.randn(3, 4))
