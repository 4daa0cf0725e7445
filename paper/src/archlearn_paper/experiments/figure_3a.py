"""Figure 3a: how many neurons the third layer has while lambda 1 and lambda 3 do their work."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from archlearn_paper import bounds, statistics, tables
from archlearn_paper.experiment import Derived, Experiment, FinishedRun, Row, Run, Scale
from archlearn_paper.recipes import choose_gate_rate, learn_architecture
from archlearn_paper.tables import Column, make_table, write_counts

WIDTH_COSTS = (2e-4, 4e-4, 8e-4)
"""Lambda 3."""
BINARISING = (1e-3, 1.5e-3, 2e-3)
"""Lambda 1. Above lambda 3 / 0.1 a gate that starts at 0.55 would be held open."""
_EPOCHS = 20
_FREEZE_FOR = 0.0
"""Gates move to the very end, so that one can see when they have settled."""
_THIRD_LAYER = "fc1"
_SETTLED = 0.02
"""A layer has settled when it stays within this part of its initial width of its final one."""
_DECIDED = 0.02
"""Gates have decided when their mean distance from 0 or 1 stays below this."""
_N_ERRORS = 2.0
"""A rank correlation of `n` runs is one if it is beyond so many of its errors, `1 / √(n − 1)`."""


def name_pair(cost: float, binarise: float) -> str:
    """Return the name of the row of a pair of strengths."""
    return f"λ3 {cost:g}, λ1 {binarise:g}"


def _learn_rows(scale: Scale, _: Sequence[FinishedRun]) -> list[Run]:
    """Return one run for each pair of strengths and seed; of a quick version the middle cross."""
    scale = scale.shorten(_EPOCHS)
    rate = choose_gate_rate(scale, WIDTH_COSTS[1], _FREEZE_FOR)
    grid = itertools.product(WIDTH_COSTS, BINARISING)
    if scale.points is not None:
        grid = [p for p in grid if p[0] == WIDTH_COSTS[1] or p[1] == BINARISING[1]]
    return [
        Run(
            row=name_pair(cost, binarise),
            settings=learn_architecture(
                scale, seed, cost, ratio=cost / binarise, gate_rate=rate, freeze_for=_FREEZE_FOR
            ),
        )
        for cost, binarise in grid
        for seed in scale.seeds
    ]


def _derive(rows: Sequence[Row]) -> dict[str, Any]:
    groups, pairs = statistics.group(rows), list[dict[str, Any]]()
    for cost, binarise in itertools.product(WIDTH_COSTS, BINARISING):
        members = groups.get(name_pair(cost, binarise))
        if members:
            pairs.append({"cost": cost, "binarise": binarise, **_measure(members)})
    return {
        "pairs": pairs,
        "final_by_cost": _average(pairs, "cost", "finals"),
        "decided_by_binarise": _average(pairs, "binarise", "decided"),
        "last_change_by_binarise": _average(pairs, "binarise", "last_changes"),
        "settled_by_binarise": _average(pairs, "binarise", "settled"),
        "last_layer_change_ranks": _correlate(pairs, "last_layer_changes"),
    }


def _measure(rows: Sequence[Row]) -> dict[str, Any]:
    curves = [[entry["widths"][_THIRD_LAYER] for entry in row.history] for row in rows]
    totals = [[sum(entry["widths"].values()) for entry in row.history] for row in rows]
    gaps = [[entry["gap"] for entry in row.history] for row in rows]
    steps = [entry["step"] for entry in rows[0].history]
    return {
        "steps": steps,
        "mean": [statistics.measure_spread(values)["mean"] for values in zip(*curves, strict=True)],
        "least": [min(values) for values in zip(*curves, strict=True)],
        "most": [max(values) for values in zip(*curves, strict=True)],
        "finals": [curve[-1] for curve in curves],
        "settled": [find_settled(steps, curve, _SETTLED * curve[0]) for curve in curves],
        "last_layer_changes": [find_settled(steps, curve, 0.0) for curve in curves],
        "last_changes": [find_settled(steps, total, 0.0) for total in totals],
        "decided": [find_decided(steps, gap) for gap in gaps],
    }


def find_settled(steps: Sequence[int], curve: Sequence[float], margin: float) -> int:
    """Return the first step from which a curve stays within a margin of its end."""
    return _find_last(steps, [abs(value - curve[-1]) > margin for value in curve])


def find_decided(steps: Sequence[int], gaps: Sequence[float]) -> int:
    """Return the first step from which gates stay near 0 or 1; the last one if they never do."""
    return _find_last(steps, [gap >= _DECIDED for gap in gaps])


def _find_last(steps: Sequence[int], still: Sequence[bool]) -> int:
    """Return the step behind the last one at which something still held."""
    n_still = max((index + 1 for index, holds in enumerate(still) if holds), default=0)
    return steps[min(n_still, len(steps) - 1)]


def _average(pairs: Sequence[Mapping[str, Any]], strength: str, number: str) -> dict[str, Any]:
    """Return the spread of a number over all seeds and pairs of one value of a strength."""
    values: dict[str, list[float]] = {}
    for pair in sorted(pairs, key=lambda pair: pair[strength]):
        values.setdefault(f"{pair[strength]:g}", []).extend(pair[number])
    return {value: statistics.measure_spread(numbers) for value, numbers in values.items()}


def _correlate(pairs: Sequence[Mapping[str, Any]], number: str) -> dict[str, Any]:
    """Return Spearman's correlation of lambda 1 and a number, over all runs."""
    points = [(pair["binarise"], value) for pair in pairs for value in pair[number]]
    if len(points) < 2:
        return {"correlation": math.nan, "n": len(points)}
    strengths, values = zip(*points, strict=True)
    return {"correlation": statistics.correlate_ranks(strengths, values), "n": len(points)}


