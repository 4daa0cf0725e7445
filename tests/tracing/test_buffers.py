"""Parameters and buffers are followed like inputs; their shapes are what they are."""

import math
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import archlearn as al

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)
        self.register_buffer("table", torch.rand(3, 4))
        self.table: Tensor
        self.scales = nn.Parameter(torch.rand(3, 1))

    def both(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)))


class ByRange(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.both(sum((x * self.table[i] for i in range(self.table.shape[0])), x))


class ByLength(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.both(x * len(self.table) + int(self.scales.size(0) ** 0.5))


class ByRows(Base):
    def forward(self, x: Tensor) -> Tensor:
        for row, scale in zip(self.table, self.scales, strict=True):
            x = x + row * scale
        return self.both(x)


class ByBranch(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.both(x * 2 if self.table.shape[1] == 4 and self.table.dim() == 2 else x)


@pytest.mark.parametrize("kind", [ByRange, ByLength, ByRows, ByBranch])
@pytest.mark.parametrize("is_inner", [False, True])
def test_shapes_of_the_model_itself_are_known(kind: type[nn.Module], is_inner: bool) -> None:
    net = nn.Sequential(kind()) if is_inner else kind()
    model = al.add_gates(net.double(), X.double())
    assert not al.inspect(model).opaque
    torch.testing.assert_close(model(X.double()), net(X.double()))
    with torch.no_grad():
        next(iter(al.width_gates(model).values()))[[0, 3]] = 0.0
    small = al.compact(model)
    x = torch.randn(5, 4, dtype=torch.float64)
    torch.testing.assert_close(small(x), model(x), rtol=1e-10, atol=1e-10)


def test_a_buffer_that_is_loaded_is_used() -> None:
    net = ByRows()
    model = al.add_gates(net, X)
    for each in (net, model):
        each.table = torch.ones(3, 4)
    torch.testing.assert_close(model(X), net(X))


class _RegistersLate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "scale"):
            self.register_buffer("scale", torch.ones(6))
        return x * self.scale


def test_a_buffer_that_the_first_call_registers_is_named_with_what_to_do() -> None:
    net = nn.Sequential(nn.Linear(4, 6), _RegistersLate(), nn.ReLU(), nn.Linear(6, 2))
    with pytest.raises(al.TracingError, match=r"register '1.scale' in __init__, not in forward"):
        al.add_gates(net, torch.randn(3, 4))


class _SetsMean(Base):
    """SwinIR's way to have the mean of an image where the image is."""

    def forward(self, x: Tensor) -> Tensor:
        self.table = self.table.type_as(x)
        x = x - self.table
        return self.both(x if x.shape[1] == 4 else x[:, :4])


def test_shapes_are_known_behind_a_buffer_that_forward_sets() -> None:
    net = _SetsMean()
    model = al.add_gates(net, X)
    torch.testing.assert_close(model(X), net(X))


class _Windows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        n_batch = int(x.shape[0] / 1.0)
        return self.last(self.act(self.first(x))).view(n_batch, -1)


class _Mean(_Windows):
    def __init__(self, sqrt: Callable[[int], Any] = numpy.sqrt) -> None:
        super().__init__()
        self.sqrt = sqrt

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.first(x))) / self.sqrt(x.shape[0])


@pytest.mark.parametrize(
    ("kind", "advice"),
    [(_Windows, r"write int\(a / b\) as a // b"), (_Mean, r"np\.sqrt\(a\).* as those of math")],
)
def test_a_number_of_the_batch_is_named_with_what_to_do(kind: type[nn.Module], advice: str) -> None:
    with pytest.raises(al.TracingError, match=f"the size of the batch.*{advice}"):
        al.add_gates(kind(), X)


def test_functions_of_math_take_the_size_of_the_batch() -> None:
    net = _Mean(lambda n: math.sqrt(n))
    torch.testing.assert_close(al.add_gates(net, X)(X[:1]), net(X[:1]))
