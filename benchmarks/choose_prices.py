"""Prices tried on the validation split, from which the experiments' own were taken.

The test examples are never looked at here: 5,000 of the 60,000 train examples are set apart, in the
others 10,000. Each finished run is one line of the file. About 200 s on an H200, the second grid
100 s, the third 130 s, the fourth 80 s.

    python benchmarks/choose_prices.py --out results/choosing_prices.jsonl
    python benchmarks/choose_prices.py --grid second --out results/choosing_prices_2.jsonl
    python benchmarks/choose_prices.py --grid third --out results/choosing_prices_3.jsonl
    python benchmarks/choose_prices.py --grid fourth --out results/choosing_prices_4.jsonl
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from archlearn.training.config import override
from archlearn.training.settings import RunSettings
from archlearn_paper.outcomes import Outcome
from archlearn_paper.parallel_runs import Run, SilentParallelRunsCallback, train_side_by_side

SEEDS = {
    "first": (100, 101),
    "second": (100, 101, 102, 103, 104),
    "third": (100, 101, 102, 103, 104),
    "fourth": (100, 101, 102, 103, 104),
}
FEWER_SEEDS = 103
"""Large networks take longer: they have the seeds below this."""
COMMON = {"epochs": 80, "batch_size": 250, "start_after": 0.04, "freeze_for": 0.68}
COMMON |= {"depth_share": 1.0}
BY_PARAMETERS = {"price": "parameters"}


def grid() -> Iterator[tuple[str, dict[str, Any]]]:
    for cost in (3e-4, 6e-4, 1.2e-3, 2.4e-3):
        yield f"all param {cost:g}", {"learn": "all", "width_cost": cost, **BY_PARAMETERS}
    for cost in (3e-4, 6e-4, 1.2e-3):
        yield f"all neuron {cost:g}", {"learn": "all", "width_cost": cost}
        yield f"width param {cost:g}", {"learn": "width", "width_cost": cost, **BY_PARAMETERS}
        yield f"width neuron {cost:g}", {"learn": "width", "width_cost": cost}
    middle = {"learn": "all", "width_cost": 1.2e-3, **BY_PARAMETERS}
    yield "all param 1.2e-3 wd1e-4", middle | {"weight_decay": 1e-4}
    yield "all param 1.2e-3 lr.08", middle | {"learning_rate": 0.08}
    yield "all param 6e-4 ratio.2", middle | {"width_cost": 6e-4, "ratio": 0.2}
    for cost in (6e-4, 8e-4):
        given = {"width_cost": cost, "ratio": 0.2}
        yield f"width neuron {cost:g} ratio.2", {"learn": "width", **given}
        yield f"all neuron {cost:g} ratio.2", {"learn": "all", **given}
    for cost in (1.6e-3, 2.2e-3):
        yield f"all neuron {cost:g}", {"learn": "all", "width_cost": cost}
    yield "width neuron 9e-4", {"learn": "width", "width_cost": 9e-4}


def second_grid() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield rows that the first full runs left open: AL3, and AL as large as SVD of rank 40.

    All else is as in `experiments.recipes`; 78 epochs are what SVD has with its fine-tuning.
    """
    common = {"validation": 1 / 6, "freeze_for": 0.6, "warmup_epochs": 3.0, "weight_decay": 5e-4}
    third = common | {"learn": "all", "width_cost": 6.7e-4, "ratio": 0.2, "epochs": 60}
    large = common | {"learn": "width", "epochs": 78}
    for share, rate in ((1.0, 0.04), (0.1, 0.04), (0.1, 0.08)):
        given = {"depth_share": share, "learning_rate": rate}
        yield f"AL3 share {share:g} rate {rate:g}", third | given
    for cost, rate in ((8e-5, 0.04), (8e-5, 0.08), (1.2e-4, 0.08)):
        given = {"width_cost": cost, "learning_rate": rate}
        yield f"rank 40, {cost:g} rate {rate:g}", large | given


def third_grid() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what very small networks might gain from, each change by itself.

    The first is the smallest row of table 1 as it was then, between two prices that it had.
    """
    common = {"validation": 1 / 6, "freeze_for": 0.6, "warmup_epochs": 3.0, "weight_decay": 5e-4}
    common |= {"learn": "all", "width_cost": 2.8e-3, "learning_rate": 0.08, "epochs": 60}
    yield "smallest", common
    for decay in (1e-3, 2e-3):
        yield f"smallest, weight decay {decay:g}", common | {"weight_decay": decay}
    yield "smallest, rate 0.16", common | {"learning_rate": 0.16}
    yield "smallest, gates still for 0.75", common | {"freeze_for": 0.75}
    yield "smallest, price on parameters", common | BY_PARAMETERS | {"width_cost": 1.3e-3}
    yield "smallest, 120 epochs", common | {"epochs": 120}


def fourth_grid() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what the third grid found, for networks of medium size."""
    common = {"validation": 1 / 6, "freeze_for": 0.6, "warmup_epochs": 3.0, "epochs": 60}
    common |= {"learn": "all", "ratio": 0.2, "depth_share": 0.1, "learning_rate": 0.08}
    for decay, cost in ((5e-4, 5.15e-4), (1e-3, 5.15e-4), (1e-3, 4.5e-4)):
        given = {"width_cost": cost, "weight_decay": decay}
        yield f"AL3, {cost:g}, weight decay {decay:g}", common | given


GRIDS = {"first": grid, "second": second_grid, "third": third_grid, "fourth": fourth_grid}


def make_run(row: str, seed: int, given: dict[str, Any], data: str) -> Run:
    settings = override(RunSettings(), COMMON | given | {"seed": seed, "data": data})
    return Run(row=row, settings=settings, finish_compact=True)


class Writer(SilentParallelRunsCallback):
    """Writes a line for each run that has ended."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def finished(self, outcome: Outcome) -> None:
        """Write the line; nothing of the test examples is in it."""
        line = {
            "row": outcome.row,
            "seed": outcome.seed,
            "architecture": outcome.architecture,
            "parameters": outcome.parameters,
            "validation_accuracy": outcome.validation_accuracy,
            "train_loss": outcome.train_loss,
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--out", type=Path, default=Path("results/choosing_prices.jsonl"))
    parser.add_argument("--grid", choices=GRIDS, default="first")
    asked = parser.parse_args()
    rows = list(GRIDS[asked.grid]())
    runs = [
        make_run(row, seed, given, asked.data)
        for row, given in rows
        for seed in SEEDS[asked.grid]
        if seed < FEWER_SEEDS or not row.startswith("rank")
    ]
    with asked.out.open("w") as file:
        train_side_by_side(runs, observer=Writer(file))


if __name__ == "__main__":
    main()
