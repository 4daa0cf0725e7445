"""Figure 3b and proposition 3: more classes, more neurons and more errors.

One thing is changed at a time. The number of classes, with as many examples, epochs and steps for
each; then, as a control, the number of examples of all ten classes, with as many steps. The premise
of proposition 3, that more classes are harder for a network that is given, is measured too.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from archlearn_paper import bounds, statistics, tables
from archlearn_paper.experiment import Derived, Experiment, FinishedRun, Row, Run, Scale
from archlearn_paper.recipes import MNIST_TRAIN, learn_architecture, train_plainly
from archlearn_paper.tables import Column, counts_in, make_table, spread_in

_COST, _FREEZE_FOR = 3e-4, 0.3
"""Like AL2."""
PASSES = 20
"""Passes over all of MNIST; fewer examples are passed over as much more often."""
_CLASSES = tuple(range(2, 11))
_EXAMPLES = 12_000
"""Train examples of every number of classes: the first two have 12,665."""
_MORE_EXAMPLES = (24_000, 30_000, 60_000)
_GIVEN_MODEL = "lenet:5-10-20"
GIVEN = ", network given"
_THIRD_LAYER = "fc1"
_BOUND = 0.9
_CONTROL_BOUND = 0.5
"""The part of the rise from 2 to 10 classes that examples alone may account for."""


_NUMBERS: dict[str, Callable[[Row], float]] = {
    "neurons": lambda row: row.n_neurons,
    "third_layer": lambda row: row.widths[_THIRD_LAYER],
    "parameters": lambda row: row.parameters,
    "error": lambda row: row.error,
    "train_loss": lambda row: row.train_loss,
}
_JUDGED = ("neurons", "third_layer", "error")
"""What is to rise with the number of classes."""


def _name_classes(n_classes: int) -> str:
    """Return the name of the row of so many classes."""
    return f"{n_classes} classes"


def name_control(n_examples: int) -> str:
    """Return the name of the row of so many examples of all classes."""
    return f"{_name_classes(_CLASSES[-1])}, {n_examples:,} examples"


def _learn_rows(scale: Scale, _: Sequence[FinishedRun]) -> list[Run]:
    works: list[Run] = []
    part = _with_examples(scale, _EXAMPLES)
    for n_classes in scale.pick(_CLASSES):
        row = _name_classes(n_classes)
        for seed in scale.seeds:
            plain = replace(train_plainly(part, seed, model=_GIVEN_MODEL), classes=n_classes)
            works.append(_learn(part, seed, row, classes=n_classes))
            works.append(Run(row=row + GIVEN, settings=plain))
    for n_examples in scale.pick(_MORE_EXAMPLES):
        part = _with_examples(scale, n_examples)
        works += [_learn(part, seed, name_control(n_examples)) for seed in scale.seeds]
    return works


def _learn(scale: Scale, seed: int, row: str, classes: int | None = None) -> Run:
    settings = learn_architecture(scale, seed, _COST, freeze_for=_FREEZE_FOR, classes=classes)
    return Run(row=row, settings=settings, finish_compact=True)


def _with_examples(scale: Scale, n_examples: int) -> Scale:
    """Return a scale of so many train examples and always about as many steps.

    A quick version has fewer examples by the same factor.
    """
    share = n_examples / MNIST_TRAIN
    limit = scale.limit if share == 1 else round(share * (scale.limit or MNIST_TRAIN))
    return replace(scale, limit=limit, epochs=round(min(scale.epochs, PASSES) / share))


def _derive(rows: Sequence[Row]) -> dict[str, Any]:
    groups = statistics.group(rows)
    counts = [n for n in _CLASSES if _name_classes(n) in groups]
    classes = {str(n): _describe(groups[_name_classes(n)]) for n in counts}
    losses = {
        str(n): statistics.spread_of(groups[_name_classes(n) + GIVEN], lambda row: row.train_loss)
        for n in counts
    }
    means = {name: [classes[str(n)][name]["mean"] for n in counts] for name in _JUDGED}
    runs = [(n, row) for n in counts for row in groups[_name_classes(n)]]
    return {
        "classes": classes,
        "spearman": {name: statistics.correlate_ranks(counts, means[name]) for name in _JUDGED},
        "spearman_of_runs": {
            name: statistics.correlate_ranks(
                [n for n, _ in runs], [_NUMBERS[name](row) for _, row in runs]
            )
            for name in _JUDGED
        },
        "examples": {
            str(n): _describe(groups[name_control(n)])
            for n in _MORE_EXAMPLES
            if name_control(n) in groups
        },
        "given": losses,
        "premise": statistics.correlate_ranks(counts, [loss["mean"] for loss in losses.values()]),
    }


def _describe(rows: Sequence[Row]) -> dict[str, Any]:
    numbers = {name: statistics.spread_of(rows, read) for name, read in _NUMBERS.items()}
    return numbers | {"limit": rows[0].settings.get("limit")}


def _check(derived: Derived) -> list[bounds.Check]:
    return [
        _check_rank(derived, "neurons", "neurons of all layers"),
        _check_rank(derived, "third_layer", "neurons of the third layer"),
        _check_rank(derived, "error", "error"),
        bounds.Check(
            what=f"premise of proposition 3: Spearman of classes and train loss of {_GIVEN_MODEL}",
            measured=f"{derived['premise']:.3f}",
            bound=f"≥ {_BOUND}",
            met=derived["premise"] >= _BOUND,
        ),
        _check_control(derived),
    ]


def _check_rank(derived: Derived, name: str, words: str) -> bounds.Check:
    mean, single = derived["spearman"][name], derived["spearman_of_runs"][name]
    return bounds.Check(
        what=f"Spearman of classes and {words} (means; single runs in brackets)",
        measured=f"{mean:.3f} ({single:.3f})",
        bound=f"≥ {_BOUND}",
        met=mean >= _BOUND,
    )


def _check_control(derived: Derived) -> bounds.Check:
    """Return whether classes and not examples make the network larger."""
    classes, examples = (
        [numbers["neurons"]["mean"] for numbers in derived[name].values()]
        for name in ("classes", "examples")
    )
    rise, alone = classes[-1] - classes[0], examples[-1] - classes[-1]
    return bounds.Check(
        what="control: neurons gained by five times the examples, of those gained by classes",
        measured=f"{alone:.1f} of {rise:.1f}",
        bound=f"≤ {_CONTROL_BOUND:g} of them",
        met=rise > 0 and alone <= _CONTROL_BOUND * rise,
    )


def _tabulate(derived: Derived) -> list[tables.Table]:
    """Return neurons and errors by number of classes; the paper has them as a figure only."""
    rows = [
        {"classes": n, "given": derived["given"][n], **numbers}
        for n, numbers in derived["classes"].items()
    ]
    rows += [
        {"classes": _CLASSES[-1], "given": None, **numbers}
        for numbers in derived["examples"].values()
    ]
    columns: list[Column] = [
        ("classes", "{classes}"),
        (
            "train examples",
            lambda row: f"{row['limit']:,}" if row["limit"] else "all of these classes",
        ),
        ("neurons", counts_in("neurons")),
        ("of the third layer", counts_in("third_layer")),
        ("parameters", counts_in("parameters")),
        ("error %", spread_in("error")),
        (f"train loss of {_GIVEN_MODEL}", spread_in("given", 4)),
    ]
    return [make_table(rows, columns)]


EXPERIMENT = Experiment((_learn_rows,), _derive, _check, _tabulate)
