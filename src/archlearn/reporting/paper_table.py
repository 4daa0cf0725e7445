"""Costs by layer and accuracy of a run, or of several runs, as a LaTeX or Markdown table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from archlearn.reporting.formatting import format_count, format_percent
from archlearn.reporting.run_reader import RunRecord
from archlearn.reporting.sections import format_score, write_title

Markup = Literal["latex", "markdown"]
Counts = tuple[int | None, int | None]
_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"\u00a0": r"\,", "–": "--", "×": r"$\times$"}
)


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A table of text; its last rows, below a line, are sums and scores."""

    caption: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    n_sums: int = 0


def read_paper_table(runs: Sequence[RunRecord]) -> PaperTable:
    """Return the costs of a run by layer, or of several runs with one row each."""
    return _by_layer(runs[0]) if len(runs) == 1 else _by_run(runs)


def write_paper_table(table: PaperTable, markup: Markup) -> str:
    """Return a table as text to be pasted; LaTeX needs the package booktabs."""
    return _write_latex(table) if markup == "latex" else _write_markdown(table)


def _by_layer(run: RunRecord) -> PaperTable:
    """Return one row for each layer that multiplies, then what is left, the sums and the score."""
    layers, layers_after = run.before.layers, run.after.layers
    counts = {
        name: _pair(costs, layers_after.get(name, (0, 0)))
        for name, costs in layers.items()
        if costs[1]
    }
    total = _pair(
        (run.before.parameters, run.before.multiply_adds),
        (run.after.parameters, run.after.multiply_adds),
    )
    if counts:
        columns = zip(total, zip(*counts.values(), strict=True), strict=True)
        rest = tuple((n or 0) - sum(n or 0 for n in column) for n, column in columns)
        counts |= {"norms and others": rest} if any(rest) else {}
    rows = [(name, *map(format_count, row)) for name, row in counts.items()]
    sums = [
        ("total", *map(format_count, total)),
        ("left", "", _share(total[:2]), "", _share(total[2:])),
        (
            f"{run.score_name} ({run.score_source})",
            *(format_score(run, score) for score in (run.score_before, run.score)),
            *("", ""),
        ),
    ]
    head = ("layer", "parameters", "after", "multiply-adds", "after")
    return PaperTable(f"{write_title(run)}, before and after", head, [*rows, *sums], len(sums))


def _by_run(runs: Sequence[RunRecord]) -> PaperTable:
    head = ("run", runs[0].score_name, "parameters", "left", "multiply-adds", "left")
    rows = [
        (
            run.name,
            format_score(run, run.score),
            format_count(run.after.parameters),
            _share((run.before.parameters, run.after.parameters)),
            format_count(run.after.multiply_adds),
            _share((run.before.multiply_adds, run.after.multiply_adds)),
        )
        for run in runs
    ]
    titles = "; ".join(dict.fromkeys(map(write_title, runs)))
    return PaperTable(f"{titles}: scores on {runs[0].score_source} data", head, rows)


def _pair(before: Counts, after: Counts) -> tuple[int | None, ...]:
    """Put what was before beside what is after: parameters, then multiply-adds."""
    return before[0], after[0], before[1], after[1]


def _share(pair: Sequence[int | None]) -> str:
    before, after = pair
    return format_percent(after / before if before and after is not None else None, 1)


def _write_markdown(table: PaperTable) -> str:
    lines = [
        f"**{table.caption}**",
        "",
        _markdown_row(table.head),
        f"|---|{'---:|' * (len(table.head) - 1)}",
        *map(_markdown_row, table.rows),
    ]
    return "\n".join(lines) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _write_latex(table: PaperTable) -> str:
    rows = [_latex_row(row) for row in table.rows]
    if table.n_sums:
        rows.insert(len(rows) - table.n_sums, r"\midrule")
    lines = [
        r"\begin{table}",
        r"  \centering",
        f"  \\caption{{{table.caption.translate(_LATEX)}}}",
        f"  \\begin{{tabular}}{{l{'r' * (len(table.head) - 1)}}}",
        *(
            f"    {line}"
            for line in (r"\toprule", _latex_row(table.head), r"\midrule", *rows, r"\bottomrule")
        ),
        r"  \end{tabular}",
        r"\end{table}  % with \usepackage{booktabs}",
    ]
    return "\n".join(lines) + "\n"


def _latex_row(cells: Sequence[str]) -> str:
    return f"{' & '.join(cell.translate(_LATEX) for cell in cells)} \\\\"
