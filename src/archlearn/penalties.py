"""The penalty is what the paper adds to the loss: binary gates, few neurons, few layers."""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from archlearn.errors import LARGEST, InputError, lies_in, with_article
from archlearn.gates import THRESHOLD, is_open, join_gates, open_flat
from archlearn.gating import find_holders
from archlearn.graphs.cost_table import marginal_costs
from archlearn.hard_concrete import count_expected
from archlearn.stores import GateStore
from archlearn.tristate import TriState


class Price(Enum):
    """What a neuron's price follows."""

    NEURONS = "neurons"
    PARAMETERS = "parameters"
    MULTIPLY_ADDS = "multiply_adds"


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
        for name in ("width_cost", "width_binarise", "depth_cost", "depth_binarise"):
            _check_strength(name, getattr(self, name))
        if not isinstance(self.price, Price):  # pyright: ignore[reportUnnecessaryIsInstance]
            known = ", ".join(map(str, Price))
            raise InputError(f"price is {self.price!r}; give {known}")

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
        if not 0 < ratio < 1:
            raise InputError(
                f"ratio is {ratio}; it must lie between 0 and 1, or every gate is pulled one way"
            )
        _check_strength("width_cost", width_cost)
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


def penalty(model: nn.Module, strengths: Strengths) -> Float[Tensor, ""]:
    """Return what is added to the loss (the paper's equations 4 and 5).

    `λ1 Σ w(1−w) + λ2 Σ d(1−d) + λ3 Σ h·1(d < ½) − λ4 Σ d`. The indicator has no gradient.
    A gate that several layers share counts once for each of their neurons. Gates of the kind
    "l0" cost `λ3` times the neurons that are to be expected, and are not pushed towards 0 or 1.

    Raises:
        InputError: If the model has no gates.
    """
    if not isinstance(strengths, Strengths):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(
            f"strengths is {with_article(type(strengths).__name__)}; give archlearn.Strengths, "
            "such as Strengths.from_width_cost(1e-3)"
        )
    terms: list[Tensor] = []
    for holder in find_holders(model):
        if isinstance(holder, GateStore):
            terms.append(_price_store(holder, strengths))
        else:
            terms.extend(_price_by_hand(holder, strengths))
    return terms[0] if len(terms) == 1 else torch.stack(terms).sum()


def _price_store(store: GateStore, strengths: Strengths) -> Tensor:
    """Return the penalty of all gates `g` of a store at once, as `Σ g·(a + b − a·g)`.

    For a width gate `a` is λ1 times its neurons (or their price), and `b` is λ3 times those that
    are not linear; for a depth gate they are λ2 and −λ4. Neither has a gradient. Of width gates
    of the kind "l0", `g` is the probability to be open, and `a` is 0.
    """
    gates = join_gates(store.gates())
    gates = _in_single(gates)
    if store.kind == "l0":
        strengths = replace(strengths, width_binarise=0.0)
    with torch.no_grad():
        binarise, together = _prices(store, gates.detach(), strengths)
    if store.kind == "l0":
        width, depth = gates.tensor_split([store.n_width])
        gates = torch.cat([count_expected(width), depth])
    return torch.dot(gates, together - binarise * gates)


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
    is_linear = torch.tensor(False) if site.depth is None else is_open(site.depth)
    if site.width is not None:
        width = _in_single(site.width)
        binarise = strengths.width_binarise * (width * (1 - width)).sum()
        complexity = width.sum() * (~is_linear).to(width)
        terms.append(binarise + strengths.width_cost * complexity)
    if site.depth is not None:
        terms.append(_price_depth(_in_single(site.depth), strengths))
    return terms


def _price_depth(depth: Tensor, strengths: Strengths) -> Tensor:
    binarise = strengths.depth_binarise * depth * (1 - depth)
    return binarise - strengths.depth_cost * depth


def _prices(store: GateStore, gates: Tensor, strengths: Strengths) -> tuple[Tensor, Tensor]:
    """Return `a` and `a + b` for each gate."""
    linear, is_depth = (store.numbers(n, gates.dtype) for n in ("linear_neurons", "is_depth"))
    has_depth = len(linear) > 0
    neurons = paid = store.numbers("neurons", gates.dtype)
    if has_depth:
        is_linear = (gates[store.n_width :] >= THRESHOLD).to(neurons.dtype)
        paid = torch.addmv(neurons, linear.T, is_linear, alpha=-1)
    if strengths.price is not Price.NEURONS:
        share = paid[:-1] / neurons[:-1]
        neurons = F.pad(_marginal_price(store, gates, strengths.price), (0, 1))
        paid = neurons * F.pad(share, (0, 1))
    binarise = neurons * strengths.width_binarise
    if has_depth:
        binarise = binarise.add_(is_depth, alpha=strengths.depth_binarise)
    together = torch.add(binarise, paid, alpha=strengths.width_cost)
    if has_depth:
        together = together.sub_(is_depth, alpha=strengths.depth_cost)
    found = torch.stack([binarise, together]).index_select(1, store.group_of_gate)
    return found[0], found[1]


def _marginal_price(store: GateStore, gates: Tensor, price: Price) -> Tensor:
    """Return what one more channel of each group costs at the current widths, mean one."""
    table = store.cost_table(gates.dtype)
    by_parameters = price is Price.PARAMETERS
    coefficients = table.parameters if by_parameters else table.multiply_adds
    groups = store.group_of_gate[: store.n_width]
    opened = open_flat(gates[: store.n_width], store.rows).to(coefficients.dtype)
    kept = gates.new_zeros(len(store.rows)).index_add_(0, groups, opened)
    cost = marginal_costs(table, kept, coefficients)
    return cost / cost[groups].mean()
