"""Gates are drawn as they stand, and as they moved."""

# Methods of matplotlib are annotated in part only.
# pyright: reportUnknownMemberType=false

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from archlearn.reporting.colours import GRID, MUTED, SERIES
from archlearn.reporting.figures import label_axes, new_figure, write_text
from archlearn.reporting.gate_counts import N_BINS, THRESHOLD, GateCounts

_SHADE = (0.13, 0.53, 0.80)
"""A blue that shows on light and dark pages alike: an image cannot follow the page."""


def draw_histogram(numbers: GateCounts) -> Figure:
    """Draw the gates as they stand, the depth gates on top of the width gates."""
    figure, axes = new_figure()
    places = (np.arange(N_BINS) + 0.5) / N_BINS
    bottom = np.zeros(N_BINS)
    for counts, colour in ((numbers.width, SERIES[0]), (numbers.depth, SERIES[1])):
        axes.bar(places, counts, 0.86 / N_BINS, bottom=bottom, color=colour.light)
        bottom = bottom + np.array(counts)
    axes.axvline(THRESHOLD, color=MUTED.light, linewidth=1, linestyle=(0, (3, 3)))
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.18 * max(1.0, float(bottom.max())))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    label_axes(axes, "value of the gate", "gates")
    top = 1.1 * float(bottom.max() or 1)
    dropped = numbers.n_width - numbers.kept
    write_text(axes, 0.48, top, f"{dropped:,} dropped", ha="right")
    write_text(axes, 0.52, top, f"{numbers.kept:,} kept")
    return figure


def draw_gate_history(numbers: tuple[GateCounts, ...]) -> Figure:
    """Draw how many width gates stood where after each epoch, the stronger the more."""
    figure, axes = new_figure()
    counts = np.array([count.width for count in numbers], dtype=float).T
    shades = LinearSegmentedColormap.from_list("gates", [(*_SHADE, 0.08), (*_SHADE, 1.0)])
    first, last = numbers[0].epoch, numbers[-1].epoch
    axes.imshow(
        np.where(counts > 0, counts, np.nan),
        aspect="auto",
        interpolation="nearest",
        origin="lower",
        cmap=shades,
        norm=LogNorm(0.7, max(2.0, float(counts.max()))),
        extent=(first - 0.5, last + 0.5, 0, 1),
    )
    axes.grid(visible=False)
    axes.axhline(THRESHOLD, color=MUTED.light, linewidth=1, linestyle=(0, (3, 3)))
    axes.axhline(1, color=GRID.light, linewidth=0.8)
    axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    label_axes(axes, "epoch", "value of the width gates (stronger: more gates)")
    return figure
