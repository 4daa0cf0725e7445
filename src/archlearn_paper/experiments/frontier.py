"""The frontier: accuracy against parameters over prices of neurons and of parameters."""

from collections.abc import Mapping, Sequence
from typing import Any

from archlearn_paper.experiment import (
    Check,
    Derived,
    Experiment,
    FinishedRun,
    ResultTable,
    Row,
    Run,
    Scale,
    group,
    reaches,
    summarise_rows,
)
from archlearn_paper.experiments.table_1 import list_paper
from archlearn_paper.recipes import PLAIN_RATE_OF_AN_EXAMPLE, learn_architecture
from archlearn_paper.tables import counts_in, make_table, names_in, spread_in

_COSTS: Mapping[str, tuple[float, ...]] = {
    "neurons": (1.5e-4, 2.5e-4, 4e-4, 6e-4, 1e-3, 1.6e-3, 3e-3),
    "parameters": (1.5e-4, 3e-4, 6e-4, 1.2e-3, 2.4e-3),
    "neurons, twice the rate": (6e-5, 1.5e-4, 4e-4),
}
"""Lambda 3 of each curve: a dozen prices, and three with the large network's rate of weights, which
was found to be better on validation data after the dozen had been run."""
_CHANGED: Mapping[str, Mapping[str, Any]] = {
    "neurons": {},
    "parameters": {"price": "parameters"},
    "neurons, twice the rate": {"depth_share": 0.1, "rate": PLAIN_RATE_OF_AN_EXAMPLE},
}
"""What each curve has besides, that is not the recipe's."""
_ROW = "λ3 {cost:g} by {curve}"
_GOOD = 99.3
"""The paper's baseline; the smallest network that is as good is looked for."""


def _learn_rows(scale: Scale, _: Sequence[FinishedRun]) -> list[Run]:
    """Return one run for each cost, price and seed; widths and depth are learnt."""
    return [
        Run(
            row=_ROW.format(cost=cost, curve=curve),
            settings=learn_architecture(scale, seed, cost, learn="all", **_CHANGED[curve]),
            finish_compact=True,
        )
        for curve, costs in _COSTS.items()
        for cost in scale.pick(costs)
        for seed in scale.seeds
    ]


def _derive(rows: Sequence[Row]) -> dict[str, Any]:
    groups = group(rows)
    points = [
        {
            "cost": cost,
            "price": price,
            "runs": [[row.parameters, row.accuracy] for row in members],
            **summarise_rows(members),
        }
        for price, costs in _COSTS.items()
        for cost in costs
        if (members := groups.get(_ROW.format(cost=cost, curve=price)))
    ]
    return {"points": points, "paper": list_paper(), "smallest_good_run": _smallest_run(rows)}


def _smallest_run(rows: Sequence[Row]) -> dict[str, Any] | None:
    good = [row for row in rows if row.accuracy >= _GOOD]
    if not good:
        return None
    best = min(good, key=lambda row: row.parameters)
    return {
        "row": best.row,
        "seed": best.seed,
        "architecture": best.architecture,
        "parameters": best.parameters,
        "accuracy": best.accuracy,
    }


def _check(derived: Derived) -> list[Check]:
    return [_check_point(point, derived["points"]) for point in derived["paper"]]


def _check_point(point: dict[str, Any], points: Sequence[dict[str, Any]]) -> Check:
    """Return whether some price is as accurate as a point of the paper, less an error."""
    as_good = [p for p in points if reaches(p["accuracy"], point["accuracy"])]
    smallest = min((p["parameters"]["mean"] for p in as_good), default=None)
    return Check(
        what=f"the paper's {point['row']} is below the curve",
        measured="none so accurate" if smallest is None else f"{smallest:,.0f} parameters",
        bound=f"≤ {point['parameters']:,} at ≥ {point['accuracy']} %",
        met=smallest is not None and smallest <= point["parameters"],
    )


def _tabulate(derived: Derived) -> list[ResultTable]:
    points = make_table(
        derived["points"],
        [
            ("λ3", "{cost:g}"),
            ("price on", "{price}"),
            ("architectures", names_in("architectures")),
            ("parameters", counts_in("parameters")),
            ("accuracy %", spread_in("accuracy")),
        ],
    )
    smallest = make_table(
        [derived["smallest_good_run"]],
        [
            (f"smallest single run at ≥ {_GOOD} %", "{row}, seed {seed}"),
            ("architecture", "{architecture}"),
            ("parameters", "{parameters:,}"),
            ("accuracy %", "{accuracy:.2f}"),
        ],
    )
    return [points, smallest]


EXPERIMENT = Experiment(
    stages=(_learn_rows,),
    derive=_derive,
    check=_check,
    tabulate=_tabulate,
)
