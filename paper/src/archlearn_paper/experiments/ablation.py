"""Ablation of the paper's own recipe: one setting changed at a time, on LeNet and an MLP."""

from collections.abc import Mapping, Sequence
from typing import Any

from archlearn_cli.training.settings import RunSettings
from archlearn_paper import bounds, statistics, tables
from archlearn_paper.experiment import Derived, Experiment, FinishedRun, Row, Run, Scale
from archlearn_paper.recipes import choose_gate_rate, learn_architecture

_MODELS = ("lenet", "mlp:300-100")
_EPOCHS = 30
BASE = "the recipe"
_COST = 8e-4
"""Lambda 3."""
CHANGES: Mapping[str, Mapping[str, Any]] = {
    BASE: {},
    "gates start at 0.51 instead of 0.55": {"width_start": 0.51},
    "gates start at 0.75": {"width_start": 0.75},
    "a quarter of the gate rate": {"gate_rate": 0.25},
    "four times the gate rate": {"gate_rate": 4.0},
    "gates start after 20 % of the run instead of 4 %": {"start_after": 0.2},
    "gates stand still for the last 20 % instead of 60 %": {"freeze_for": 0.2},
    "price by parameters instead of neurons": {"price": "parameters"},
    "price by multiply-adds": {"price": "multiply_adds"},
    "depth strengths a tenth of the width ones (the paper's)": {"depth_share": 0.1},
    "λ3 = 0.2 λ1 instead of 0.4 λ1": {"ratio": 0.2},
    "half of λ3": {"cost": _COST / 2},
}
"""Gate rates are factors of the one that the recipe derives from cost and steps."""
_KEEPS_MORE = ("λ3 = 0.2 λ1 instead of 0.4 λ1", "half of λ3")
"""The contrasts of strengths that the paper has; it says that both keep more neurons."""


def name_change(model: str, change: str) -> str:
    """Return the name of the row of a change."""
    return f"{model}: {change}"


def _learn_rows(scale: Scale, _: Sequence[FinishedRun]) -> list[Run]:
    scale = scale.shorten(_EPOCHS, 3)
    changes = [BASE, *scale.pick([name for name in CHANGES if name != BASE])]
    return [
        Run(
            row=name_change(model, change),
            settings=change_recipe(scale, seed, model, change),
            finish_compact=True,
        )
        for model in _MODELS
        for change in changes
        for seed in scale.seeds
    ]


def change_recipe(scale: Scale, seed: int, model: str, change: str) -> RunSettings:
    """Return the recipe with one thing changed; the gate rate stays unless it is that thing."""
    options: dict[str, Any] = {"cost": _COST, "learn": "all", "model": model, **CHANGES[change]}
    rate = choose_gate_rate(scale, _COST) * options.pop("gate_rate", 1.0)
    return learn_architecture(scale, seed, gate_rate=rate, **options)


def _derive(rows: Sequence[Row]) -> dict[str, Any]:
    groups = statistics.group(rows)
    changes = [
        {
            "model": model,
            "change": change,
            **statistics.summarise_rows(members),
            "points": statistics.compare_by_seed(members, base),
            "more_neurons": statistics.compare_by_seed(members, base, lambda row: row.n_neurons),
        }
        for model in _MODELS
        for base in [groups.get(name_change(model, BASE), [])]
        for change in CHANGES
        if (members := groups.get(name_change(model, change)))
    ]
    return {"changes": changes}


def _check(derived: Derived) -> list[bounds.Check]:
    return [
        bounds.at_least(
            f"{entry['model']}, {entry['change']}: more neurons than the recipe, seed by seed",
            entry["more_neurons"],
            1,
            unit=" neurons",
            digits=1,
        )
        for entry in derived["changes"]
        if entry["change"] in _KEEPS_MORE
    ]


def _tabulate(derived: Derived) -> list[tables.Table]:
    changes = derived["changes"]
    contrasts = [entry for entry in changes if entry["change"] in (BASE, *_KEEPS_MORE)]
    others = [entry for entry in changes if entry["change"] not in _KEEPS_MORE]
    neurons, points = (
        tables.spread_in("more_neurons", 1, error=True),
        tables.spread_in("points", error=True),
    )
    columns: list[tables.Column] = [
        ("network", "{model}"),
        ("changed", "{change}"),
        ("architectures", tables.names_in("architectures")),
        ("parameters", tables.counts_in("parameters")),
        ("accuracy %", tables.spread_in("accuracy")),
        (
            "neurons more than the recipe, seed by seed",
            lambda entry: tables.NOTHING if entry["change"] == BASE else neurons(entry),
        ),
        (
            "points above it",
            lambda entry: tables.NOTHING if entry["change"] == BASE else points(entry),
        ),
    ]
    return [
        tables.make_table(contrasts, columns, "The strengths, as the paper contrasts them."),
        tables.make_table(others, columns, "Everything else, one thing at a time."),
    ]


EXPERIMENT = Experiment((_learn_rows,), _derive, _check, _tabulate, n_seeds=3)
