"""Tables and pages of results, as text and Markdown, and the documentation's page of them all."""

import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from archlearn.errors import SettingsError
from archlearn_paper import bounds
from archlearn_paper.experiment import Experiment
from archlearn_paper.results import Results

NOTHING = "–"


def write_spread(spread: Mapping[str, Any] | None, digits: int = 2, *, error: bool = False) -> str:
    """Write a mean and its standard deviation, `99.31 ± 0.05`, of one run the number alone.

    With `error` comes the error of the mean, in brackets: `99.31 ± 0.05 (0.02)`.
    """
    if spread is None:
        return NOTHING
    mean = f"{spread['mean']:.{digits}f}"
    if spread["error"] is None:
        return mean
    more = f" ({spread['error']:.{digits}f})" if error else ""
    return f"{mean} ± {spread['deviation']:.{digits}f}{more}"


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
    return NOTHING if value is None else f"{value:,.{digits}f}"


Table = pd.DataFrame
"""Of what is printed: the paper's numbers beside ours; `attrs["title"]` may stand above it."""
Column = tuple[str, str | Callable[[Any], str]]
"""The title of a column, and what it writes of a row: a format of its entries, as "{cost:g}", or a
function of it."""


def make_table(rows: Iterable[Any], columns: Sequence[Column], title: str = "") -> Table:
    """Return a table with a line for each row; of one that is None it has dashes."""

    def write(row: Any, how: str | Callable[[Any], str]) -> str:
        if row is None:
            return NOTHING
        return how.format_map(row) if isinstance(how, str) else how(row)

    cells = [[write(row, how) for _, how in columns] for row in rows]
    table = pd.DataFrame(cells, columns=pd.Index([name for name, _ in columns]), dtype=str)
    table.attrs["title"] = title
    return table


def counts_in(entry: str) -> Callable[[Any], str]:
    """Return what writes the spread of whole numbers that an entry of a row is."""
    return lambda row: write_counts(row[entry])


def spread_in(entry: str, digits: int = 2, *, error: bool = False) -> Callable[[Any], str]:
    """Return what writes the spread that an entry of a row is."""
    return lambda row: write_spread(row[entry], digits, error=error)


def names_in(entry: str) -> Callable[[Any], str]:
    """Return what writes the names that an entry of a row lists."""
    return lambda row: ", ".join(row[entry])


def write_markdown(table: Table) -> str:
    """Return a table in Markdown."""
    lines = [table.attrs["title"], ""] if table.attrs["title"] else []
    lines.append(f"| {' | '.join(table.columns)} |")
    lines.append("|" + "---|" * len(table.columns))
    lines += [f"| {' | '.join(row)} |" for row in table.to_numpy()]
    return "\n".join(lines)


def tabulate_checks(checks: Sequence[bounds.Check]) -> Table:
    """Return what had to be shown and what was."""
    columns: list[Column] = [
        ("what must be shown", lambda check: check.what),
        ("bound", lambda check: check.bound),
        ("measured", lambda check: check.measured),
        ("met", lambda check: "yes" if check.met else "**no**"),
    ]
    return make_table(checks, columns)


def _describe_quick(results: Results) -> str:
    """Return what is small about a quick version: experiments differ in it."""
    limits: list[int] = [row.settings.get("limit") or 0 for row in results.rows]
    return (
        f"This is the quick version: {_write_range(limits)} train examples, "
        f"{_write_range(row.epochs for row in results.rows)} epochs a run, "
        f"{len(results.seeds)} seed(s), a part of the points and of the test examples. It shows "
        "that everything works, not what the method reaches: the bounds below are those of the "
        "full run."
    )


def _write_range(numbers: Iterable[int]) -> str:
    """Write the least and the most of some numbers, zeros left aside: `2 to 8`, or `8`."""
    ordered = sorted(filter(None, numbers)) or [0]
    return " to ".join(f"{number:,}" for number in dict.fromkeys((ordered[0], ordered[-1])))


def describe_circumstances(results: Results) -> str:
    """Return how the results were made."""
    if not results.rows:
        return f"Made by {_name_command(results)}."
    seeds = ", ".join(str(seed) for seed in sorted({row.seed for row in results.rows}))
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    digests = " The JSON beside holds the SHA-256 digest of the file of every network."
    return (
        f"Made by {_name_command(results)} on {results.date}; "
        f"{results.hardware['name']}, {versions}; commit {', '.join(results.commits)}; "
        f"seeds {seeds}; {_write_range(row.epochs for row in results.rows)} epochs a run; "
        f"{len(results.rows)} runs in {results.seconds:,.0f} s of training. Means ± standard "
        "deviation over the seeds, in brackets the error of the mean; of whole numbers the range. "
        "A bound is met if the mean less one error of it meets it."
        + digests
        * all(row.digest for row in results.rows)
    )


def _name_command(results: Results) -> str:
    """Return the command that makes such results today; the JSON has the one that made these."""
    quick = " --quick" * results.quick
    if results.experiment.startswith("compare-"):
        return f"`archlearn compare{quick} --data {results.scale['data']}`"
    images = " --data tiny-imagenet:DIR" * str(results.scale["data"]).startswith("tiny-imagenet")
    return f"`archlearn paper {results.experiment}{quick}{images}`"


