"""Lines over epochs are drawn one way: few ticks, each line named at its end."""

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from archlearn.reporting.colours import DASHES, SERIES
from archlearn.reporting.drawing import FONT_SIZE, label_axes, new_figure, spread, write_text
from archlearn.reporting.formats import format_short_count
from archlearn.reporting.series import Line, Lines

LABEL_DISTANCE = 0.085
"""Least distance of two labels, as a share of the height of the axes."""


def draw_lines(numbers: Lines) -> Figure:
    """Draw the lines; where there are several, each has its name at its end."""
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
    axes.margins(x=0.02)
    _set_scale_(axes, numbers)
    if len(lines) > 1:
        _write_names_(axes, lines)
    return figure


def _drawable(numbers: Lines) -> list[Line]:
    """Return the lines without what a logarithmic axis cannot show."""
    if numbers.scale != "log":
        return [line for line in numbers.lines if line.values]
    return [_positive(line) for line in numbers.lines if any(v > 0 for v in line.values)]


def _positive(line: Line) -> Line:
    points = [(e, v) for e, v in zip(line.epochs, line.values, strict=True) if v > 0]
    return replace(line, epochs=tuple(e for e, _ in points), values=tuple(v for _, v in points))


def _set_scale_(axes: Axes, numbers: Lines) -> None:
    values = [value for line in numbers.lines for value in line.values]
    if numbers.scale == "log":
        _set_logarithmic_(axes, [value for value in values if value > 0])
        return
    if numbers.scale == "share":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.4g} %"))
        axes.set_ylim(top=1)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=numbers.scale == "count"))
    if numbers.scale != "share" or min(values) < 0.5:
        axes.set_ylim(bottom=0)


def _set_logarithmic_(axes: Axes, values: Sequence[float]) -> None:
    axes.set_yscale("log")
    decades = max(values) / min(values)
    # Less than a decade has too few powers of ten to read it by.
    steps = (1.0,) if decades > 1e3 else (1.0, 3.0) if decades > 10 else (1.0, 2.0, 3.0, 5.0)
    axes.yaxis.set_major_locator(LogLocator(subs=steps))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_short_count(value)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())


def _write_names_(axes: Axes, lines: Sequence[Line]) -> None:
    ends = [axes.transData.transform((line.epochs[-1], line.values[-1])) for line in lines]
    heights = [float(axes.transAxes.inverted().transform(end)[1]) for end in ends]
    for index, height in enumerate(spread(heights, LABEL_DISTANCE)):
        write_text(
            axes,
            1.02,
            height,
            lines[index].label,
            transform=axes.transAxes,
            color=SERIES[index % len(SERIES)].light,
            fontsize=FONT_SIZE,
        )
