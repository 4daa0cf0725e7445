"""Figure 3b: more classes, more neurons and more errors, with nothing else changed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from archlearn_paper.experiment import (
    Check,
    Derived,
    Experiment,
    FinishedRun,
    ResultTable,
    Row,
    RunTask,
    Scale,
    correlate_ranks,
    group,
    spread_of,
)
from archlearn_paper.experiment_registry import TITLES
from archlearn_paper.parallel_runs import Run
from archlearn_paper.recipes import Terms, choose_gate_rate, learn_architecture
from archlearn_paper.tables import write_counts, write_spread

TERMS = Terms(learn="width", cost=3e-4, freeze_for=0.3)
"""Like AL2."""
EPOCHS = 20
CLASSES = tuple(range(2, 11))
ALL_CLASSES = 10
THIRD_LAYER = "fc1"
BOUND = 0.9


def name_row(n_classes: int) -> str:
    """Return the name of the row of so many classes."""
    return f"{n_classes} classes"


def learn_rows(scale: Scale, done: Sequence[FinishedRun]) -> list[RunTask]:
    """Return one run for each number of classes and seed, all of about the same number of steps.

    Fewer classes have fewer examples, so they are passed over more often: the gates of every run
    then have equally long to move.
    """
    del done
    scale = scale.shorten(EPOCHS)
    works: list[RunTask] = []
    terms = replace(TERMS, gate_rate=choose_gate_rate(scale, TERMS))
    for n_classes in scale.pick(CLASSES):
        part = n_classes / ALL_CLASSES
        limit = None if scale.limit is None else round(scale.limit * part)
        for seed in scale.seeds:
            settings = learn_architecture(
                replace(scale, epochs=round(scale.epochs / part), limit=limit), seed, terms
            )
            settings = replace(settings, classes=n_classes)
            run = Run(row=name_row(n_classes), settings=settings, finish_compact=True)
            works.append(run)
    return works


def derive(rows: Sequence[Row]) -> dict[str, Any]:
    """Return neurons and errors by number of classes, and how their ranks correlate."""
    groups = group(rows)
    found = [n for n in CLASSES if name_row(n) in groups]
    classes: dict[str, Any] = {}
    for n_classes in found:
        members = groups[name_row(n_classes)]
        classes[str(n_classes)] = {
            "neurons": spread_of(members, lambda row: row.n_neurons).to_json(),
            "third_layer": spread_of(members, lambda row: row.widths[THIRD_LAYER]).to_json(),
            "parameters": spread_of(members, lambda row: row.parameters).to_json(),
            "error": spread_of(members, lambda row: row.error).to_json(),
            "train_loss": spread_of(members, lambda row: row.train_loss).to_json(),
        }
    return {
        "classes": classes,
        "spearman": {
            name: correlate_ranks(found, [classes[str(n)][name]["mean"] for n in found])
            for name in ("neurons", "third_layer", "error")
        },
        "spearman_of_runs": _correlate_runs(groups, found),
    }


def _correlate_runs(groups: dict[str, list[Row]], found: Sequence[int]) -> dict[str, float]:
    """Return the rank correlations over single runs instead of means."""
    pairs = [(n, row) for n in found for row in groups[name_row(n)]]
    counts = [n for n, _ in pairs]
    return {
        "neurons": correlate_ranks(counts, [row.n_neurons for _, row in pairs]),
        "third_layer": correlate_ranks(counts, [row.widths[THIRD_LAYER] for _, row in pairs]),
        "error": correlate_ranks(counts, [row.error for _, row in pairs]),
    }


def check(derived: Derived) -> list[Check]:
    """Return what figure 3b must show."""
    return [
        _check_rank(derived, "neurons", "neurons of all layers", bound=BOUND),
        _check_rank(derived, "third_layer", "neurons of the third layer", bound=BOUND),
        _check_rank(derived, "error", "error"),
    ]


def _check_rank(derived: Derived, name: str, words: str, *, bound: float | None = None) -> Check:
    """Return whether a rank correlation reaches a bound; left out, it must be above 0."""
    mean, single = derived["spearman"][name], derived["spearman_of_runs"][name]
    return Check(
        what=f"Spearman of classes and {words} (means; single runs in brackets)",
        measured=f"{mean:.3f} ({single:.3f})",
        bound="> 0" if bound is None else f"≥ {bound}",
        met=mean > 0 if bound is None else mean >= bound,
    )


def tabulate(derived: Derived) -> list[ResultTable]:
    """Return neurons and errors by number of classes; the paper has them as a figure only."""
    rows = tuple(
        (
            n_classes,
            write_counts(numbers["neurons"]),
            write_counts(numbers["third_layer"]),
            write_counts(numbers["parameters"]),
            write_spread(numbers["error"]),
        )
        for n_classes, numbers in derived["classes"].items()
    )
    columns = ("classes", "neurons", "of the third layer", "parameters", "error %")
    return [ResultTable(columns=columns, rows=rows)]


EXPERIMENT = Experiment(
    name="figure-3b",
    title=TITLES["figure-3b"],
    stages=(learn_rows,),
    derive=derive,
    check=check,
    tabulate=tabulate,
)
