"""The penalty is what the paper adds to the loss: binary gates, few neurons, few layers."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import archlearn as al
import archlearn_cli as cli

ALL = al.Strengths(width_cost=3.0, width_binarise=5.0, depth_cost=7.0, depth_binarise=11.0)
NONE: dict[str, float] = {"width_cost": 0.0, "width_binarise": 0.0}
Make = Callable[[list[float], float], nn.Module]
PRICED = (al.Price.PARAMETERS, al.Price.MULTIPLY_ADDS)


def mlp(*sizes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(sizes[:-1]):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1])).double()


def gated_pair(width: list[float], depth: float) -> nn.Module:
    """Return two layers, 3-2-1, with the gates given."""
    model = al.add_gates(mlp(3, 2, 1), torch.zeros(1, 3, dtype=torch.float64))
    return set_(model, {"0": width}, {"0": depth})


@torch.no_grad()
def set_(model: nn.Module, widths: dict[str, list[float]], depths: dict[str, float]) -> nn.Module:
    for name, values in widths.items():
        al.width_gates(model)[name].copy_(torch.tensor(values, dtype=torch.float64))
    for name, value in depths.items():
        al.depth_gates(model)[name].fill_(value)
    return model


def by_hand(width: list[float], depth: float) -> nn.Module:
    site = al.TriState(2).double()
    model = nn.Sequential(nn.Linear(3, 2), site, nn.Linear(2, 1)).double()
    return set_(model, {"1": width}, {"1": depth})


both_ways = pytest.mark.parametrize("make", [gated_pair, by_hand])


@both_ways
@pytest.mark.parametrize(
    ("strength", "expected"),
    [
        ("width_binarise", 0.2 * 0.8 + 0.7 * 0.3),
        ("depth_binarise", 0.3 * 0.7),
        ("width_cost", 0.2 + 0.7),
        ("depth_cost", -0.3),
    ],
)
def test_each_term_alone_worked_by_hand(make: Make, strength: str, expected: float) -> None:
    model = make([0.2, 0.7], 0.3)
    strengths = al.Strengths(**(NONE | {strength: 10.0}))
    assert al.penalty(model, strengths).item() == pytest.approx(10 * expected, rel=1e-12)


@both_ways
def test_all_terms_together_worked_by_hand(make: Make) -> None:
    model = make([0.2, 0.7], 0.3)
    expected = 5 * 0.37 + 11 * 0.21 + 3 * 0.9 - 7 * 0.3
    found = al.penalty(model, ALL)
    assert found.shape == ()
    assert found.item() == pytest.approx(expected, rel=1e-12)


@both_ways
@pytest.mark.parametrize(("depth", "complexity"), [(0.4999, 0.9), (0.5, 0.0), (0.8, 0.0)])
def test_a_linear_layer_does_not_pay_for_its_width(
    make: Make, depth: float, complexity: float
) -> None:
    model = make([0.2, 0.7], depth)
    strengths = al.Strengths(width_cost=3.0, width_binarise=0.0)
    assert al.penalty(model, strengths).item() == pytest.approx(3 * complexity, rel=1e-12)


@both_ways
def test_gradients_worked_by_hand(make: Make) -> None:
    """`λ1(1−2w) + λ3` on a width gate, `λ2(1−2d) − λ4` on a depth gate: no more."""
    model = make([0.2, 0.7], 0.3)
    al.penalty(model, ALL).backward()
    (width,), (depth,) = al.width_gates(model).values(), al.depth_gates(model).values()
    assert width.grad is not None
    assert depth.grad is not None
    assert width.grad.tolist() == pytest.approx([5 * 0.6 + 3, 5 * -0.4 + 3], rel=1e-12)
    assert depth.grad.item() == pytest.approx(11 * 0.4 - 7, rel=1e-12)


@both_ways
def test_the_indicator_is_a_constant_for_the_depth_gate(make: Make) -> None:
    model = make([0.2, 0.7], 0.3)
    al.penalty(model, al.Strengths(width_cost=3.0, width_binarise=1.0)).backward()
    (depth,) = al.depth_gates(model).values()
    assert depth.grad is None or not depth.grad.any()


def test_weights_are_left_alone() -> None:
    model = gated_pair([0.2, 0.7], 0.3)
    al.penalty(model, ALL).backward()
    assert model[0].weight.grad is None


@pytest.mark.parametrize("ratio", [0.2, 0.4, 0.8])
def test_the_pull_turns_where_the_arithmetic_says(ratio: float) -> None:
    """Zero at ½ + λ3/(2λ1) for width and at ½ − λ4/(2λ2) for depth; away from it on both sides."""
    strengths = al.Strengths.from_width_cost(1e-3, ratio)
    turn = 0.5 + ratio / 2
    model = gated_pair([turn, turn - 0.01], 1 - turn)
    al.penalty(model, strengths).backward()
    (width,), (depth,) = al.width_gates(model).values(), al.depth_gates(model).values()
    assert width.grad is not None
    assert depth.grad is not None
    assert width.grad[0].item() == pytest.approx(0, abs=1e-12)
    assert width.grad[1].item() > 1e-6
    assert depth.grad.item() == pytest.approx(0, abs=1e-12)


def test_strengths_from_one_number_worked_by_hand() -> None:
    found = al.Strengths.from_width_cost(3e-4)
    assert found.width_cost == 3e-4
    assert found.width_binarise == pytest.approx(7.5e-4, rel=1e-12)
    assert found.depth_cost == pytest.approx(3e-5, rel=1e-12)
    assert found.depth_binarise == pytest.approx(7.5e-5, rel=1e-12)
    assert found.price is al.Price.NEURONS
    other = al.Strengths.from_width_cost(1.0, 0.2, depth_share=1.0, price=al.Price.PARAMETERS)
    assert (other.width_binarise, other.depth_cost, other.depth_binarise) == (5.0, 1.0, 5.0)
    assert other.price is al.Price.PARAMETERS


def prices(model: nn.Module, price: al.Price) -> list[float]:
    """Return what the penalty asks for one more of each group: its gradient with λ3 alone."""
    model.zero_grad()
    strengths = al.Strengths(width_cost=1.0, width_binarise=0.0, price=price)
    al.penalty(model, strengths).backward()
    found: list[float] = []
    for gate in al.width_gates(model).values():
        assert gate.grad is not None
        assert len(set(gate.grad.tolist())) == 1
        found.append(gate.grad[0].item())
    return found


def mean_one(costs: list[float], sizes: list[int]) -> list[float]:
    mean = sum(c * n for c, n in zip(costs, sizes, strict=True)) / sum(sizes)
    return [cost / mean for cost in costs]


def test_prices_of_lenet_worked_by_hand() -> None:
    """A kernel or row, its bias, and what the next layer reads of it; multiply-adds by places."""
    model = al.add_gates(cli.models.LeNet(), torch.zeros(1, 1, 28, 28))
    sizes = [20, 50, 500]
    parameters = [25 + 1 + 50 * 25, 20 * 25 + 1 + 16 * 500, 800 + 1 + 10]
    macs = [24 * 24 * 25 + 8 * 8 * 25 * 50, 8 * 8 * 25 * 20 + 16 * 500, 800 + 10]
    assert prices(model, al.Price.NEURONS) == [1.0, 1.0, 1.0]
    found = prices(model, al.Price.PARAMETERS)
    assert found == pytest.approx(mean_one(parameters, sizes), rel=1e-5)
    found = prices(model, al.Price.MULTIPLY_ADDS)
    assert found == pytest.approx(mean_one(macs, sizes), rel=1e-5)


def test_prices_follow_the_widths_that_are_kept() -> None:
    model = al.add_gates(mlp(7, 4, 3, 2), torch.zeros(1, 7, dtype=torch.float64))
    assert prices(model, al.Price.PARAMETERS) == pytest.approx(
        mean_one([7 + 1 + 3, 4 + 1 + 2], [4, 3]), rel=1e-6
    )
    set_(model, {"0": [0.9, 0.1, 0.1, 0.6], "2": [0.1, 0.2, 0.7]}, {})
    assert prices(model, al.Price.PARAMETERS) == pytest.approx(
        mean_one([7 + 1 + 1, 2 + 1 + 2], [4, 3]), rel=1e-6
    )
    assert prices(model, al.Price.MULTIPLY_ADDS) == pytest.approx(
        mean_one([7 + 1, 2 + 2], [4, 3]), rel=1e-6
    )


def test_the_binarising_term_has_the_same_price_as_the_neuron() -> None:
    model = al.add_gates(mlp(7, 4, 3, 2), torch.zeros(1, 7, dtype=torch.float64))
    costs = prices(model, al.Price.PARAMETERS)
    model.zero_grad()
    strengths = al.Strengths(width_cost=0.0, width_binarise=1.0, price=al.Price.PARAMETERS)
    al.penalty(model, strengths).backward()
    for gate, cost in zip(al.width_gates(model).values(), costs, strict=True):
        assert gate.grad is not None
        assert gate.grad[0].item() == pytest.approx(cost * (1 - 2 * 0.55), rel=1e-5)


@pytest.mark.parametrize("price", list(al.Price))
def test_gradcheck_agrees(price: al.Price) -> None:
    """Away from the threshold, where the indicator and the current widths do not jump."""
    model = al.add_gates(mlp(4, 3, 3, 2), torch.zeros(1, 4, dtype=torch.float64))
    set_(model, {"0": [0.2, 0.6, 0.9], "2": [0.3, 0.7, 0.8]}, {"0": 0.2, "2": 0.8})
    gates = {**al.width_gates(model), **{f"d{k}": v for k, v in al.depth_gates(model).items()}}
    strengths = al.Strengths(
        width_cost=3.0, width_binarise=5.0, depth_cost=7.0, depth_binarise=11.0, price=price
    )
    assert torch.autograd.gradcheck(lambda *_: al.penalty(model, strengths), tuple(gates.values()))


class Tied(nn.Module):
    """A residual sum: the outputs of `a` and `b` live or die together."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.a(x))
        return self.c(y + torch.relu(self.b(y)))


