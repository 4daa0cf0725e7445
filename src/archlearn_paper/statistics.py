"""Means, spreads and rank correlation over the seeds and points of an experiment."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Numbers of several seeds.

    Attributes:
        deviation: Sample standard deviation; 0 for a single number.
    """

    mean: float
    deviation: float
    least: float
    most: float
    n: int

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def measure_spread(values: Sequence[float]) -> Spread:
    """Return mean, sample standard deviation and range.

    Raises:
        ValueError: If there are no values.
    """
    if not values:
        raise ValueError("a mean of no values was asked for; give one at least")
    mean = math.fsum(values) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    deviation = math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else 0.0
    return Spread(
        mean=mean, deviation=deviation, least=min(values), most=max(values), n=len(values)
    )


def rank(values: Sequence[float]) -> list[float]:
    """Return the place of each value in order, from 1; equal values share their mean place."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    ranks = [0.0] * len(values)
    first = 0
    while first < len(order):
        last = first
        while last + 1 < len(order) and values[order[last + 1]] == values[order[first]]:
            last += 1
        for place in range(first, last + 1):
            ranks[order[place]] = (first + last) / 2 + 1
        first = last + 1
    return ranks


def correlate_ranks(x: Sequence[float], y: Sequence[float]) -> float:
    """Return Spearman's correlation: that of the ranks. NaN where either never varies.

    Raises:
        ValueError: If there are fewer than two pairs, or one side is longer.
    """
    if len(x) != len(y) or len(x) < 2:
        raise ValueError(
            f"{len(x)} and {len(y)} values were given; give as many of both, 2 or more"
        )
    first, second = rank(x), rank(y)
    middle = (len(x) + 1) / 2
    a, b = [value - middle for value in first], [value - middle for value in second]
    norm = math.sqrt(math.fsum(v * v for v in a) * math.fsum(v * v for v in b))
    products = math.fsum(v * w for v, w in zip(a, b, strict=True))
    return products / norm if norm else math.nan
