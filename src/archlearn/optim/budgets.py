"""Budgets: what is asked for, as numbers, and whether it can be reached."""

import math
import re
from collections.abc import Mapping
from typing import Any

from archlearn.errors import InputError, with_article
from archlearn.gating.penalty_prices import COSTS, count_rows

Budget = Mapping[str, "float | str"]
_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


def read_budget(budget: Budget, start: Mapping[str, float], n_examples: int) -> dict[str, float]:
    """Return a budget as numbers for one run on the example inputs.

    Args:
        budget: For "parameters", "multiply_adds" (of one example) or both: a number, or a
            percentage of the start such as "50%".
        start: The costs of the network with all gates open.
        n_examples: The number of rows of the example inputs.

    Raises:
        InputError: If it is not such a budget.
    """
    if not isinstance(budget, Mapping) or not budget:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(
            f"budget is {with_article(type(budget).__name__)}; give a dict, such as "
            '{"multiply_adds": "50%"} or {"parameters": 10_000}'
        )
    unknown = [name for name in budget if name not in COSTS]
    if unknown:
        raise InputError(f"budget names {unknown[0]!r}; choose among {' and '.join(COSTS)}")
    return {
        name: _amount(name, value, start[name], count_rows(name, n_examples))
        for name, value in budget.items()
    }


def _amount(name: str, value: Any, start: float, n_rows: int) -> float:
    percent = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if percent is not None:
        share = float(percent[1])
        if not 0 < share <= 100:
            raise InputError(f"budget for {name} is {value!r}; give from 0% to 100%")
        return float(math.floor(start * share / 100))
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number < 1:
        hint = f'; for a share write "{100 * number:g}%"' if 0 < number < 1 else ""
        raise InputError(
            f"budget for {name} is {value!r}; give a number from 1 on, or a percentage such as "
            f'"50%"{hint}'
        )
    return number * n_rows


def check_reachable(
    asked: Mapping[str, float],
    least: Mapping[str, float],
    present: Mapping[str, float],
    n_examples: int,
) -> None:
    """Raise if a budget is below what the smallest network costs.

    Raises:
        InputError: With the least, the present and the asked cost.
    """
    for name, limit in asked.items():
        if limit < least[name]:
            rows = count_rows(name, n_examples)
            raise InputError(
                f"a budget of {limit / rows:,.0f} {name} cannot be reached: with every gate closed "
                f"that may close, {least[name] / rows:,.0f} are left of the present "
                f"{present[name] / rows:,.0f}; ask for more, protect less, or see "
                "archlearn.inspect(model) for what is not learnt and why"
            )
