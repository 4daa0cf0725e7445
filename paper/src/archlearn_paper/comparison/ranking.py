"""Who is first at each budget, and by how much: checks and tables."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import mode
from typing import Any

from archlearn_paper import bounds, statistics, tables
from archlearn_paper.baselines.parameter_budget import BUDGET_TOLERANCE, BudgetError, is_within
from archlearn_paper.comparison import methods
from archlearn_paper.experiment import Derived, Row
from archlearn_paper.tables import NOTHING, Column, counts_in, make_table, write_spread

LARGE = "large network"
UNTUNED = "svd, not fine-tuned"
SIGNIFICANT = 0.05
NEAR = 1.5
_KIN = (methods.SCRATCH,)
"""Rows that owe their architecture to this package: shown, but no rivals."""


def name_result(method: str, budget: int) -> str:
    """Return the row of what a method came to at a budget."""
    return f"{method} @ {budget}"


class MethodRanking:
    """Judges the rows of a comparison."""

    def __init__(self, budgets: Sequence[int], asked: Sequence[methods.Method]) -> None:
        self._budgets = budgets
        self._methods = asked
        names = [method.name for method in asked]
        self._names = [*names, *([UNTUNED] if "svd" in names else []), methods.SCRATCH]

    def derive(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Return what each method came to at each budget, and who was first."""
        groups = statistics.group([row for row in rows if row.seed != methods.CALIBRATION_SEED])
        results: dict[str, dict[str, Any]] = {}
        for method in self._names:
            by_budget = {b: groups.get(name_result(method, b)) for b in self._budgets}
            results[method] = {
                str(budget): self._describe(method, budget, members, groups)
                for budget, members in by_budget.items()
                if members
            }
        if not any(results.values()):
            names = ", ".join(method.name for method in self._methods)
            budgets = " or ".join(f"{budget:,}" for budget in self._budgets)
            raise BudgetError(f"none of {names} reaches {budgets} parameters; ask for more")
        ranks: dict[str, list[str]] = {}
        for budget in map(str, self._budgets):
            there = [method for method, numbers in results.items() if budget in numbers]
            ranks[budget] = sorted(there, key=lambda m: -results[m][budget]["accuracy"]["mean"])
        search, left = self._count_search(rows), [row.measured.get("left") for row in rows]
        sizes = sorted(size for size in left if size is not None)
        return {"results": results, "ranks": ranks, "search": search, "l0_sizes": sizes}

    def _describe(
        self, method: str, budget: int, members: Sequence[Row], groups: Mapping[str, list[Row]]
    ) -> dict[str, Any]:
        starts = _spent([groups[name] for name in groups if name.startswith(f"{method}, strength")])
        rounds = f"{name_result(method, budget)}, round"
        before = _spent([groups[name] for name in groups if name.startswith(rounds)])
        if any(c.is_pruning and c.name == method for c in self._methods):
            before += _spent([groups.get(LARGE, [])])
        # Of the first parts at several strengths one belongs to each run; rounds all do.
        first = sum(starts) / max(1, len(starts))
        seconds = first + sum(before) + sum(_spent([members]))
        return {
            **statistics.summarise_rows(members),
            "by_seed": {str(row.seed): row.accuracy for row in members},
            "seconds": seconds,
            "is_dense": next((c.is_dense for c in self._methods if c.name == method), True),
            "within": all(is_within(row.parameters, budget) for row in members),
        }

    def _count_search(self, rows: Sequence[Row]) -> dict[str, dict[str, int]]:
        """Return the runs and epochs that choosing strengths took, by method."""
        counts: dict[str, dict[str, int]] = {}
        for method in self._methods:
            first = f"{method.name}, strength"
            tried = [row for row in rows if row.seed == methods.CALIBRATION_SEED]
            spent = [row for row in tried if row.row.startswith(first)]
            if spent and method.is_pruning:
                spent += [row for row in tried if row.row == LARGE]
            counts[method.name] = {"runs": len(spent), "epochs": sum(row.epochs for row in spent)}
        return counts

    def check(self, derived: Derived) -> list[bounds.Check]:
        """Return whether ours is ahead of its best rival at every budget, seed by seed."""
        if methods.OURS not in derived["results"]:
            return []
        checks = _check_ahead(derived)
        far = [
            f"{method} at {int(budget):,}"
            for method, by_budget in derived["results"].items()
            for budget, numbers in by_budget.items()
            if not numbers["within"]
        ]
        return [
            *checks,
            bounds.Check(
                what="every network is at its budget",
                measured=", ".join(far) or "all are",
                bound=f"± {BUDGET_TOLERANCE:.0%}",
                met=not far,
            ),
            *([_check_l0_sizes(derived)] if derived.get("l0_sizes") else []),
        ]

    def tabulate(self, derived: Derived) -> list[tables.Table]:
        """Return accuracies by method and budget, what each took, and how ours compares."""
        results, sources = derived["results"], {m.name: m.source for m in self._methods}

        def write(budget: str) -> Callable[[str], str]:
            return lambda method: _write(results[method].get(budget), derived, budget)

        def search(method: str) -> str:
            spent = derived["search"].get(method, {"runs": 0})
            runs = f"{spent['runs']} runs, {spent.get('epochs', 0):,} epochs"
            return runs if spent["runs"] else NOTHING

        def join(form: Callable[[Any], str]) -> Callable[[str], str]:
            return lambda method: "; ".join(form(numbers) for numbers in results[method].values())

        accuracies: list[Column] = [
            ("method", str),
            *((f"{budget:,} parameters", write(str(budget))) for budget in self._budgets),
        ]
        costs: list[Column] = [
            ("method", str),
            ("from", lambda method: sources.get(method, NOTHING)),
            (
                "dense plain model",
                lambda m: "yes" if next(iter(results[m].values()))["is_dense"] else "no",
            ),
            ("parameters at each budget", join(counts_in("parameters"))),
            ("multiply-adds", join(counts_in("multiply_adds"))),
            ("seconds of training, side by side with others", join("{seconds:.0f}".format_map)),
            ("search for its strength, for all seeds together", search),
        ]
        title = (
            "Test accuracy, %. Bold: the highest mean; whether it is ahead is told below. A dash: "
            "the method cannot reach the budget. Seeds are told where they are not as many as most "
            "methods have."
        )
        shown = [method for method in self._names if results.get(method)]
        tables = [make_table(shown, accuracies, title), make_table(shown, costs)]
        others = [method for method in shown if method != methods.OURS]
        if methods.OURS not in shown or not others:
            return tables

        def lead(budget: str) -> Callable[[str], str]:
            ours = results[methods.OURS].get(budget, {"by_seed": {}})["by_seed"]
            return lambda method: _write_lead(ours, results[method].get(budget))

        leads: list[Column] = [
            ("method", str),
            *((f"{budget:,} parameters", lead(str(budget))) for budget in self._budgets),
        ]
        title = f"Points by which {methods.OURS} is ahead, seed by seed, with the error of the mean"
        return [*tables, make_table(others, leads, title)]


