"""`penalty` and `Strengths`: what each gate adds to the loss (the paper's equations 4 and 5)."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from archlearn.analysis.cost_model import marginal_costs
from archlearn.costs import COSTS, Price, combine_costs
from archlearn.errors import LARGEST, InputError, check_kind, lies_in
from archlearn.gating.gate_container import GateContainer
from archlearn.gating.parameters import find_holders
from archlearn.nn.functional import THRESHOLD, is_open, join_gates, open_flat
from archlearn.nn.tristate_activation import TriState

_NUMBERS = ("width_cost", "width_binarise", "depth_cost", "depth_binarise")


@dataclass(frozen=True, kw_only=True, slots=True)
class Strengths:
    """How hard each term of the penalty pulls.

    Attributes:
        width_cost: Price of each kept neuron (the paper's lambda 3).
        width_binarise: Push of each width gate towards 0 or 1 (lambda 1).
        depth_cost: Pull of each depth gate towards a linear layer (lambda 4).
        depth_binarise: Push of each depth gate towards 0 or 1 (lambda 2).
        price: Whether every neuron has the same price (the paper), or one that follows the
            parameters or multiply-adds that go with it at the current widths, mean one.
    """

    width_cost: float
    width_binarise: float
    depth_cost: float = 0.0
    depth_binarise: float = 0.0
    price: Price = Price.NEURONS

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            _check_strength(name, getattr(self, name))
            object.__setattr__(self, name, float(getattr(self, name)))  # it may be a tensor
        if not isinstance(self.price, Price):  # pyright: ignore[reportUnnecessaryIsInstance]
            prices = ", ".join(map(str, Price))
            raise InputError(f"price is {self.price!r}; give {prices}")

    def numbers(self) -> tuple[float, ...]:
        """Return the four strengths."""
        return (self.width_cost, self.width_binarise, self.depth_cost, self.depth_binarise)

    @classmethod
    def from_width_cost(
        cls,
        width_cost: float,
        ratio: float = 0.4,
        *,
        depth_share: float = 0.1,
        price: Price = Price.NEURONS,
    ) -> "Strengths":
        """Return all four strengths from one, as the paper's supplement advises.

        Args:
            width_cost: The price of a neuron (lambda 3).
            ratio: Lambda 3 over lambda 1, between 0 and 1; the paper used 0.4 and 0.2.
            depth_share: Lambda 2 over lambda 1, and lambda 4 over lambda 3.
            price: What a neuron's price follows.
        """
        if not lies_in(ratio, 0, 1) or ratio in (0, 1):
            raise InputError(
                f"ratio is {ratio!r}; it must lie between 0 and 1, or every gate is pulled one way"
            )
        _check_strength("width_cost", width_cost)
        _check_strength("depth_share", depth_share)
        width_binarise = width_cost / ratio
        return cls(
            width_cost=width_cost,
            width_binarise=width_binarise,
            depth_cost=depth_share * width_cost,
            depth_binarise=depth_share * width_binarise,
            price=price,
        )


def _check_strength(name: str, value: Any) -> None:
    if not lies_in(value, 0, LARGEST):
        raise InputError(f"{name} is {value!r}; a strength is a number from 0 on")


def gate_coefficients(
    container: GateContainer, gates: Tensor, strengths: Strengths
) -> tuple[Tensor, Tensor]:
    """Return what each gate pays now: `linear` and `quadratic` in `g·(linear + quadratic·g)`.

    The first is `a + b`, what pushes a gate towards 0 or 1 and what it costs, the second `−a`. None
    of it has a gradient.
    """
    neurons, pull = container.numbers("prices", gates.dtype)
    is_depth = pull.abs()
    freed = container.numbers("freed_neurons", gates.dtype)
    price, paid = neurons, neurons
    if len(freed):
        others = gates[container.n_width :] >= THRESHOLD
        is_gone = others ^ (
            pull[container.n_width :] < 0
        )  # a branch is gone where its gate is closed
        freed = torch.mv(freed.T, is_gone.to(freed.dtype))
        paid = (neurons - freed.index_select(0, container.group_of_gate)).clamp(min=0.0)
    if strengths.price is not Price.NEURONS:
        marginal = F.pad(_marginal_price(container, gates, strengths.price), (0, 1))
        price = marginal.index_select(0, container.group_of_gate)
        paid = price * (paid / (neurons + is_depth))
    width_push = price * -strengths.width_binarise
    quadratic = torch.sub(width_push, is_depth, alpha=strengths.depth_binarise)
    linear = torch.sub(paid * strengths.width_cost, quadratic)
    return torch.sub(linear, pull, alpha=strengths.depth_cost), quadratic


def _marginal_price(container: GateContainer, gates: Tensor, price: Price) -> Tensor:
    """Return what one more channel of each group costs at the current widths, mean one."""
    table = container.cost_table(gates.dtype)
    combined = combine_costs(table.parameters, table.multiply_adds)
    coefficients: Tensor = combined[COSTS.index(price.value)]
    groups = container.group_of_gate[: container.n_width]
    opened = open_flat(gates[: container.n_width], container.rows, container.pairs).to(
        coefficients.dtype
    )
    kept = gates.new_zeros(len(container.rows)).index_add_(0, groups, opened)
    cost = marginal_costs(table, kept, coefficients)
    return cost / cost[groups].mean()


def penalty(model: nn.Module, strengths: Strengths) -> Float[Tensor, ""]:
    """Return what is added to the loss (the paper's equations 4 and 5).

    `λ1 Σ w(1−w) + λ2 Σ d(1−d) + λ3 Σ h·1(d < ½) − λ4 Σ d`. The indicator has no gradient.
    A gate that several layers share counts once for each of their neurons. A branch gate b costs
    `λ2 b(1−b) + λ4 b`, and neurons of a closed branch cost nothing, as in a linear layer.

    Raises:
        InputError: If the model has no gates.
    """
    advice = "give archlearn.Strengths, such as Strengths.from_width_cost(1e-3)"
    check_kind("strengths", strengths, Strengths, advice)
    terms: list[Tensor] = []
    for holder in find_holders(model):
        if isinstance(holder, GateContainer):
            terms.append(_price_container(holder, strengths))
        else:
            terms.extend(_price_by_hand(holder, strengths))
    return terms[0] if len(terms) == 1 else torch.stack(terms).sum()


def _price_container(container: GateContainer, strengths: Strengths) -> Tensor:
    """Return the penalty of all gates `g` of a container at once, as `Σ g·(a + b − a·g)`.

    For a width gate `a` is λ1 times its neurons (or their price), and `b` is λ3 times those that
    are not linear; for a depth gate they are λ2 and −λ4, for a branch gate λ2 and λ4. Neither has
    a gradient.
    """
    gates = _in_single(join_gates(container.gates()))
    linear, quadratic = gate_coefficients(container, gates.detach(), strengths)
    return torch.dot(gates, torch.addcmul(linear, quadratic, gates))


def _in_single(gates: Tensor) -> Tensor:
    """Return gates in float32 at least: in half precision sums and costs may be infinite."""
    return gates if gates.dtype is torch.float64 else gates.float()


def _price_by_hand(site: TriState, strengths: Strengths) -> list[Tensor]:
    if strengths.price is not Price.NEURONS:
        raise InputError(
            f"price is {strengths.price}, but a TriState placed by hand knows nothing of its "
            "neighbours; use Price.NEURONS, or let add_gates place the gates"
        )
    terms: list[Tensor] = []
    is_linear = torch.tensor(False, device="cpu") if site.depth is None else is_open(site.depth)
    if site.width is not None:
        width = _in_single(site.width)
        binarise = strengths.width_binarise * (width * (1 - width)).sum()
        complexity = width.sum() * (~is_linear).to(width)
        terms.append(binarise + strengths.width_cost * complexity)
    if site.depth is not None:
        depth = _in_single(site.depth)
        binarise = strengths.depth_binarise * depth * (1 - depth)
        terms.append(binarise - strengths.depth_cost * depth)
    return terms
