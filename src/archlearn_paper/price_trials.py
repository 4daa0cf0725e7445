"""Prices that were tried on validation data, as `benchmarks/choose_prices.py` wrote them down."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from archlearn_paper.experiment import Table, measure_spread
from archlearn_paper.tables import write_counts, write_spread

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


def tabulate_later(path: Path) -> Table:
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
    return Table(
        columns=("tried", "architectures", "parameters", "validation accuracy %"), rows=rows
    )


def tabulate_tries(path: Path) -> Table:
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
    return Table(columns=columns, rows=rows)


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


def tabulate_trials(points: Sequence[dict[str, Any]]) -> Table:
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
    return Table(columns=columns, rows=rows)
