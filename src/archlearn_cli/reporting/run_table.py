"""Table of several runs for the terminal: scores, costs, widths, time."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from archlearn.costs import COSTS, label_of
from archlearn_cli.reporting.formatting import (
    format_count,
    format_duration,
    format_number,
    format_percent,
    format_ratio,
)
from archlearn_cli.reporting.run_reader import RunRecord
from archlearn_cli.reporting.sections import write_widths


def make_run_table(runs: Sequence[RunRecord]) -> Table:
    """Return one row for each run, in the order of validation scores, the best first.

    The highest of several test scores is too high, so runs are compared by validation data.
    """
    table = Table(box=None, pad_edge=False)
    for title in ("run", "validation", "test", *map(label_of, COSTS), "time", "widths"):
        table.add_column(title, justify="left" if title in ("run", "widths") else "right")
    for run in sorted(runs, key=_rank):
        form = format_number if run.regression else format_percent
        costs = [(run.before.costs[name], run.after.costs[name]) for name in COSTS]
        table.add_row(
            Text(run.name),  # whatever it is called, it is no markup
            form(run.validation_score),
            form(run.test_score),
            *(f"{format_count(after)} ({format_ratio(start, after)})" for start, after in costs),
            format_duration(run.summary.get("seconds")),
            write_widths(run.after) + ("" if run.finished else " (unfinished)"),
        )
    return table


def _rank(run: RunRecord) -> tuple[bool, float]:
    """Return what is smallest for the best run; runs without a score are last."""
    score = run.validation_score
    return score is None, (score or 0.0) * (1 if run.regression else -1)
