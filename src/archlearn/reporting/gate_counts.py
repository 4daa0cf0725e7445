"""Gates at the end should be binary: how many stand where, now and over the epochs."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from archlearn.reporting.json_values import Table, as_count, as_items, as_number, as_table

THRESHOLD = 0.5
DECIDED = 0.1
"""A gate this near to 0 or 1 counts as decided."""
N_BINS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class GateCounts:
    """How many gates lie in each of `N_BINS` equal parts of 0 to 1, after one epoch.

    Attributes:
        width: Width gates in each part.
        depth: Depth gates in each part.
        kept: Width gates at one half or more.
        undecided: Gates of both kinds that are not near 0 or 1.
    """

    epoch: int
    width: tuple[int, ...]
    depth: tuple[int, ...]
    kept: int
    undecided: int

    @property
    def n_width(self) -> int:
        """How many width gates there are."""
        return sum(self.width)

    @property
    def n_depth(self) -> int:
        """How many depth gates there are."""
        return sum(self.depth)


def count_gates(lines: Iterable[Table]) -> tuple[GateCounts, ...]:
    """Return the counts of each epoch in order; of an epoch written twice, the later holds.

    The lines are read one by one, so that a long run of a large network fits into memory.
    """
    counts = {count.epoch: count for count in _counts(lines)}
    return tuple(counts[epoch] for epoch in sorted(counts))


def _counts(lines: Iterable[Table]) -> Iterator[GateCounts]:
    for line in lines:
        epoch = as_count(line.get("epoch"))
        if epoch is not None:
            width = _numbers(as_table(line.get("width")).values())
            depth = _numbers(as_table(line.get("depth")).values())
            both = np.concatenate([width, depth])
            yield GateCounts(
                epoch=epoch,
                width=_bin(width),
                depth=_bin(depth),
                kept=int((width >= THRESHOLD).sum()),
                undecided=int((np.minimum(both, 1 - both) > DECIDED).sum()),
            )


def _numbers(values: Iterable[object]) -> NDArray[np.float64]:
    """Return all numbers of nested lists, in one row."""
    flat: list[float] = []
    for value in values:
        number = as_number(value)
        flat.extend(_numbers(as_items(value)).tolist() if number is None else [number])
    return np.array(flat, dtype=np.float64)


def _bin(gates: NDArray[np.float64]) -> tuple[int, ...]:
    counts, _ = np.histogram(np.clip(gates, 0, 1), bins=N_BINS, range=(0, 1))
    return tuple(int(count) for count in counts)
