"""`Strengths` and `Price`: coefficients of the penalty, and what a neuron pays for."""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, get_args

from archlearn.errors import LARGEST, InputError, lies_in

CostName = Literal["parameters", "multiply_adds"]
"""What a network costs: prices, budgets and merges choose among these."""
PriceName = Literal["neurons", CostName]
COSTS: tuple[CostName, ...] = get_args(CostName)
LATENCY = "latency"
"""A budget may name this beside: nanoseconds of a run, by a table that was measured."""
_NANOSECONDS = 1_000_000
_NUMBERS = ("width_cost", "width_binarise", "depth_cost", "depth_binarise")


class Price(Enum):
    """What a neuron's price follows."""

    NEURONS = "neurons"
    PARAMETERS = "parameters"
    MULTIPLY_ADDS = "multiply_adds"


def unit_of(name: str, n_examples: int) -> int:
    """Return what a cost of a run on the example inputs is divided by to be told.

    Multiply-adds are those of one example, and a latency is told in milliseconds.
    """
    return {"multiply_adds": n_examples, LATENCY: _NANOSECONDS}.get(name, 1)


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
            known = ", ".join(map(str, Price))
            raise InputError(f"price is {self.price!r}; give {known}")

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
