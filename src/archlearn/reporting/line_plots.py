"""Lines over epochs are drawn one way: each named, or told its last value, at its end."""

# Methods of matplotlib are annotated in part only.
# pyright: reportUnknownMemberType=false

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from archlearn.reporting.axes import set_scale_
from archlearn.reporting.colours import DASHES, SERIES
from archlearn.reporting.figures import label_axes, new_figure, spread, write_text
from archlearn.reporting.formatting import format_percent, format_short_count
from archlearn.reporting.series import Line, Lines

LABEL_DISTANCE = 0.09
"""Least distance of two labels, as a share of the height of the axes."""


def draw_lines(numbers: Lines) -> Figure:
    """Draw the lines; several have their names at their ends, and a single one its last value."""
    figure, axes = new_figure()
    lines = _drawable(numbers)
    for index, line in enumerate(lines):
        axes.plot(
            line.epochs,
            line.values,
            color=SERIES[index % len(SERIES)].light,
            linestyle=DASHES[index % len(DASHES)],
            linewidth=2,
            marker="o" if len(line.values) == 1 else "",
            drawstyle="steps-post" if numbers.scale == "count" else "default",
        )
    label_axes(axes, "epoch", numbers.measure)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    first, last = numbers.span
    margin = 0.01 * max(1, last - first)
    axes.set_xlim(first - margin, last + margin)
    set_scale_(axes, numbers.scale, [value for line in lines for value in line.values])
    names = [line.label for line in lines]
    _write_ends_(axes, lines, names if len(lines) > 1 else [_last_value(numbers.scale, lines)])
    return figure


def _drawable(numbers: Lines) -> list[Line]:
    """Return the lines without what a logarithmic axis cannot show."""
    if numbers.scale != "log":
        return [line for line in numbers.lines if line.values]
    return [_positive(line) for line in numbers.lines if any(v > 0 for v in line.values)]


def _positive(line: Line) -> Line:
    points = [(e, v) for e, v in zip(line.epochs, line.values, strict=True) if v > 0]
    return replace(line, epochs=tuple(e for e, _ in points), values=tuple(v for _, v in points))


def _last_value(scale: str, lines: Sequence[Line]) -> str:
    value = lines[0].values[-1] if lines else 0.0
    return format_percent(value) if scale in ("accuracy", "share") else format_short_count(value)


def _write_ends_(axes: Axes, lines: Sequence[Line], labels: Sequence[str]) -> None:
    ends = [axes.transData.transform((line.epochs[-1], line.values[-1])) for line in lines]
    heights = [float(axes.transAxes.inverted().transform(end)[1]) for end in ends]
    for index, height in enumerate(spread(heights, LABEL_DISTANCE)):
        colour = SERIES[index % len(SERIES)].light
        place = {"transform": axes.transAxes, "color": colour}
        write_text(axes, 1.02, height, labels[index], **place)
