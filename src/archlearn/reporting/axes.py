"""An axis is scaled so that the differences that matter can be seen, and ticked to be read."""

# Methods of matplotlib are annotated in part only.
# pyright: reportUnknownMemberType=false

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from archlearn.reporting.formatting import format_short_count
from archlearn.reporting.series import STRETCHED_FROM, Scale

BEST = 0.9999
"""The stretched axis of accuracies ends here: at one it would be endless."""
_STEPS = (
    (3.0, (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)),
    (20.0, (1.0, 2.0, 3.0, 5.0)),
    (1e3, (1.0, 3.0)),
)
"""Which parts of a decade are ticked, by the factor between the largest and smallest value."""
_ACCURACIES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999)


def set_scale_(axes: Axes, scale: Scale, values: Sequence[float]) -> None:
    """Scale and tick the vertical axis for these values."""
    if scale == "log":
        axes.set_yscale("log")
        tick_logarithmic_(axes.yaxis, values)
    elif scale == "accuracy":
        _stretch_accuracy_(axes, values)
    else:
        _set_linear_(axes, scale, values)


def tick_logarithmic_(axis: Axis, values: Sequence[float]) -> None:
    """Tick powers of ten; where there are few, some numbers between them as well."""
    factor = max(values) / min(values)
    steps = next((steps for largest, steps in _STEPS if factor <= largest), (1.0,))
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(_write_count))
    axis.set_minor_locator(NullLocator())


def tick_at_counts_(axis: Axis, counts: Sequence[int]) -> None:
    """Tick an axis at these numbers and nowhere else."""
    axis.set_major_locator(FixedLocator(sorted(counts)))
    axis.set_major_formatter(FuncFormatter(_write_count))
    axis.set_minor_locator(NullLocator())


def format_share_ticks_(axis: Axis) -> None:
    """Write the ticks of an axis of shares in per cent."""
    axis.set_major_formatter(FuncFormatter(_write_share))


def _write_count(value: float, _: int | None) -> str:
    return format_short_count(value)


def _write_share(share: float, _: int | None) -> str:
    return f"{100 * share:.4g} %"


def _set_linear_(axes: Axes, scale: Scale, values: Sequence[float]) -> None:
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=scale == "count"))
    axes.set_ylim(bottom=0)
    if scale == "share":
        format_share_ticks_(axes.yaxis)
        axes.set_ylim(top=1)
    elif scale == "count":
        axes.set_ylim(top=max(values) + 0.5)


def _stretch_accuracy_(axes: Axes, values: Sequence[float]) -> None:
    """Space accuracies by the logarithm of the error: 90, 99 and 99.9 % are equally far apart."""
    axes.set_yscale("function", functions=(_stretch, _unstretch))
    lowest, highest = min(values), min(BEST, max(values))
    bottom, top = min(lowest, STRETCHED_FROM), max(0.99, 1 - (1 - highest) / 1.3)
    axes.set_ylim(bottom, top)
    axes.set_yticks([tick for tick in _ACCURACIES if bottom <= tick <= top])
    axes.yaxis.set_minor_locator(NullLocator())
    format_share_ticks_(axes.yaxis)


def _stretch(accuracy: NDArray[np.float64]) -> NDArray[np.float64]:
    return -np.log10(1 - np.minimum(accuracy, BEST))


def _unstretch(place: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 - 10.0 ** -np.asarray(place)
