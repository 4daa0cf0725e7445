"""Table 1: LeNet on MNIST, learnt widths and depth, against training from scratch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from archlearn_paper.baselines.from_scratch import start_anew
from archlearn_paper.experiment import (
    Check,
    Derived,
    Experiment,
    FinishedRun,
    ResultTable,
    Row,
    RunTask,
    Scale,
    group,
    summarise,
)
from archlearn_paper.experiment_registry import TITLES
from archlearn_paper.fixed_width import Given, fix_width
from archlearn_paper.parallel_runs import Run
from archlearn_paper.recipes import (
    PLAIN_RATE_OF_AN_EXAMPLE,
    SMALL_WEIGHT_DECAY,
    Terms,
    baseline,
    learn_architecture,
    train_plainly,
)
from archlearn_paper.tables import NOTHING, write_count, write_counts, write_number, write_spread

BASELINE = "baseline"


@dataclass(frozen=True, kw_only=True, slots=True)
class Table1Row:
    """A row of the table.

    Attributes:
        terms: What is learnt at which price; None for the baseline.
        layers: The paper's "Layers Learnt": whether (width, depth) are, for each layer.
        architecture: The paper's.
        parameters: The paper's, counted with biases.
        accuracy: The paper's AL column.
        scratch: The paper's NN column.
        at_most: Parameters in which the accuracy `reach` is to be reached, as means.
    """

    row: str
    terms: Terms | None
    layers: str
    architecture: str = NOTHING
    parameters: int | None = None
    accuracy: float | None = None
    scratch: float | None = None
    reach: float | None = None
    at_most: int | None = None


LINES = (
    Table1Row(
        row=BASELINE,
        terms=None,
        layers="(0,x)-(0,x)-(0,0)",
        architecture="20-50-500-10",
        parameters=431_080,
        scratch=99.3,
    ),
    Table1Row(
        row="AL1",
        terms=Terms(learn="all", ratio=0.4, cost=1.25e-3),
        layers="(1,x)-(1,x)-(1,1)",
        architecture="16-26-10",
        parameters=15_012,
        accuracy=99.07,
        scratch=99.08,
        reach=99.07,
        at_most=5_000,
    ),
    Table1Row(
        row="AL2",
        terms=Terms(learn="width", ratio=0.4, cost=1e-3),
        layers="(1,x)-(1,x)-(1,0)",
        architecture="20-50-20-10",
        parameters=41_800,
        accuracy=99.07,
        scratch=99.14,
        reach=99.07,
        at_most=6_500,
    ),
    Table1Row(
        row="AL3",
        terms=Terms(
            learn="all", ratio=0.2, cost=4.85e-4, depth_share=0.1, rate=PLAIN_RATE_OF_AN_EXAMPLE
        ),
        layers="(1,x)-(1,x)-(1,1)",
        architecture="16-40-10",
        parameters=22_866,
        accuracy=99.22,
        scratch=99.25,
        reach=99.22,
        at_most=11_000,
    ),
    Table1Row(
        row="AL4",
        terms=Terms(learn="width", ratio=0.2, cost=7.6e-4),
        layers="(1,x)-(1,x)-(1,0)",
        architecture="20-50-70-10",
        parameters=82_350,
        accuracy=99.19,
        scratch=99.21,
        reach=99.19,
        at_most=10_000,
    ),
    Table1Row(
        row="ours, smallest",
        terms=Terms(
            learn="all",
            ratio=0.4,
            cost=3e-3,
            rate=PLAIN_RATE_OF_AN_EXAMPLE,
            weight_decay=SMALL_WEIGHT_DECAY,
        ),
        layers="(1,x)-(1,x)-(1,1)",
        reach=99.0,
        at_most=2_800,
    ),
)


"""The prices are ours and were settled on validation data; the paper gives the ratios alone. Those
of AL2, AL3 and of the smallest were moved again for their sizes: `results/table-1.notes.md`."""


def list_paper() -> list[dict[str, Any]]:
    """Return the paper's networks: parameters and accuracy, the baseline's being its NN column."""
    return [
        {"row": line.row, "parameters": line.parameters, "accuracy": line.accuracy or line.scratch}
        for line in LINES
        if line.parameters is not None
    ]


NN, FFW = " NN", " FFW"


FIXED = ("AL1", "AL2")


"""Rows whose numbers of neurons are also given instead of learnt."""


BASELINE_BOUND = 99.3


GAP_BOUND = -0.05


def learn_rows(scale: Scale, done: Sequence[FinishedRun]) -> list[RunTask]:
    """Return the baseline and the runs that learn an architecture."""
    del done
    return [
        Run(
            row=line.row,
            settings=baseline(scale, seed)
            if line.terms is None
            else learn_architecture(scale, seed, line.terms),
            finish_compact=line.terms is not None,
        )
        for line in LINES
        for seed in scale.seeds
    ]


def train_from_scratch(scale: Scale, done: Sequence[FinishedRun]) -> list[RunTask]:
    """Return the NN column: every learnt architecture, trained from fresh weights."""
    return [
        Run(
            row=finished.row.row + NN,
            settings=train_plainly(
                scale, finished.row.seed, rate=terms.rate, weight_decay=terms.weight_decay
            ),
            network=start_anew(finished.load_model(), finished.row.seed),
        )
        for finished in done
        if (terms := _terms_of(finished.row)) is not None
    ]


def fix_widths(scale: Scale, done: Sequence[FinishedRun]) -> list[RunTask]:
    """Return the FFW column: the learnt numbers are given, which neurons stay is learnt."""
    works: list[RunTask] = []
    for finished in done:
        terms = _terms_of(finished.row)
        if terms is None or finished.row.row not in FIXED:
            continue
        settings = learn_architecture(scale, finished.row.seed, terms)
        holder = fix_width(given_of(finished.row), settings)
        row = finished.row.row + FFW
        works.append(Run(row=row, settings=settings, after_epoch=holder, finish_compact=True))
    return works


def given_of(row: Row) -> Given:
    """Return the architecture that a run learnt, as one to be given."""
    hidden = dict(list(row.widths.items())[:-1])
    return Given(widths=hidden, linear=() if "fc1" in hidden else ("fc1",))


def _terms_of(row: Row) -> Terms | None:
    return next((line.terms for line in LINES if line.row == row.row), None)


def derive(rows: Sequence[Row]) -> dict[str, Any]:
    """Return what the table states of each row, and how far AL is from its NN column."""
    groups = group(rows)
    summaries = {name: summarise(members) for name, members in groups.items()}
    gaps = {
        line.row: _mean(summaries, line.row) - _mean(summaries, line.row + NN)
        for line in LINES
        if line.row in groups and line.row + NN in groups
    }
    return {"rows": summaries, "gaps": gaps, "paper": list_paper()}


def _mean(summaries: dict[str, Any], row: str) -> float:
    return summaries[row]["accuracy"]["mean"]


def check(derived: Derived) -> list[Check]:
    """Return what table 1 must show."""
    summaries, checks = derived["rows"], list[Check]()
    for line in LINES:
        summary = summaries.get(line.row)
        if summary is None:
            continue
        if line.terms is None:
            checks.append(_check_baseline(summary["accuracy"]["mean"]))
        if line.reach is not None and line.at_most is not None:
            checks.append(_check_reach(line, line.reach, line.at_most, summaries))
        if line.row in derived["gaps"]:
            checks.append(_check_gap(line.row, derived["gaps"][line.row]))
    return checks


def _check_reach(line: Table1Row, reach: float, at_most: int, summaries: dict[str, Any]) -> Check:
    """Return whether a row has the accuracy in few parameters."""
    accuracy = _mean(summaries, line.row)
    parameters = summaries[line.row]["parameters"]["mean"]
    return Check(
        what=f"{line.row}: {reach:.2f} % in few parameters",
        measured=f"{accuracy:.3f} % in {parameters:,.0f}",
        bound=f"≥ {reach:.2f} % in ≤ {at_most:,}",
        met=accuracy >= reach and parameters <= at_most,
    )


def _check_baseline(accuracy: float) -> Check:
    return Check(
        what="accuracy of the baseline",
        measured=f"{accuracy:.3f} %",
        bound=f"≥ {BASELINE_BOUND} %",
        met=accuracy >= BASELINE_BOUND,
    )


def _check_gap(row: str, gap: float) -> Check:
    return Check(
        what=f"{row}: accuracy of AL less that of its NN column",
        measured=f"{gap:+.3f}",
        bound=f"≥ {GAP_BOUND}",
        met=gap >= GAP_BOUND,
    )


def tabulate(derived: Derived) -> list[ResultTable]:
    """Return the paper's table with ours beside it, and the architectures of all seeds."""
    summaries = derived["rows"]
    lines = [line for line in LINES if line.row in summaries]
    columns = (
        "row",
        "layers learnt",
        "paper: architecture",
        "parameters",
        "AL %",
        "NN %",
        "ours: parameters",
        "AL %",
        "NN %",
        "FFW %",
    )
    rows = tuple(_tabulate_line(line, summaries) for line in lines)
    learnt = tuple(
        (line.row, _write_price(line.terms), ", ".join(summaries[line.row]["architectures"]))
        for line in lines
        if line.terms is not None
    )
    seeds = ResultTable(columns=("row", "price", "architecture learnt, by seed"), rows=learnt)
    return [ResultTable(columns=columns, rows=rows), seeds]


def _tabulate_line(line: Table1Row, summaries: dict[str, Any]) -> tuple[str, ...]:
    own = summaries[line.row]
    scratch, fixed = summaries.get(line.row + NN), summaries.get(line.row + FFW)
    accuracy = write_spread(own["accuracy"])
    learnt = line.terms is not None
    return (
        line.row,
        line.layers,
        line.architecture,
        write_count(line.parameters),
        write_number(line.accuracy),
        write_number(line.scratch),
        write_counts(own["parameters"]),
        accuracy if learnt else NOTHING,
        write_spread(scratch["accuracy"] if scratch else None) if learnt else accuracy,
        write_spread(fixed["accuracy"] if fixed else None),
    )


def _write_price(terms: Terms) -> str:
    return f"λ3 = {terms.cost:g} = {terms.ratio} λ1, by {terms.price}"


EXPERIMENT = Experiment(
    name="table-1",
    title=TITLES["table-1"],
    stages=(learn_rows, train_from_scratch, fix_widths),
    derive=derive,
    check=check,
    tabulate=tabulate,
)
