"""Table 2: the third layer compressed by SVD, against networks that learnt to be small."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from archlearn_paper import bounds, recipes, statistics, tables
from archlearn_paper.baselines.svd import factorise
from archlearn_paper.experiment import Derived, Experiment, FinishedRun, Origin, Row, Run, Scale
from archlearn_paper.experiments import table_1
from archlearn_paper.recipes import baseline, fine_tune, learn_to_budget

_LAYER = "fc1"
TUNED = ", fine-tuned"


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """A rank, and the rows that learnt to be as small or smaller.

    Attributes:
        parameters: Of the network at this rank: the budget of the row that is as large.
        smaller: The row of table 1 that the paper compares with this rank.
        svd_size: The paper's parameters in thousands.
        svd_accuracy: The paper's, without fine-tuning.
    """

    rank: int
    parameters: int
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

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Return what is compared: at equal size and epochs, and as the paper does."""
        return (self.al_row, self.svd_row + TUNED), (self.smaller, self.svd_row)


SVD_SIZES = tuple(
    Size(rank=int(n), **numbers) for n, numbers in recipes.read_paper("table-2").items()
)


def _learn_rows(scale: Scale, done: Sequence[FinishedRun]) -> list[Run]:
    """Return the baseline and all that learns an architecture; table 1 has some of it."""
    power = table_1.choose_cost_power([finished.row for finished in done])
    shared = {table_1.BASELINE, *(size.smaller for size in SVD_SIZES)}
    # As many epochs as SVD has: those of the baseline and of fine-tuning.
    longer = replace(scale, epochs=scale.epochs + (fine_tune(scale, 0).epochs or 0))
    as_large = [
        Run(
            row=size.al_row,
            settings=learn_to_budget(longer, seed, size.parameters, power, learn="width"),
            finish_compact=True,
        )
        for size in SVD_SIZES
        for seed in scale.seeds
    ]
    return [*(run for run in table_1.learn_table_1(scale, done) if run.row in shared), *as_large]


def _factorise_baselines(scale: Scale, done: Sequence[FinishedRun]) -> list[Run]:
    """Return every baseline with its third layer at each rank, as it is and fine-tuned."""
    works: list[Run] = []
    for finished in done:
        if finished.row.row != table_1.BASELINE:
            continue
        for size in SVD_SIZES:
            make = partial(factorise, ranks={_LAYER: size.rank})
            thin = Origin(make=make, parent=finished)
            settings = baseline(scale, finished.row.seed)
            works.append(Run(row=size.svd_row, settings=settings, origin=thin, is_trained=False))
            tuned = fine_tune(scale, finished.row.seed)
            works.append(Run(row=size.svd_row + TUNED, settings=tuned, origin=thin))
    return works


def _derive(rows: Sequence[Row]) -> dict[str, Any]:
    paper = [
        {"row": row, "parameters": 1000 * thousands, "accuracy": accuracy}
        for row, (thousands, accuracy) in _list_paper().items()
    ]
    groups = statistics.group([row for row in rows if not row.row.startswith(table_1.CHOICE)])
    summaries = {
        name: statistics.summarise_rows(members) | {"size": table_1.describe_size(members[0])}
        for name, members in groups.items()
    }
    gaps = [
        {
            "learnt": ours,
            "other": theirs,
            "gap": statistics.compare_by_seed(groups[ours], groups[theirs]),
        }
        for size in SVD_SIZES
        for ours, theirs in size.pairs
    ]
    return {"rows": summaries, "paper": paper, "gaps": gaps}


def _list_paper() -> dict[str, tuple[float, float]]:
    """Return the paper's rows: thousands of parameters, and accuracy."""
    paper = {table_1.BASELINE: (431.0, 99.3)}
    for size in SVD_SIZES:
        paper[size.svd_row] = (size.svd_size, size.svd_accuracy)
        paper[size.smaller] = (size.al_size, size.al_accuracy)
    return paper


def _check(derived: Derived) -> list[bounds.Check]:
    summaries, checks = derived["rows"], list[bounds.Check]()
    for compared in derived["gaps"]:
        ours, theirs, gap = compared["learnt"], compared["other"], compared["gap"]
        parameters, limit = (summaries[row]["parameters"]["mean"] for row in (ours, theirs))
        checks.append(
            bounds.Check(
                what=f"{ours} is above {theirs}",
                measured=f"{bounds.write_with_error(gap)} points in {parameters:,.0f}",
                bound=f"> 0 points in ≤ {limit:,.0f}",
                met=bounds.reaches(gap, 0.0) and gap["mean"] > 0 and parameters <= limit,
            )
        )
    return checks


def _tabulate(derived: Derived) -> list[tables.Table]:
    order = [table_1.BASELINE]
    for size in SVD_SIZES:
        order += [size.svd_row, size.svd_row + TUNED, size.al_row, size.smaller]
    paper = _list_paper()
    rows = [
        {"row": row, "paper": paper.get(row, (None, None)), **derived["rows"][row]} for row in order
    ]
    columns: list[tables.Column] = [
        ("row", "{row}"),
        ("paper: parameters, k", lambda row: tables.write_number(row["paper"][0], 1)),
        ("accuracy %", lambda row: tables.write_number(row["paper"][1])),
        ("ours: parameters", tables.counts_in("parameters")),
        ("accuracy %", tables.spread_in("accuracy", error=True)),
        ("size by", lambda row: row["size"] if row["row"].startswith("AL") else tables.NOTHING),
    ]
    return [tables.make_table(rows, columns)]


_STAGES = (table_1.try_cost_powers, _learn_rows, _factorise_baselines)
EXPERIMENT = Experiment(_STAGES, _derive, _check, _tabulate)
