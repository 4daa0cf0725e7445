"""The numbers of each figure, read from a run."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from archlearn.costs import COSTS, LATENCY
from archlearn_cli.reporting.run_reader import JsonTable, RunRecord, score_of

GATE_THRESHOLD = 0.5
DECIDED_WITHIN = 0.1
"""A gate this near to 0 or 1 counts as decided."""
N_BINS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class GateCounts:
    """How many width gates lie in each of `N_BINS` equal parts of 0 to 1, after one epoch.

    Of these `kept` are at one half or more; `undecided` ones are not near 0 or 1.
    """

    epoch: int
    bins: tuple[int, ...]
    kept: int
    undecided: int

    @property
    def n_gates(self) -> int:
        """How many width gates there are."""
        return sum(self.bins)


def count_gates(lines: Iterable[JsonTable]) -> tuple[GateCounts, ...]:
    """Return the counts of each epoch in order; of an epoch written twice, the later holds.

    The lines are read one by one, so that a long run of a large network fits into memory.
    """
    counts = {line["epoch"]: _count(line) for line in lines}
    return tuple(counts[epoch] for epoch in sorted(counts))


def _count(line: JsonTable) -> GateCounts:
    gates = np.array([gate for gates in line["width"].values() for gate in gates], np.float64)
    bins, _ = np.histogram(np.clip(gates, 0, 1), bins=N_BINS, range=(0, 1))
    return GateCounts(
        epoch=line["epoch"],
        bins=tuple(int(count) for count in bins),
        kept=int((gates >= GATE_THRESHOLD).sum()),
        undecided=int((np.minimum(gates, 1 - gates) > DECIDED_WITHIN).sum()),
    )


AxisScale = Literal["share", "accuracy", "log", "linear", "count"]
STRETCHED_FROM = 0.9
"""A run that gets better than this needs an axis on which 99.0 and 99.5 % are apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One quantity over the epochs at which it was measured."""

    label: str
    epochs: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class FigureData:
    """The numbers of a figure over epochs.

    Attributes:
        measure: What the vertical axis measures.
        scale: `share` is a part of one, `accuracy` the same with the axis stretched towards
            one where the differences are, `count` whole things from zero up.
        span: The first and last epoch of the run, so that figures can be laid side by side.
    """

    measure: str
    scale: AxisScale
    lines: tuple[Series, ...]
    span: tuple[int, int]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not any(line.values for line in self.lines)


def score_lines(run: RunRecord) -> FigureData:
    """Return the accuracy over epochs, or the squared error for regression."""
    line = _line(run, "validation", score_of)
    if run.regression:
        return _lines(run, "squared error, logarithmic", "log", (line,))
    if max(line.values, default=0) <= STRETCHED_FROM:
        return _lines(run, "accuracy", "share", (line,))
    return _lines(run, "accuracy, stretched near 100 %", "accuracy", (line,))


def loss_lines(run: RunRecord) -> FigureData:
    """Return the loss on training and validation data, and the penalty, over epochs."""
    lines = (
        _line(run, "training", lambda epoch: epoch.get("train_loss")),
        _line(run, "validation", lambda epoch: epoch.get("validation_loss")),
        _line(run, "penalty", lambda epoch: epoch.get("penalty")),
    )
    measured = tuple(line for line in lines if line.values)
    return _lines(run, "loss, logarithmic", "log", measured)


def gap_lines(run: RunRecord) -> FigureData:
    """Return how far the gates are from binary, on average, over epochs."""
    line = _line(run, "gap", lambda epoch: epoch.get("binarisation_gap"))
    return _lines(run, "mean distance from 0 or 1", "linear", (line,))


def parameter_lines(run: RunRecord) -> FigureData:
    """Return what compacting at each epoch would have left."""
    line = _line(run, "parameters", lambda epoch: epoch.get("parameters"))
    return _lines(run, "parameters, logarithmic", "log", (line,))


def budget_lines(run: RunRecord) -> FigureData:
    """Return each cost with a budget beside what it might be at that epoch, of the start."""
    paths = [epoch.get("budget_path", {}) for epoch in run.epochs]
    names = [name for name in (*COSTS, LATENCY) if any(name in path for path in paths)]
    lines = tuple(line for name in names for line in _budget_lines_of(run, name))
    return _lines(run, "part of the start", "share", lines)


def _budget_lines_of(run: RunRecord, name: str) -> Iterator[Series]:
    start = (run.before.costs if name in COSTS else run.epochs[0]).get(name) or 1

    def line(label: str, read: Callable[[JsonTable], float | None]) -> Series:
        return _line(run, label, lambda epoch: divide(read(epoch), start))

    words = name.replace("_", "-")
    yield line(words, lambda epoch: epoch.get(name, 0))
    yield line(f"{words} allowed", lambda epoch: epoch.get("budget_path", {}).get(name))
    if len({epoch.get("trained", {}).get(name) for epoch in run.epochs}) > 1:
        yield line(f"{words} in training", lambda epoch: epoch.get("trained", {}).get(name))


def divide(cost: float | None, start: float | None) -> float | None:
    """Return a cost as a part of the start, where both are known."""
    return cost / start if start and cost is not None else None


def price_lines(run: RunRecord) -> FigureData:
    """Return the price over epochs: what the next channel to go earns for what it costs."""
    line = _line(run, "price", lambda epoch: epoch.get("price") or None)
    return _lines(run, "earned for each unit of cost, logarithmic", "log", (line,))


def depth_lines(run: RunRecord) -> FigureData:
    """Return the number of layers that do not stand at linear, where depth is learnt."""

    def depth(epoch: JsonTable) -> float | None:
        # A layer that has merged, or was left out with its branch, has no width any more.
        linear = epoch.get("linear")
        return sum(not linear.get(name) for name in epoch["widths"]) if linear else None

    line = _line(run, "depth", depth)
    return _lines(run, "layers that are not linear", "count", (line,))


def width_lines(run: RunRecord) -> FigureData:
    """Return each layer's share of channels kept; layers that never change are left out.

    The line of a layer that merges ends where the layer does, and says so.
    """
    changing = tuple(
        _width_line(run, name)
        for name, first in run.before.widths.items()
        if first > 0 and any(epoch["widths"].get(name) != first for epoch in run.epochs)
    )
    of = f" of {changing[0].label}" if len(changing) == 1 else ""
    return _lines(run, f"channels{of} kept, of those at the start", "share", changing)


def _width_line(run: RunRecord, name: str) -> Series:
    first, last = run.before.widths[name], run.epochs[-1]
    fate = ", merged" if last["linear"].get(name) else ", left out"
    label = name if name in last["widths"] else name + fate
    return _line(run, label, lambda epoch: divide(epoch["widths"].get(name), first))


def _lines(run: RunRecord, measure: str, scale: AxisScale, lines: tuple[Series, ...]) -> FigureData:
    numbers = [epoch["epoch"] for epoch in run.epochs] or [0]
    return FigureData(measure=measure, scale=scale, lines=lines, span=(numbers[0], numbers[-1]))


def _line(run: RunRecord, label: str, measure: Callable[[JsonTable], float | None]) -> Series:
    measured = [(epoch["epoch"], measure(epoch)) for epoch in run.epochs]
    kept = [(epoch, float(value)) for epoch, value in measured if value is not None]
    return Series(
        label=label,
        epochs=tuple(epoch for epoch, _ in kept),
        values=tuple(value for _, value in kept),
    )
