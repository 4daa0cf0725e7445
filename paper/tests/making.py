"""Rows with numbers chosen by hand, and a watcher that counts rows."""

from io import StringIO
from typing import Any

import pandas as pd

from archlearn_paper.experiment import Row
from archlearn_paper.runner import ProgressLines


class Counter(ProgressLines):
    """Counts the runs that were made."""

    def __init__(self) -> None:
        super().__init__(StringIO())
        self.n = 0

    def finished(self, row: Row) -> None:
        self.n += 1


def make_row(row: str, seed: int = 0, **given: Any) -> Row:
    """Return a row of a small LeNet, with what is given changed."""
    table: dict[str, Any] = {
        "settings": {},
        "architecture": "2-3-4-10",
        "widths": {"conv1": 2, "conv2": 3, "fc1": 4, "fc2": 10},
        "n_layers": 4,
        "parameters": 1000,
        "multiply_adds": 5000,
        "train_loss": 0.5,
        "validation_accuracy": None,
        "validation_loss": None,
        "test_accuracy": 0.99,
        "test_loss": 0.1,
        "epochs": 3,
        "seconds": 1.0,
    }
    return Row(row=row, seed=seed, **(table | given))


def rows_of(table: pd.DataFrame) -> list[tuple[str, ...]]:
    """Return the cells of a table, row by row."""
    return list(table.itertuples(index=False, name=None))
