"""Budgets: what is asked for, as numbers, and whether it can be reached."""

import math
import re
from collections.abc import Mapping
from typing import Any

from archlearn.errors import InputError, with_article
from archlearn.gating.penalty_prices import COSTS, LATENCY, unit_of

Budget = Mapping[str, "float | str"]
_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


def read_budget(budget: Budget, start: Mapping[str, float], n_examples: int) -> dict[str, float]:
    """Return a budget as numbers for one run on the example inputs.

    Args:
        budget: For "parameters", "multiply_adds" (of one example), "latency" (milliseconds of a
            run) or several: a number, or a percentage of the start such as "50%".
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
    known = (*COSTS, LATENCY)
    unknown = [name for name in budget if name not in known]
    if unknown:
        raise InputError(f"budget names {unknown[0]!r}; choose among {', '.join(known)}")
    return {
        name: _amount(name, value, start[name], unit_of(name, n_examples))
        for name, value in budget.items()
    }


def _amount(name: str, value: Any, start: float, n_rows: int) -> float:
    percent = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if percent is not None:
        share = float(percent[1])
        if not 0 < share <= 100:
            raise InputError(f"budget for {name} is {value!r}; give from 0% to 100%")
        asked = start * share / 100
        return asked if name == LATENCY else float(math.floor(asked))
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number <= 0 or (name != LATENCY and number < 1):
        least = "above 0, in milliseconds" if name == LATENCY else "from 1 on"
        hint = f'; for a share write "{100 * number:g}%"' if 0 < number < 1 else ""
        raise InputError(
            f"budget for {name} is {value!r}; give a number {least}, or a percentage such "
            f'as "50%"{hint}'
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
            costs = [
                each / unit_of(name, n_examples) for each in (limit, least[name], present[name])
            ]
            asked_for, left, now = (
                f"{cost:,.3g} ms" if name == LATENCY else f"{cost:,.0f}" for cost in costs
            )
            raise InputError(
                f"a budget of {asked_for} {name} cannot be reached: with every gate closed that "
                f"may close, {left} are left of the present {now}; ask for more, protect less, or "
                "see archlearn.inspect(model) for what is not learnt and why"
            )
