"""Write the documentation's page of results."""

import re
import shutil
from pathlib import Path

from archlearn.errors import SettingsError
from archlearn_paper.comparison.stages import find_comparisons
from archlearn_paper.experiment import Check, Experiment, ResultTable
from archlearn_paper.experiment_registry import TITLES, find_experiment
from archlearn_paper.results import Results, read_results
from archlearn_paper.tables import compose_body, write_markdown

RESULTS_PAGE = "results.md"
FIGURES = "figures"
OPENING = """# Results

Every table and figure of the paper is one command; `archlearn paper` lists them. This page is
written by `archlearn paper --docs` from the files in `results/`, which hold every single run with
its settings, seed and learnt architecture. Nothing on it is typed in by hand but the notes.

Settings were chosen on validation data; where one was changed again with test results known, as in
table 1, the notes say so. With them every run that counts learnt from all 60,000 train examples of
MNIST or Fashion-MNIST, and the 10,000 test examples were looked at once, by its final network."""
_BLOCK = re.compile(r"(<!-- results: ([\w-]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)


def write_documentation(folder: Path, docs: Path) -> Path:
    """Write the page and copy its figures; return where the page is.

    Args:
        folder: Where the results are.
        docs: The documentation's folder.

    Raises:
        SettingsError: If there is no such folder.
    """
    if not docs.is_dir():
        raise SettingsError(
            f"there is no folder {docs} here to write the page into; go to the root of the "
            "repository"
        )
    found: list[tuple[Experiment, Results | None]] = [
        (find_experiment(name), read_results(folder, name)) for name in TITLES
    ]
    found += find_comparisons(folder)
    there = [(e, r) for e, r in found if r is not None and r.complete and not r.quick]
    missing = [e.name for e, r in found if r is None or not r.complete or r.quick]
    parts = [OPENING, _compose_failures(there)] if there else [OPENING]
    if missing:
        parts.append(f"No full results are there yet of {', '.join(missing)}.")
    for experiment, results in there:
        parts.append(f"## {experiment.name}: {experiment.title}")
        figure = f"{FIGURES}/{experiment.name}.svg"
        parts += compose_body(experiment, results, folder, figure=figure)
        _copy_figure(folder / f"{experiment.name}.svg", docs / figure)
    path = docs / RESULTS_PAGE
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    tables = {e.name: e.tabulate(r.derived)[0] for e, r in there}
    for page in sorted(docs.glob("*.md")):
        _fill_blocks(page, {name: write_markdown(table) for name, table in tables.items()})
    return path


def _fill_blocks(page: Path, tables: dict[str, str]) -> None:
    """Put the table of a name between its two marks, on any page that has them."""

    def fill(found: re.Match[str]) -> str:
        table = tables.get(found[2], "No full results are there yet.")
        return f"{found[1]}\n{table}\n\n{found[3]}"

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
    table = ResultTable(
        columns=("experiment", "what must be shown", "bound", "measured"),
        rows=tuple(_list_failure(e, check) for e, check in failed),
    )
    return f"{summary} The others, with what was measured:\n\n{write_markdown(table)}"


def _list_failure(experiment: Experiment, check: Check) -> tuple[str, ...]:
    link = f"[{experiment.name}](#{_anchor(experiment)})"
    return link, check.what, check.bound, check.measured


def _anchor(experiment: Experiment) -> str:
    """Return the anchor that Python-Markdown gives the experiment's heading."""
    heading = re.sub(r"[^\w\s-]", "", f"{experiment.name} {experiment.title}").strip().lower()
    return re.sub(r"[-\s]+", "-", heading)


def _copy_figure(source: Path, target: Path) -> None:
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
