"""Means, errors of means, rank correlations and paired tests of a few runs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_SLICES = 2000
"""Of the integral that a tail of Student's distribution is."""


def measure_spread(values: Sequence[float]) -> dict[str, Any]:
    """Return mean, sample standard deviation, error of the mean and range, as plain data.

    For a single number the deviation is 0, and the error None, as it is unknown.
    """
    n = len(values)
    mean = math.fsum(values) / n
    squares = math.fsum((value - mean) ** 2 for value in values)
    deviation = math.sqrt(squares / (n - 1)) if n > 1 else 0.0
    return {
        "mean": mean,
        "deviation": deviation,
        "error": deviation / math.sqrt(n) if n > 1 else None,
        "least": min(values),
        "most": max(values),
        "n": n,
    }


def pair_by_seed(ours: Mapping[Any, float], theirs: Mapping[Any, float]) -> list[float]:
    """Return the differences of two methods, seed by seed, where both have one."""
    return [ours[seed] - theirs[seed] for seed in ours if seed in theirs]


def paired_p_value(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of Student's paired test; 1 where there are fewer than two.

    By the substitution t = sqrt(n) tan(a) the tail is an integral of a power of the cosine.
    """
    if len(differences) < 2:
        return 1.0
    spread = measure_spread(differences)
    mean, error, freedom = spread["mean"], spread["error"], len(differences) - 1
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    angle = math.atan(abs(mean) / error / math.sqrt(freedom))
    width = (math.pi / 2 - angle) / _SLICES
    heights = [math.cos(angle + (i + 0.5) * width) ** (freedom - 1) for i in range(_SLICES)]
    whole = math.sqrt(math.pi) * math.gamma(freedom / 2) / math.gamma((freedom + 1) / 2) / 2
    return min(1.0, math.fsum(heights) * width / whole)


def correct_by_holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979), in the order given."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected, largest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - place) * p_values[index]))
        corrected[index] = largest
    return corrected


def rank(values: Sequence[float]) -> list[float]:
    """Return the place of each value in order, from 1; equal values share their mean place."""
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place].tolist()


def correlate_ranks(x: Sequence[float], y: Sequence[float]) -> float:
    """Return Spearman's correlation: that of the ranks. NaN where either never varies."""
    # Not np.corrcoef, which rounds on the way: ranks are exact, and a perfect order is to give 1.
    a, b = (np.array(rank(values)) - (len(x) + 1) / 2 for values in (x, y))
    norm = math.sqrt((a @ a) * (b @ b))
    return float(a @ b) / norm if norm else math.nan
