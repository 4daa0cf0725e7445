"""Write the documentation's page of results."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from archlearn_paper.comparison.stages import find_comparisons
from archlearn_paper.experiment import Check, Experiment, ResultTable
from archlearn_paper.experiment_registry import TITLES, find_experiment
from archlearn_paper.results import Results, read_results
from archlearn_paper.statistics import measure_spread
from archlearn_paper.tables import compose_body, write_counts, write_markdown, write_spread

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
    """
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
    tables = {e.name: e.tabulate(r.derived)[0] for e, r in there} | _add_trials(folder, docs)
    for page in sorted(docs.glob("*.md")):
        _fill_blocks(page, {name: write_markdown(table) for name, table in tables.items()})
    return path


def _add_trials(folder: Path, docs: Path) -> dict[str, ResultTable]:
    """Return the tables of all that was tried, and copy the figure of the prices."""
    tables: dict[str, ResultTable] = {}
    if (folder / TRIALS).is_file():
        _copy_figure(folder / f"{NAME}.svg", docs / FIGURES / f"{NAME}.svg")
        tables[NAME] = tabulate_trials(read_trials(folder / TRIALS))
    for name, file in LATER_TRIALS.items():
        if (folder / file).is_file():
            tables[name] = tabulate_later(folder / file)
    if (folder / TRIES).is_file():
        tables[TRIES_NAME] = tabulate_tries(folder / TRIES)
    return tables


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


TRIALS = "choosing_prices.jsonl"
NAME = "choosing-prices"
LATER_TRIALS = {
    "choosing-rates": "choosing_prices_2.jsonl",
    "choosing-for-small": "choosing_prices_3.jsonl",
    "choosing-for-medium": "choosing_prices_4.jsonl",
}
"""What else was tried, by the name of its table."""
TRIES, TRIES_NAME = "table_1_tries.jsonl", "table-1-tries"
"""Full runs of two rows of table 1, one line a run: their prices were moved between them."""
_PLAIN = re.compile(r"(all|width) (neuron|param) ([\d.e-]+)$")
"""Rows in which nothing but the price and what is learnt differs."""
_WORDS = {"all": "width and depth", "width": "width", "neuron": "neurons", "param": "parameters"}


def read_trials(path: Path) -> list[dict[str, Any]]:
    """Return one point for each price: means over the seeds, smallest cost first."""
    groups = _group(path)
    points = [_make_point(found, runs) for name, runs in groups.items() if (found := _match(name))]
    return sorted(points, key=lambda point: (point["learnt"], point["price"], point["cost"]))


def _group(path: Path) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        groups.setdefault(run["row"], []).append(run)
    return groups


def tabulate_later(path: Path) -> ResultTable:
    """Return one row for each thing that a later grid tried: means over its seeds."""
    rows = tuple(
        (
            name,
            ", ".join(run["architecture"] for run in runs),
            write_counts(measure_spread([run["parameters"] for run in runs]).to_json()),
            write_spread(
                measure_spread([100 * run["validation_accuracy"] for run in runs]).to_json()
            ),
        )
        for name, runs in _group(path).items()
    )
    return ResultTable(
        columns=("tried", "architectures", "parameters", "validation accuracy %"), rows=rows
    )


def tabulate_tries(path: Path) -> ResultTable:
    """Return one row for each price at which a row of table 1 was run, in the order of the runs."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        terms = [f"{run[name]:g}" for name in ("width_cost", "learning_rate", "weight_decay")]
        groups.setdefault((run["row"], *terms), []).append(run)
    rows = tuple(
        (
            *terms,
            write_counts(measure_spread([run["parameters"] for run in runs]).to_json()),
            write_spread(measure_spread([100 * run["test_accuracy"] for run in runs]).to_json(), 3),
        )
        for terms, runs in sorted(groups.items(), key=lambda pair: pair[0][0])
    )
    columns = ("row", "λ3", "rate of weights", "weight decay", "parameters", "test accuracy %")
    return ResultTable(columns=columns, rows=rows)


def _match(name: str) -> re.Match[str] | None:
    return _PLAIN.match(name)


def _make_point(found: re.Match[str], runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    accuracies = [100 * run["validation_accuracy"] for run in runs]
    return {
        "learnt": _WORDS[found[1]],
        "price": _WORDS[found[2]],
        "cost": float(found[3]),
        "architectures": [run["architecture"] for run in runs],
        "parameters": measure_spread([run["parameters"] for run in runs]).to_json(),
        "accuracy": measure_spread(accuracies).to_json(),
    }


def tabulate_trials(points: Sequence[dict[str, Any]]) -> ResultTable:
    """Return one row for each price."""
    rows = tuple(
        (
            point["learnt"],
            point["price"],
            f"{point['cost']:g}",
            ", ".join(point["architectures"]),
            write_counts(point["parameters"]),
            write_spread(point["accuracy"]),
        )
        for point in points
    )
    columns = ("learnt", "price on", "λ3", "architectures", "parameters", "validation accuracy %")
    return ResultTable(columns=columns, rows=rows)
