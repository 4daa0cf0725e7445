"""What a network costs: the one list that prices, budgets, plans, metrics and reports follow.

A new cost is a field of `Costs` with what it is made of, and its name in `CostName` and `Price`
below. All costs are sums of what is counted anyway, parameters and multiply-adds. Nothing here
imports torch, so that the command line knows its choices before torch is there.
"""

import functools
import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from typing import Any, Literal

CostName = Literal["parameters", "multiply_adds"]
"""What a network costs: prices, budgets and merges choose among these."""
PriceName = Literal["neurons", CostName]


class Price(Enum):
    """What a neuron's price follows."""

    NEURONS = "neurons"
    PARAMETERS = "parameters"
    MULTIPLY_ADDS = "multiply_adds"


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a cost is made of, and how it is told.

    Attributes:
        label: Its unit, as printed.
        per_parameter: What each parameter adds to it.
        per_multiply_add: What each multiply-add adds to it.
        of_one_example: Whether it grows with the batch, and so is told for one example.
        power: The power of it that a channel's earnings are divided by where a budget is on it.
    """

    label: str
    per_parameter: int = 0
    per_multiply_add: int = 0
    of_one_example: bool = False
    power: float = 1.5


def _cost(label: str, **facts: Any) -> Any:
    return field(metadata={"kind": _Kind(label, **facts)})


@dataclass(frozen=True, slots=True)
class Costs:
    """Parameters of a network, and multiply-adds of one run on the example inputs."""

    parameters: int = _cost("parameters", per_parameter=1, power=1.0)
    multiply_adds: int = _cost("multiply-adds", per_multiply_add=1, of_one_example=True)

    @classmethod
    def of(cls, parameters: int, multiply_adds: int) -> "Costs":
        """Return all costs of a network with so many parameters and multiply-adds."""
        return cls(*combine_costs(parameters, multiply_adds))

    def for_one_example(self, n_examples: int) -> "Costs":
        """Return costs of a run on so many examples as they are told: those of one of them."""
        return Costs(**{name: n // unit_of(name, n_examples) for name, n in asdict(self).items()})

    def __str__(self) -> str:
        return write_costs(asdict(self))


_KINDS: dict[str, _Kind] = {cost.name: cost.metadata["kind"] for cost in fields(Costs)}
COSTS = tuple(_KINDS)
LATENCY = "latency"
"""A budget may name this beside: nanoseconds of a run, by a table that was measured."""
_NANOSECONDS = 1_000_000


def combine_costs(parameters: Any, multiply_adds: Any) -> list[Any]:
    """Return each cost of so many parameters and multiply-adds: numbers, or tensors of them."""
    combined: list[Any] = []
    for kind in _KINDS.values():
        parts = (kind.per_parameter, parameters), (kind.per_multiply_add, multiply_adds)
        scaled = [n if rate == 1 else rate * n for rate, n in parts if rate]
        combined.append(functools.reduce(operator.add, scaled))
    return combined


def unit_of(name: str, n_examples: int) -> int:
    """Return what a cost of a run on the example inputs is divided by to be told.

    Multiply-adds are those of one example, and a latency is told in milliseconds.
    """
    if name == LATENCY:
        return _NANOSECONDS
    return n_examples if _KINDS[name].of_one_example else 1


def power_of(name: str) -> float:
    """Return the power of a cost that a channel's earnings are divided by."""
    return _KINDS["multiply_adds" if name == LATENCY else name].power


def label_of(name: str) -> str:
    """Return what a cost is called where people read it."""
    return _KINDS[name].label


def write_costs(costs: Mapping[str, float], share: float | None = None) -> str:
    """Return costs as text; with a share, which is said of the first."""
    words = [f"{n:,.0f} {label_of(name)}" for name, n in costs.items()]
    words[0] += "" if share is None else f" ({share:.1%})"
    return ", ".join(words)
