"""Table 2: the third layer compressed by SVD, against networks that learnt to be small."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from archlearn_paper.baselines.svd import factorise
from archlearn_paper.experiment import (
    Check,
    Derived,
    Evaluation,
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
from archlearn_paper.experiments.table_1 import BASELINE
from archlearn_paper.experiments.table_1 import LINES as TABLE_1
from archlearn_paper.parallel_runs import Run
from archlearn_paper.recipes import (
    PLAIN_RATE_OF_AN_EXAMPLE,
    Terms,
    baseline,
    fine_tune,
    learn_architecture,
)
from archlearn_paper.tables import write_counts, write_number, write_spread

LAYER = "fc1"
TUNED = ", fine-tuned"


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """A rank, and the rows that learnt to be as small or smaller.

    Attributes:
        terms: Of a row of about the same size as the factorised network.
        smaller: The row of table 1 that the paper compares with this rank.
        svd_size: The paper's parameters in thousands.
        svd_accuracy: The paper's, without fine-tuning.
    """

    rank: int
    terms: Terms
    smaller: str
    svd_size: float
    svd_accuracy: float
    al_size: float
    al_accuracy: float

    @property
    def svd_row(self) -> str:
        """Return the name of the factorised network's row."""
        return f"SVD rank {self.rank}"

    @property
    def al_row(self) -> str:
        """Return the name of the row that is about as large."""
        return f"AL, as large as rank {self.rank}"


SIZES = (
    Size(
        rank=10,
        terms=Terms(learn="width", cost=1.5e-4, rate=PLAIN_RATE_OF_AN_EXAMPLE),
        smaller="AL2",
        svd_size=43.6,
        svd_accuracy=98.47,
        al_size=40.9,
        al_accuracy=99.07,
    ),
    Size(
        rank=40,
        terms=Terms(learn="width", cost=6e-5, rate=PLAIN_RATE_OF_AN_EXAMPLE),
        smaller="AL4",
        svd_size=83.1,
        svd_accuracy=99.06,
        al_size=82.3,
        al_accuracy=99.19,
    ),
)


def learn_rows(scale: Scale, done: Sequence[FinishedRun]) -> list[RunTask]:
    """Return the baseline and all that learns an architecture; table 1 may have some of it."""
    del done
    terms = {line.row: line.terms for line in TABLE_1 if line.terms is not None}
    wanted = {size.smaller: (terms[size.smaller], scale) for size in SIZES}
    wanted |= {size.al_row: (size.terms, _as_long_as_svd(scale)) for size in SIZES}
    plain = [Run(row=BASELINE, settings=baseline(scale, seed)) for seed in scale.seeds]
    learnt = [
        Run(row=row, settings=learn_architecture(length, seed, of_row), finish_compact=True)
        for row, (of_row, length) in wanted.items()
        for seed in scale.seeds
    ]
    return [*plain, *learnt]


def _as_long_as_svd(scale: Scale) -> Scale:
    """Return a scale with the epochs that SVD has: those of the baseline and of fine-tuning."""
    return replace(scale, epochs=scale.epochs + (fine_tune(scale, 0).epochs or 0))


def factorise_baselines(scale: Scale, done: Sequence[FinishedRun]) -> list[RunTask]:
    """Return every baseline with its third layer at each rank, as it is and fine-tuned."""
    works: list[RunTask] = []
    for finished in done:
        if finished.row.row != BASELINE:
            continue
        network, seed = finished.load_model(), finished.row.seed
        for size in SIZES:
            thin = factorise(network, {LAYER: size.rank})
            settings = baseline(scale, seed)
            works.append(Evaluation(row=size.svd_row, settings=settings, network=thin))
            tuned = fine_tune(scale, seed)
            works.append(Run(row=size.svd_row + TUNED, settings=tuned, network=thin))
    return works


def derive(rows: Sequence[Row]) -> dict[str, Any]:
    """Return what the table states of each row, and the paper's networks."""
    paper = [
        {"row": row, "parameters": 1000 * thousands, "accuracy": accuracy}
        for row, (thousands, accuracy) in list_paper().items()
    ]
    summaries = {name: summarise(members) for name, members in group(rows).items()}
    return {"rows": summaries, "paper": paper}


def list_paper() -> dict[str, tuple[float, float]]:
    """Return the paper's rows: thousands of parameters, and accuracy."""
    paper = {BASELINE: (431.0, 99.3)}
    for size in SIZES:
        paper[size.svd_row] = (size.svd_size, size.svd_accuracy)
        paper[size.smaller] = (size.al_size, size.al_accuracy)
    return paper


def check(derived: Derived) -> list[Check]:
    """Return whether learning is above SVD at every size; last the paper's own comparison."""
    summaries, checks = derived["rows"], list[Check]()
    for size in SIZES:
        checks.append(_compare(summaries, size.al_row, size.svd_row))
        checks.append(_compare(summaries, size.al_row, size.svd_row + TUNED))
        checks.append(_compare(summaries, size.smaller, size.svd_row))
    return checks


def _compare(summaries: dict[str, Any], learnt: str, row: str) -> Check:
    ours, theirs = summaries[learnt], summaries[row]
    accuracy, bound = ours["accuracy"]["mean"], theirs["accuracy"]["mean"]
    parameters, limit = ours["parameters"]["mean"], theirs["parameters"]["mean"]
    return Check(
        what=f"{learnt} is above {row}",
        measured=f"{accuracy:.3f} % in {parameters:,.0f}",
        bound=f"> {bound:.3f} % in ≤ {limit:,.0f}",
        met=accuracy > bound and parameters <= limit,
    )


def tabulate(derived: Derived) -> list[ResultTable]:
    """Return the paper's table with ours beside it."""
    summaries, paper = derived["rows"], list_paper()
    order = [BASELINE]
    for size in SIZES:
        order += [size.svd_row, size.svd_row + TUNED, size.al_row, size.smaller]
    rows = tuple(
        (
            row,
            write_number(paper.get(row, (None, None))[0], 1),
            write_number(paper.get(row, (None, None))[1]),
            write_counts(summaries[row]["parameters"]),
            write_spread(summaries[row]["accuracy"]),
        )
        for row in order
    )
    columns = ("row", "paper: parameters, k", "accuracy %", "ours: parameters", "accuracy %")
    return [ResultTable(columns=columns, rows=rows)]


EXPERIMENT = Experiment(
    name="table-2",
    title=TITLES["table-2"],
    stages=(learn_rows, factorise_baselines),
    derive=derive,
    check=check,
    tabulate=tabulate,
    borrows=("table-1",),
)
