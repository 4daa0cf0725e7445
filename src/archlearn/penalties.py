"""The penalty is what the paper adds to the loss: binary gates, few neurons, few layers."""

from dataclasses import dataclass
from enum import Enum

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archlearn.errors import InputError
from archlearn.gates import is_open, open_gates
from archlearn.graphs.cost_table import marginal_costs
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
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise InputError(f"{name} is {value}; a strength is a number from 0 on")

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
        width_binarise = width_cost / ratio
        return cls(
            width_cost=width_cost,
            width_binarise=width_binarise,
            depth_cost=depth_share * width_cost,
            depth_binarise=depth_share * width_binarise,
            price=price,
        )


def penalty(model: nn.Module, strengths: Strengths) -> Float[Tensor, ""]:
    """Return what is added to the loss (the paper's equations 4 and 5).

    `λ1 Σ w(1−w) + λ2 Σ d(1−d) + λ3 Σ h·1(d < ½) − λ4 Σ d`. The indicator has no gradient.
    A gate that several layers share counts once for each of their neurons.

    Raises:
        InputError: If the model has no gates.
    """
    terms: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, GateStore):
            terms.append(_price_store(module, strengths))
        elif isinstance(module, TriState):
            terms.extend(_price_by_hand(module, strengths))
    if not terms:
        raise InputError("the model has no gates; call add_gates on it first")
    return torch.stack(terms).sum()


def _price_store(store: GateStore, strengths: Strengths) -> Tensor:
    widths: list[Tensor] = list(store.width_gates().values())
    depths: list[Tensor] = list(store.depth_gates().values())
    total = store.neurons.new_zeros(())
    depth = torch.stack(depths) if depths else None
    if widths:
        width = torch.cat(widths)
        all_neurons, paid = _prices(store, width, depth, strengths.price)
        total = total + strengths.width_binarise * (all_neurons * width * (1 - width)).sum()
        total = total + strengths.width_cost * (paid * width).sum()
    return total if depth is None else total + _price_depth(depth, strengths)


def _price_by_hand(site: TriState, strengths: Strengths) -> list[Tensor]:
    if strengths.price is not Price.NEURONS:
        raise InputError(
            f"price is {strengths.price}, but a TriState placed by hand knows nothing of its "
            "neighbours; use Price.NEURONS, or let add_gates place the gates"
        )
    terms: list[Tensor] = []
    is_linear = torch.tensor(False) if site.depth is None else is_open(site.depth)
    if site.width is not None:
        binarise = strengths.width_binarise * (site.width * (1 - site.width)).sum()
        complexity = site.width.sum() * (~is_linear).to(site.width)
        terms.append(binarise + strengths.width_cost * complexity)
    if site.depth is not None:
        terms.append(_price_depth(site.depth, strengths))
    return terms


def _price_depth(depth: Tensor, strengths: Strengths) -> Tensor:
    binarise = strengths.depth_binarise * (depth * (1 - depth)).sum()
    return binarise - strengths.depth_cost * depth.sum()


@torch.no_grad()
def _prices(
    store: GateStore, width: Tensor, depth: Tensor | None, price: Price
) -> tuple[Tensor, Tensor]:
    """Return the price of each gate with all its neurons, and without those of linear layers."""
    neurons = store.neurons
    paid = neurons
    if depth is not None:
        paid = neurons - store.linear_neurons.T @ is_open(depth).to(neurons.dtype)
    if price is not Price.NEURONS:
        cost = _marginal_price(store, price)
        neurons, paid = cost, cost * paid / neurons
    return neurons[store.group_of_gate].to(width), paid[store.group_of_gate].to(width)


def _marginal_price(store: GateStore, price: Price) -> Tensor:
    table = store.cost_table()
    kept = torch.stack([open_gates(gate).sum() for gate in store.width_gates().values()])
    by_parameters = price is Price.PARAMETERS
    coefficients = table.parameters if by_parameters else table.multiply_adds
    cost = marginal_costs(table, kept.to(coefficients), coefficients)
    return cost / cost[store.group_of_gate].mean()