def _spent(groups: Sequence[Sequence[Row]]) -> list[float]:
    """Return the mean seconds of each group of rows that is not empty."""
    return [statistics.spread_of(rows, lambda row: row.seconds)["mean"] for rows in groups if rows]


def _check_ahead(derived: Derived) -> list[bounds.Check]:
    """Return whether ours is ahead of the best rival, corrected for the number of budgets."""
    results = derived["results"]
    compared: list[tuple[str, str, list[float]]] = []
    for budget, ours in results[methods.OURS].items():
        rivals = [m for m in derived["ranks"][budget] if m not in (methods.OURS, *_KIN)]
        if rivals:
            theirs = results[rivals[0]][budget]
            gains = statistics.pair_by_seed(ours["by_seed"], theirs["by_seed"])
            compared.append((budget, rivals[0], gains))
    corrected = statistics.correct_by_holm(
        [statistics.paired_p_value(gains) for *_, gains in compared]
    )
    return [
        bounds.Check(
            what=f"{methods.OURS} is ahead of {rival} at {int(budget):,} parameters, seed by seed",
            measured=f"{bounds.write_with_error(statistics.measure_spread(gains))} points, "
            f"{len(gains)} seeds, p = {p:.3f} corrected for {len(compared)} budgets",
            bound=f"> 0 points, p < {SIGNIFICANT}",
            met=sum(gains) > 0 and p < SIGNIFICANT,
        )
        for (budget, rival, gains), p in zip(compared, corrected, strict=True)
    ]


def _check_l0_sizes(derived: Derived) -> bounds.Check:
    """Return whether some strength of L0 leaves about each budget before it is cut to it."""
    nearest = {
        int(budget): min(derived["l0_sizes"], key=lambda size: abs(math.log(size / int(budget))))
        for budget in derived["ranks"]
    }
    return bounds.Check(
        what=f"{methods.L0}: a strength tried that leaves about each budget by itself",
        measured=", ".join(f"{size:,} for {budget:,}" for budget, size in nearest.items()),
        bound=f"within a factor of {NEAR}",
        met=all(1 / NEAR <= size / budget <= NEAR for budget, size in nearest.items()),
    )


def _write_lead(ours: Mapping[str, float], theirs: Mapping[str, Any] | None) -> str:
    gains = statistics.pair_by_seed(ours, theirs["by_seed"]) if theirs else []
    return bounds.write_with_error(statistics.measure_spread(gains), "±") if gains else NOTHING


def _write(numbers: Mapping[str, Any] | None, derived: Derived, budget: str) -> str:
    if numbers is None:
        return NOTHING
    first = derived["results"][derived["ranks"][budget][0]][budget]
    text = write_spread(numbers["accuracy"])
    text = f"**{text}**" if numbers is first else text
    # The first have more seeds; for some a method may come out too small.
    there = [result[budget] for result in derived["results"].values() if budget in result]
    n_seeds, usual = len(numbers["seeds"]), mode(len(result["seeds"]) for result in there)
    return text if n_seeds == usual else f"{text} ({n_seeds} seeds)"
