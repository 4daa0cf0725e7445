"""Table 1: LeNet on MNIST, learnt widths and depth, against training from scratch.

Every row has a number of parameters, fixed before, and learns which ones to keep. Which power of a
channel's cost counts is chosen first, on validation data and seeds of their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from archlearn_paper import bounds, recipes, statistics, tables
from archlearn_paper.experiment import Derived, Experiment, FinishedRun, Origin, Row, Run, Scale
from archlearn_paper.experiments import table_1_penalty

BASELINE = "baseline"
NN, _FFW = " NN", " FFW"
CHOICE = "cost power "
_CHOICE_BUDGET = 5_000
_BASELINE_BOUND = 99.3
_GAP_BOUND = -0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Table1Row:
    """A row of the table.

    Attributes:
        layers: The paper's "Layers Learnt": whether (width, depth) are, for each layer.
        budget: Parameters it may have; None for the baseline.
        reach: Accuracy that is to be reached, as a mean less one error of it.
        because: Whose accuracy that is, where it is not only the paper's.
        given: Price at which it is learnt which neurons stay where their numbers are given; None
            where that is not run.
        parameters: The paper's, counted with biases.
        accuracy: The paper's AL column; `scratch` is its NN column.
    """

    row: str
    layers: str
    learn: recipes.LearntParts = "all"
    budget: int | None = None
    reach: float | None = None
    because: str = ""
    weight_decay: float = recipes.WEIGHT_DECAY
    given: float | None = None
    architecture: str = tables.NOTHING
    parameters: int | None = None
    accuracy: float | None = None
    scratch: float | None = None


LINES = tuple(
    Table1Row(row=row, **numbers) for row, numbers in recipes.read_paper("table-1").items()
)
LEARNT = {line.row: line for line in LINES if line.budget is not None}


def _list_paper() -> list[dict[str, Any]]:
    """Return the paper's networks: parameters and accuracy, the baseline's being its NN column."""
    return [
        {"row": line.row, "parameters": line.parameters, "accuracy": line.accuracy or line.scratch}
        for line in LINES
        if line.parameters is not None
    ]


def try_cost_powers(scale: Scale, _: Sequence[FinishedRun]) -> list[Run]:
    """Return the runs on validation data by which the power of the cost is chosen."""
    aside = replace(scale, validation=scale.validation or recipes.VALIDATION)
    return [
        Run(
            row=f"{CHOICE}{power:g}",
            settings=recipes.learn_to_budget(aside, seed, _CHOICE_BUDGET, power),
            finish_compact=True,
        )
        for power in scale.pick(recipes.COST_POWERS)
        for seed in recipes.CHOICE_SEEDS[: len(scale.seeds)]
    ]


def choose_cost_power(rows: Sequence[Row]) -> float:
    """Return the power of the highest mean validation accuracy; the first of equal ones."""
    tried = {
        float(name.removeprefix(CHOICE)): sum(row.validation_accuracy or 0.0 for row in members)
        / len(members)
        for name, members in statistics.group(rows).items()
        if name.startswith(CHOICE)
    }
    return max(tried, key=lambda power: tried[power])


def learn_table_1(scale: Scale, done: Sequence[FinishedRun]) -> list[Run]:
    """Return the baseline and the runs that learn an architecture."""
    power = choose_cost_power([finished.row for finished in done])
    return [
        _learn(scale, line, seed, power)
        if line.budget is not None
        else Run(row=line.row, settings=recipes.baseline(scale, seed))
        for line in LINES
        for seed in scale.seeds
    ]


def _learn(scale: Scale, line: Table1Row, seed: int, power: float) -> Run:
    assert line.budget is not None
    settings = recipes.learn_to_budget(
        scale, seed, line.budget, power, learn=line.learn, weight_decay=line.weight_decay
    )
    return Run(row=line.row, settings=settings, finish_compact=True)


def train_from_scratch(scale: Scale, done: Sequence[FinishedRun]) -> list[Run]:
    """Return the NN column: every learnt architecture, trained from fresh weights."""
    return [
        Run(
            row=finished.row.row + NN,
            settings=recipes.train_plainly(
                scale,
                finished.row.seed,
                rate=recipes.PLAIN_RATE_OF_AN_EXAMPLE,
                weight_decay=line.weight_decay,
            ),
            origin=Origin(
                make=partial(recipes.reinitialise, seed=finished.row.seed),
                parent=finished,
            ),
        )
        for finished in done
        if (line := LEARNT.get(finished.row.row)) is not None
    ]


def fix_widths(scale: Scale, done: Sequence[FinishedRun]) -> list[Run]:
    """Return the FFW column: the learnt numbers are given, which neurons stay is learnt."""
    works: list[Run] = []
    for finished in done:
        line = LEARNT.get(finished.row.row)
        if line is None or line.given is None:
            continue
        hidden = dict(list(finished.row.widths.items())[:-1])
        target = recipes.Given(widths=hidden, linear=() if "fc1" in hidden else ("fc1",))
        # Depth is given too: a layer that stayed non-linear is not to merge here.
        learn = "all" if target.linear else "width"
        settings = recipes.learn_architecture(scale, finished.row.seed, line.given, learn=learn)
        holder = recipes.fix_width(target, settings)
        row = finished.row.row + _FFW
        works.append(Run(row=row, settings=settings, after_epoch=holder, finish_compact=True))
    return works


def _derive(rows: Sequence[Row]) -> dict[str, Any]:
    groups = statistics.group(rows)
    return {
        "rows": {
            name: statistics.summarise_rows(members) | {"size": describe_size(members[0])}
            for name, members in groups.items()
            if not name.startswith((CHOICE, table_1_penalty.PENALTY))
        },
        **table_1_penalty.summarise_penalty(groups),
        "choice": {
            name.removeprefix(CHOICE): statistics.spread_of(
                members, lambda row: 100 * (row.validation_accuracy or 0.0)
            )
            for name, members in groups.items()
            if name.startswith(CHOICE)
        },
        "gaps": {
            name: statistics.compare_by_seed(groups[name], groups[name + NN])
            for name in LEARNT
            if name in groups and name + NN in groups
        },
        "paper": _list_paper(),
    }


def describe_size(row: Row) -> str:
    """Return the budget that decided the size of a run."""
    budget = row.settings.get("gates", {}).get("budget")
    return f"budget: {', '.join(budget)}" if budget else tables.NOTHING


def _check(derived: Derived) -> list[bounds.Check]:
    summaries, checks = derived["rows"], list[bounds.Check]()
    for line in LINES:
        summary = summaries.get(line.row)
        if summary is None:
            continue
        if line.budget is None:
            what = "accuracy of the baseline"
            checks.append(bounds.at_least(what, summary["accuracy"], _BASELINE_BOUND))
        else:
            checks.append(_check_reach(line, summary))
        if line.accuracy is not None and line.learn == "all":
            checks.append(_check_merged(line.row, summary["architectures"]))
        if line.row in derived["gaps"]:
            what = f"{line.row}: accuracy of AL less that of its NN column, seed by seed"
            checks.append(
                bounds.at_least(what, derived["gaps"][line.row], _GAP_BOUND, unit=" points")
            )
    return checks


def _check_reach(line: Table1Row, summary: Mapping[str, Any]) -> bounds.Check:
    """Return whether a row has the accuracy in few parameters, both as means."""
    assert line.reach is not None
    assert line.budget is not None
    parameters = summary["parameters"]["mean"]
    return bounds.Check(
        what=f"{line.row}: {line.reach:.2f} % in few parameters{line.because}",
        measured=f"{bounds.write_with_error(summary['accuracy'])} % in {parameters:,.0f}",
        bound=f"≥ {line.reach:.2f} % in ≤ {line.budget:,}",
        met=bounds.reaches(summary["accuracy"], line.reach) and parameters <= line.budget,
    )


def _check_merged(row: str, architectures: Sequence[str]) -> bounds.Check:
    n_merged = sum(architecture.count("-") < 3 for architecture in architectures)
    return bounds.Check(
        what=f"{row}: its third layer becomes linear and merges, as the paper's does",
        measured=f"in {n_merged} of {len(architectures)} seeds",
        bound="in every seed",
        met=n_merged == len(architectures),
    )


def _tabulate(derived: Derived) -> list[tables.Table]:
    summaries, choice = derived["rows"], derived["choice"]
    lines = [line for line in LINES if line.row in summaries]

    def accuracy(row: str) -> str:
        return tables.write_spread(summaries.get(row, {}).get("accuracy"), error=True)

    columns: list[tables.Column] = [
        ("row", lambda line: line.row),
        ("layers learnt", lambda line: line.layers),
        ("paper: architecture", lambda line: line.architecture),
        ("parameters", lambda line: tables.write_number(line.parameters, 0)),
        ("AL %", lambda line: tables.write_number(line.accuracy)),
        ("NN %", lambda line: tables.write_number(line.scratch)),
        ("ours: parameters", lambda line: tables.write_counts(summaries[line.row]["parameters"])),
        ("AL %", lambda line: accuracy(line.row) if line.budget else tables.NOTHING),
        ("NN %", lambda line: accuracy(line.row + NN if line.budget else line.row)),
        ("FFW %", lambda line: accuracy(line.row + _FFW)),
    ]
    learnt = [{"row": line.row, **summaries[line.row]} for line in lines if line.budget]
    sizes: list[tables.Column] = [
        ("row", "{row}"),
        ("size by", "{size}"),
        ("architecture learnt, by seed", tables.names_in("architectures")),
    ]
    n_runs = sum(spread["n"] for spread in choice.values())
    powers: list[tables.Column] = [
        ("cost power", lambda power: power),
        ("validation accuracy %", lambda power: tables.write_spread(choice[power])),
    ]
    search = (
        f"Search: {n_runs} runs at {_CHOICE_BUDGET:,} parameters with seeds of "
        f"{', '.join(map(str, recipes.CHOICE_SEEDS))} chose the power of the cost, the highest "
        "mean, for all rows."
    )
    return [
        tables.make_table(lines, columns),
        *table_1_penalty.tabulate_penalty(derived),
        tables.make_table(learnt, sizes),
        tables.make_table(choice, powers, search),
    ]


_STAGES = (try_cost_powers, learn_table_1, train_from_scratch, fix_widths)
EXPERIMENT = Experiment(
    _STAGES, _derive, _check, _tabulate, extra=table_1_penalty.learn_by_penalty, n_seeds=10
)
