"""Means, errors of means, rank correlations and paired tests of a few runs."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from scipy import stats

from archlearn_paper.experiment import Row


def measure_spread(values: Sequence[float]) -> dict[str, Any]:
    """Return mean, sample standard deviation, error of the mean and range, as plain data.

    For a single number the deviation is 0, and the error None, as it is unknown.
    """
    series: Any = pd.Series(values, dtype=float)
    several = len(values) > 1
    return {
        "mean": math.fsum(values) / len(values),  # exact, so that 99.025 is not rounded down
        "deviation": float(series.std()) if several else 0.0,
        "error": float(series.sem()) if several else None,
        "least": min(values),
        "most": max(values),
        "n": len(values),
    }


def group(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows by name, in order of their first appearance."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.row, []).append(row)
    return groups


def spread_of(rows: Sequence[Row], number: Callable[[Row], float]) -> dict[str, Any]:
    """Return the spread of one number over rows."""
    return measure_spread([number(row) for row in rows])


def summarise_rows(rows: Sequence[Row]) -> dict[str, Any]:
    """Return what a table states of the seeds of one row."""
    return {
        "seeds": [row.seed for row in rows],
        "architectures": [row.architecture for row in rows],
        "parameters": spread_of(rows, lambda row: row.parameters),
        "multiply_adds": spread_of(rows, lambda row: row.multiply_adds),
        "neurons": spread_of(rows, lambda row: row.n_neurons),
        "layers": spread_of(rows, lambda row: row.n_layers),
        "accuracy": spread_of(rows, lambda row: row.accuracy),
        "train_loss": spread_of(rows, lambda row: row.train_loss),
    }


def compare_by_seed(
    ours: Sequence[Row],
    theirs: Sequence[Row],
    number: Callable[[Row], float] = lambda row: row.accuracy,
) -> dict[str, Any]:
    """Return by how much a number of rows, the accuracy, is above that of the same seeds."""
    sides = [{row.seed: float(number(row)) for row in rows} for rows in (ours, theirs)]
    return measure_spread(pair_by_seed(*sides))


def pair_by_seed(ours: Mapping[Any, float], theirs: Mapping[Any, float]) -> list[float]:
    """Return the differences of two methods, seed by seed, where both have one."""
    return [ours[seed] - theirs[seed] for seed in ours if seed in theirs]


def paired_p_value(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of Student's paired test; 1 where there are fewer than two."""
    if len(set(differences)) < 2:  # equal ones have no error
        return 0.0 if len(differences) > 1 and differences[0] else 1.0
    test: Any = stats.ttest_1samp(differences, 0.0)
    return float(test.pvalue)


def correct_by_holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979), in the order given."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def correlate_ranks(x: Sequence[float], y: Sequence[float]) -> float:
    """Return Spearman's correlation: that of the ranks. NaN where either never varies."""
    # Not Series.corr, which rounds on the way: ranks are exact, and a perfect order is to give 1.
    a, b = (pd.Series(values).rank().to_numpy() - (len(x) + 1) / 2 for values in (x, y))
    norm = math.sqrt((a @ a) * (b @ b))
    return float(a @ b) / norm if norm else math.nan