def compose_body(
    experiment: Experiment, results: Results, folder: Path, *, figure: str
) -> list[str]:
    """Return figure, tables, checks, circumstances and notes, each as Markdown.

    What a person has to say of it, `NAME.notes.md` beside the results, comes last.
    """
    missing = results.derived.get("missing", {}).items()
    rows = "; ".join(f"{row}, seeds {', '.join(map(str, seeds))}" for row, seeds in missing)
    parts = [f"Not made yet: {rows}."] if rows else []
    if (folder / f"{experiment.name}.svg").is_file():
        parts.append(f"![{experiment.title}]({figure})")
    parts += [write_markdown(table) for table in experiment.tabulate(results.derived)]
    checks = experiment.check(results.derived)
    if checks:
        parts.append(write_markdown(tabulate_checks(checks)))
    parts.append(describe_circumstances(results))
    notes = folder / f"{experiment.name}.notes.md"
    if notes.is_file():
        parts.append(notes.read_text(encoding="utf-8").strip())
    return parts


def write_page(experiment: Experiment, results: Results, folder: Path) -> Path:
    """Write the page of an experiment beside its results, and return where."""
    parts = [f"# {experiment.name}: {experiment.title}"]
    if results.quick:
        parts.append(_describe_quick(results))
    parts += compose_body(experiment, results, folder, figure=f"{experiment.name}.svg")
    path = folder / f"{experiment.name}.md"
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


_RESULTS_PAGE = "results.md"
_FIGURES = "figures"
_OPENING = """# Results

Every table and figure of the paper is one command; `archlearn paper` lists them. This page is
written by `archlearn paper --docs` from the files in `results/`, which hold every single run with
its settings, seed and learnt architecture. Nothing on it is typed in by hand but the notes.

Settings were chosen on validation data; where one was changed again with test results known, as in
table 1, the notes say so. With them every run that counts learnt from all 60,000 train examples of
MNIST or Fashion-MNIST, and the 10,000 test examples were looked at once, by its final network."""
ResultsFound = tuple[Experiment, Results | None]
_BLOCK = re.compile(r"(<!-- results: ([\w-]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)


def write_documentation(finished: Sequence[ResultsFound], folder: Path, docs: Path) -> Path:
    """Write the documentation's page of results and copy its figures; return where the page is."""
    if not docs.is_dir():
        raise SettingsError(
            f"there is no folder {docs} here to write the page into; go to the root of the "
            "repository"
        )
    there = [(e, r) for e, r in finished if r is not None and r.complete and not r.quick]
    missing = [e.name for e, r in finished if r is None or not r.complete or r.quick]
    parts = [_OPENING, _compose_failures(there)] if there else [_OPENING]
    if missing:
        parts.append(f"No full results are there yet of {', '.join(missing)}.")
    for experiment, results in there:
        parts.append(f"## {experiment.name}: {experiment.title}")
        figure = f"{_FIGURES}/{experiment.name}.svg"
        parts += compose_body(experiment, results, folder, figure=figure)
        if (folder / f"{experiment.name}.svg").is_file():
            (docs / figure).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / f"{experiment.name}.svg", docs / figure)
    path = docs / _RESULTS_PAGE
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    tables = {e.name: e.tabulate(r.derived)[0] for e, r in there}
    for page in sorted(docs.glob("*.md")):
        _fill_blocks(page, {name: write_markdown(table) for name, table in tables.items()})
    return path


def _fill_blocks(page: Path, tables: dict[str, str]) -> None:
    """Put the table of a name between its two marks, on any page that has them."""

    def fill(block: re.Match[str]) -> str:
        table = tables.get(block[2], "No full results are there yet.")
        return f"{block[1]}\n{table}\n\n{block[3]}"

    text = page.read_text(encoding="utf-8")
    filled = _BLOCK.sub(fill, text)
    if filled != text:
        page.write_text(filled, encoding="utf-8")


def _compose_failures(there: list[tuple[Experiment, Results]]) -> str:
    """Return what had to be shown and was not, of all experiments."""
    checks = [(e, check) for e, results in there for check in e.check(results.derived)]
    failed = [(e, check) for e, check in checks if not check.met]
    met = len(checks) - len(failed)
    summary = f"## What did not reproduce\n\n{met} of {len(checks)} checks are met."
    if not failed:
        return summary
    columns: list[Column] = [
        ("experiment", lambda pair: f"[{pair[0].name}](#{_anchor(pair[0])})"),
        ("what must be shown", lambda pair: pair[1].what),
        ("bound", lambda pair: pair[1].bound),
        ("measured", lambda pair: pair[1].measured),
    ]
    table = make_table(failed, columns)
    return f"{summary} The others, with what was measured:\n\n{write_markdown(table)}"


def _anchor(experiment: Experiment) -> str:
    """Return the anchor that Python-Markdown gives the experiment's heading."""
    heading = re.sub(r"[^\w\s-]", "", f"{experiment.name} {experiment.title}").strip().lower()
    return re.sub(r"[-\s]+", "-", heading)
