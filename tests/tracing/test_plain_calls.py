"""Products with a parameter are layers, and parts that are cleared in place are zeros."""

import operator
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archlearn as al


class ByHand(nn.Module):
    """Two layers written as products; `turned` weights have a row for each output."""

    def __init__(self, multiply: Callable[[Tensor, Tensor], Tensor], turned: bool) -> None:
        super().__init__()
        shapes = [(8, 5), (3, 8)] if turned else [(5, 8), (8, 3)]
        self.up, self.down = (nn.Parameter(torch.randn(shape)) for shape in shapes)
        self.bias, self.multiply = nn.Parameter(torch.randn(8)), multiply

    def forward(self, x: Tensor) -> Tensor:
        return self.multiply(torch.relu(self.multiply(x, self.up) + self.bias), self.down)


WAYS: list[tuple[Callable[[Tensor, Tensor], Tensor], bool]] = [
    (operator.matmul, False),
    (torch.matmul, False),
    (lambda x, w: x.matmul(w), False),
    (lambda x, w: x @ w.T, True),
    (lambda x, w: x @ w.t(), True),
    (lambda x, w: torch.matmul(x, w.transpose(-1, -2)), True),
    (lambda x, w: F.linear(x, w.t()), False),
    (lambda x, w: torch.einsum("...i,io->...o", x, w), False),
    (lambda x, w: torch.einsum("...i,oi->...o", x, w), True),
    (lambda x, w: torch.einsum("oi,...i->...o", w, x), True),
    (lambda x, w: torch.einsum("abi,io"[3 - x.dim() :], x, w), False),
    (lambda x, w: torch.tensordot(x, w, dims=([-1], [0])), False),
]


class TiedAutoencoder(nn.Module):
    """The decoder's weight is that of the encoder, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.bias = nn.Linear(5, 8), nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.relu(self.encoder(x)), self.encoder.weight.t(), self.bias)


@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 5)])
def test_a_decoder_with_the_weight_of_its_encoder_is_learnt_with_it(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64)
    model = al.add_gates(TiedAutoencoder().double(), x)
    with torch.no_grad():
        al.width_gates(model)["encoder"][::2] = 0.0
    small = al.compact(model)
    torch.testing.assert_close(small(2 * x), model(2 * x), rtol=0, atol=1e-10)
    assert small.get_parameter("encoder.weight").shape == (4, 5)


@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 5)])
@pytest.mark.parametrize(("multiply", "turned"), WAYS)
def test_products_with_a_parameter_are_layers(
    multiply: Callable[[Tensor, Tensor], Tensor],
    turned: bool,
    shape: tuple[int, ...],
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64)
    model = al.add_gates(ByHand(multiply, turned).double(), x)
    gates = al.width_gates(model)
    assert [len(gate) for gate in gates.values()] == [8]
    with torch.no_grad():
        next(iter(gates.values()))[::2] = 0.0
    plan = al.plan(model)
    small = al.compact(model, plan=plan)
    fresh = torch.randn(7, *shape[1:], dtype=torch.float64)
    torch.testing.assert_close(small(fresh), model(fresh), rtol=0, atol=1e-10)
    assert small.get_parameter("up").numel() == 20
    assert al.count_costs(small, x) == plan.after
    al.save(small, tmp_path / "small.safetensors")
    loaded = al.load(tmp_path / "small.safetensors")
    torch.testing.assert_close(
        loaded(x), small(x), rtol=0, atol=1e-12
    )  # einsum adds in its own way


class NoLayer(nn.Module):
    """A product with a parameter that sums over nothing, beside layers."""

    def __init__(self, equation: str) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(5, 8), nn.Linear(8, 4)
        self.weight, self.equation = nn.Parameter(torch.randn(4, 3)), equation

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(torch.relu(self.up(x)))
        y = y if self.equation.startswith("i") else y.sum()
        return torch.einsum(self.equation, y, self.weight)


@pytest.mark.parametrize("equation", ["ii,io->io", ",io->io"])
def test_a_product_with_a_diagonal_or_a_single_number_is_no_layer(equation: str) -> None:
    x = torch.randn(4, 5, dtype=torch.float64)
    model = al.add_gates(NoLayer(equation).double(), x)
    gates = al.width_gates(model)
    assert gates.keys() == {"up"}
    with torch.no_grad():
        gates["up"][::2] = 0.0
    torch.testing.assert_close(al.compact(model)(2 * x), model(2 * x), rtol=0, atol=1e-10)


class UsedTwice(ByHand):
    """The weight is read as it is, too."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.up.sum()


def test_a_parameter_that_is_read_otherwise_stays() -> None:
    with pytest.raises(al.InputError, match="nothing can be learnt"):
        al.add_gates(UsedTwice(operator.matmul, turned=False), torch.randn(4, 5))


class Viewed(nn.Module):
    """Another view of the clone sees that a part of it is cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        bias = self.one.bias.clone()
        view = bias[:6]
        bias[4:6].zero_()
        return self.two(torch.relu(self.one(x)) + bias) + view.sum()


def test_what_is_cleared_in_part_stays_if_another_view_sees_it() -> None:
    with pytest.raises(al.InputError, match="changed in place"):
        al.add_gates(Viewed(), torch.randn(4, 5))
