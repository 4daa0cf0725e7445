"""Numbers in a table: means with their spread, the paper's beside ours."""

from collections.abc import Mapping, Sequence
from typing import Any

from archlearn_paper.experiment import Check, Table

NOTHING = "–"


def write_spread(spread: Mapping[str, Any] | None, digits: int = 2) -> str:
    """Write a mean and its standard deviation: `99.31 ± 0.05`."""
    if spread is None:
        return NOTHING
    return f"{spread['mean']:.{digits}f} ± {spread['deviation']:.{digits}f}"


def write_counts(spread: Mapping[str, Any] | None) -> str:
    """Write a mean of whole numbers with its range: `4,555 (3,888–5,202)`."""
    if spread is None:
        return NOTHING
    mean = f"{spread['mean']:,.0f}"
    if spread["least"] == spread["most"]:
        return mean
    return f"{mean} ({spread['least']:,.0f}–{spread['most']:,.0f})"


def write_number(value: float | None, digits: int = 2) -> str:
    """Write a number of the paper; a dash where it has none."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def write_count(value: float | None) -> str:
    """Write a whole number with its thousands grouped; a dash where there is none."""
    return NOTHING if value is None else f"{value:,.0f}"


def join_architectures(architectures: Sequence[str]) -> str:
    """Write the architectures of all seeds, each once, in order."""
    return ", ".join(dict.fromkeys(architectures))


def write_markdown(table: Table) -> str:
    """Return a table in Markdown."""
    lines = [table.title, ""] if table.title else []
    lines.append(f"| {' | '.join(table.columns)} |")
    lines.append("|" + "---|" * len(table.columns))
    lines += [f"| {' | '.join(row)} |" for row in table.rows]
    return "\n".join(lines)


def write_text(table: Table) -> str:
    """Return a table in columns, for a terminal."""
    cells = [table.columns, *table.rows]
    widths = [max(len(row[place]) for row in cells) for place in range(len(table.columns))]
    lines = ["  ".join(f"{c:{w}}" for c, w in zip(row, widths, strict=True)) for row in cells]
    rule = "  ".join("-" * width for width in widths)
    title = [table.title] if table.title else []
    return "\n".join([*title, lines[0].rstrip(), rule, *(line.rstrip() for line in lines[1:])])


def tabulate_checks(checks: Sequence[Check]) -> Table:
    """Return what had to be shown and what was."""
    rows = tuple(
        (check.what, check.bound, check.measured, "yes" if check.met else "**no**")
        for check in checks
    )
    return Table(columns=("what must be shown", "bound", "measured", "met"), rows=rows)
