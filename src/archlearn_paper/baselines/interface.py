"""`Method`: make a trained model smaller, to a number of parameters."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from archlearn.costs import Costs, count_costs
from archlearn.errors import InputError

TOLERANCE = 0.05
"""How far from the budget a model may be, as a share of it."""

Reduce = Callable[[nn.Module, Tensor, int], nn.Module]
"""A trained model, example inputs and a number of parameters in; a smaller model out."""


class BudgetError(InputError):
    """A method cannot bring a model to a number of parameters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduced:
    """A smaller model and what it costs."""

    model: nn.Module
    costs: Costs


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """One way of making a trained model smaller.

    Attributes:
        name: As the command line and the tables have it.
        reduce: Makes the smaller model; it leaves its argument alone.
        is_dense: Whether what comes out is made of torch's ordinary dense layers alone.
        source: Who proposed it.
    """

    name: str
    reduce: Reduce
    is_dense: bool
    source: str

    def prepare(self, model: nn.Module, example: Tensor, budget: int) -> Reduced:
        """Return a model of as many parameters as the budget says, within the tolerance.

        Args:
            model: A trained model; it is left alone.
            example: Inputs of one call.
            budget: The number of parameters wanted.

        Raises:
            BudgetError: If the method cannot come that near.
        """
        made = self.reduce(model, example, budget)
        costs = count_costs(made, example)
        if not is_within(costs.parameters, budget):
            raise BudgetError(
                f"{self.name} was asked for {budget:,} parameters and came to "
                f"{costs.parameters:,}, which is not within {TOLERANCE:.0%}; ask for another budget"
            )
        return Reduced(
            model=made, costs=Costs(costs.parameters, costs.multiply_adds // len(example))
        )


def is_within(parameters: int, budget: int, tolerance: float = TOLERANCE) -> bool:
    """Return whether a number of parameters is near enough to a budget."""
    return abs(parameters - budget) <= tolerance * budget
