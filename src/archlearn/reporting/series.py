"""What was measured over the epochs, as lines: numbers first, then one way to draw them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from archlearn.reporting.colours import DASHES, SERIES
from archlearn.reporting.drawing import label_axes, new_figure, spread, write_text
from archlearn.reporting.formats import format_percent, format_short_count
from archlearn.reporting.runs import Epoch, Run

Scale = Literal["share", "log", "linear", "count"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One quantity over the epochs at which it was measured."""

    label: str
    epochs: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lines:
    """The numbers of a figure over epochs.

    Attributes:
        measure: What the vertical axis measures.
        scale: `share` is a percentage and `count` whole things from zero up.
    """

    measure: str
    scale: Scale
    lines: tuple[Line, ...]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not any(line.values for line in self.lines)


def score_lines(run: Run) -> Lines:
    """Return the accuracy over epochs, or the squared error for regression."""
    line = _line(run, "validation", lambda epoch: epoch.score)
    name = f"{run.score_name} on validation data"
    return Lines(measure=name, scale="log" if run.regression else "share", lines=(line,))


def loss_lines(run: Run) -> Lines:
    """Return the loss on training and validation data, and the penalty, over epochs."""
    lines = (
        _line(run, "training", lambda epoch: epoch.train_loss),
        _line(run, "validation", lambda epoch: epoch.validation_loss),
        _line(run, "penalty", lambda epoch: epoch.penalty),
    )
    return Lines(measure="loss", scale="log", lines=tuple(li for li in lines if li.values))


def gap_lines(run: Run) -> Lines:
    """Return how far the gates are from binary, on average, over epochs."""
    line = _line(run, "gap", lambda epoch: epoch.gap)
    return Lines(measure="mean distance from 0 or 1", scale="linear", lines=(line,))


def parameter_lines(run: Run) -> Lines:
    """Return what compacting at each epoch would have left."""
    line = _line(run, "parameters", lambda epoch: epoch.parameters)
    return Lines(measure="parameters", scale="log", lines=(line,))


def depth_lines(run: Run) -> Lines:
    """Return the number of layers that are not linear, where depth is learnt."""

    def depth(epoch: Epoch) -> int | None:
        return len(epoch.widths) - sum(epoch.linear.values()) if epoch.linear else None

    return Lines(measure="layers", scale="count", lines=(_line(run, "depth", depth),))


def width_lines(run: Run) -> Lines:
    """Return each learnt layer's share of channels kept; layers that never change are left out."""
    first = run.before.widths
    names = [
        name
        for name, width in first.items()
        if width and any(epoch.widths.get(name, width) != width for epoch in run.epochs)
    ]
    lines = tuple(_line(run, name, lambda e, name=name: _share(e, name, first)) for name in names)
    return Lines(measure="channels kept, of those at the start", scale="share", lines=lines)


def draw_lines(numbers: Lines, end_labels: tuple[str, ...] = ()) -> Figure:
    """Draw the lines, each with its label at its end."""
    figure, axes = new_figure()
    shown = [line for line in numbers.lines if _drawable(line, numbers.scale).values]
    for index, line in enumerate(shown):
        kept = _drawable(line, numbers.scale)
        colour, dash = SERIES[index % len(SERIES)], DASHES[index % len(DASHES)]
        marker = "o" if len(kept.epochs) == 1 else ""
        axes.plot(
            kept.epochs, kept.values, color=colour.light, linestyle=dash, linewidth=1.8, marker=marker
        )
    label_axes(axes, "epoch", numbers.measure)
    _set_scale_(axes, numbers)
    if len(shown) > 1:
        _write_ends_(axes, [_drawable(line, numbers.scale) for line in shown], end_labels)
    return figure


def _line(run: Run, label: str, measure: Callable[[Epoch], float | None]) -> Line:
    points = [(epoch.epoch, measure(epoch)) for epoch in run.epochs]
    kept = [(epoch, float(value)) for epoch, value in points if value is not None]
    return Line(label=label, epochs=tuple(e for e, _ in kept), values=tuple(v for _, v in kept))


def _share(epoch: Epoch, name: str, first: "dict[str, int] | object") -> float | None:
    raise NotImplementedError


def _drawable(line: Line, scale: Scale) -> Line:
    """Leave out what a logarithmic axis cannot show."""
    pairs = [(e, v) for e, v in zip(line.epochs, line.values, strict=True) if scale != "log" or v > 0]
    return Line(label=line.label, epochs=tuple(e for e, _ in pairs), values=tuple(v for _, v in pairs))


def _set_scale_(axes: Axes, numbers: Lines) -> None: ...
def _write_ends_(axes: Axes, lines: list[Line], end_labels: tuple[str, ...]) -> None: ...