def test_a_shared_gate_counts_once_for_each_of_its_neurons() -> None:
    model = al.add_gates(Tied(), torch.zeros(1, 3))
    (gate,) = al.width_gates(model).values()
    assert gate.shape == (4,)
    strengths = al.Strengths(width_cost=1.0, width_binarise=0.0)
    assert al.penalty(model, strengths).item() == pytest.approx(2 * 4 * 0.55, rel=1e-6)


def test_gates_that_are_absent_or_fixed_by_hand() -> None:
    site = al.TriState(2, width=al.Gate.FIXED, depth=al.Gate.ABSENT)
    model = nn.Sequential(nn.Linear(3, 2), site, nn.Linear(2, 1))
    found = al.penalty(model, ALL)
    assert found.item() == pytest.approx(5 * 2 * 0.55 * 0.45 + 3 * 2 * 0.55, rel=1e-6)
    assert not found.requires_grad


@pytest.mark.parametrize("name", ["width_cost", "width_binarise", "depth_cost", "depth_binarise"])
@pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf")])
def test_a_strength_that_is_no_number_from_zero_on_is_refused(name: str, value: float) -> None:
    with pytest.raises(al.InputError, match=f"{name} is .*a strength is a number from 0 on"):
        al.Strengths(**(NONE | {name: value}))


@pytest.mark.parametrize("ratio", [0.0, 1.0, -0.4, 1.5, float("nan")])
def test_a_ratio_that_pulls_every_gate_one_way_is_refused(ratio: float) -> None:
    with pytest.raises(al.InputError, match=r"ratio is .*must lie between 0 and 1"):
        al.Strengths.from_width_cost(1e-3, ratio)


def test_a_model_without_gates_is_refused() -> None:
    with pytest.raises(al.InputError, match="has no gates; call add_gates on it first"):
        al.penalty(mlp(3, 2, 1), ALL)


@pytest.mark.parametrize("price", PRICED)
def test_a_price_that_gates_placed_by_hand_cannot_know_is_refused(price: al.Price) -> None:
    strengths = al.Strengths(width_cost=1.0, width_binarise=1.0, price=price)
    with pytest.raises(al.InputError, match="placed by hand knows nothing of its neighbours"):
        al.penalty(by_hand([0.2, 0.7], 0.3), strengths)