def _check(derived: Derived) -> list[bounds.Check]:
    return [
        _check_falling("more λ3 keeps fewer neurons in the third layer", derived["final_by_cost"]),
        _check_falling(
            "less λ1 keeps changing for longer: iteration of the last change, all layers",
            derived["last_change_by_binarise"],
        ),
        check_ranks(
            "the same by the third layer alone: Spearman of λ1 and its last change",
            derived["last_layer_change_ranks"],
        ),
        _check_falling(
            "less λ1 keeps gates undecided for longer: iterations until they are binary",
            derived["decided_by_binarise"],
        ),
        _check_falling(
            "the same by the third layer alone: iterations until within 10 neurons of its end",
            derived["settled_by_binarise"],
        ),
    ]


def _check_falling(what: str, spreads: Mapping[str, Any]) -> bounds.Check:
    """Return whether each mean is below the one before by more than the error of the two."""
    written = ", ".join(f"{value}: {spread['mean']:,.0f}" for value, spread in spreads.items())
    falling = all(
        a["mean"] - b["mean"] > math.hypot(a["error"] or 0.0, b["error"] or 0.0)
        for a, b in itertools.pairwise(spreads.values())
    )
    bound = "falling, by more than an error each time"
    return bounds.Check(what=what, measured=written, bound=bound, met=falling)


def check_ranks(what: str, ranks: Mapping[str, Any]) -> bounds.Check:
    """Return whether a number falls with lambda 1, by more than chance would have it."""
    bound = -_N_ERRORS / math.sqrt(ranks["n"] - 1) if ranks["n"] > 1 else -math.inf
    return bounds.Check(
        what=f"{what}, {ranks['n']} runs",
        measured=f"{ranks['correlation']:.2f}",
        bound=f"≤ {bound:.2f} (two errors below 0)",
        met=ranks["correlation"] <= bound,
    )


def _tabulate(derived: Derived) -> list[tables.Table]:
    """Return the final widths and when they settled; the paper has them as a figure only."""

    def counts(number: str) -> Callable[[Mapping[str, Any]], str]:
        return lambda pair: write_counts(statistics.measure_spread(pair[number]))

    columns: list[Column] = [
        ("λ3", "{cost:g}"),
        ("λ1", "{binarise:g}"),
        ("neurons of layer 3 at the end", counts("finals")),
        ("last change at step", counts("last_changes")),
        ("gates binary at step", counts("decided")),
        ("last change of layer 3", counts("last_layer_changes")),
        ("layer 3 near its end at step", counts("settled")),
    ]
    return [make_table(derived["pairs"], columns)]


EXPERIMENT = Experiment((_learn_rows,), _derive, _check, _tabulate, keeps_history=True, n_seeds=6)
