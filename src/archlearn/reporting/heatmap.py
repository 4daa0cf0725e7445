"""Where lines would cover each other, a map shows one row a layer and one column an epoch."""

# Methods of matplotlib are annotated in part only.
# pyright: reportUnknownMemberType=false

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from archlearn.reporting.colours import MUTED
from archlearn.reporting.figures import FONT_SIZE, label_axes, new_figure
from archlearn.reporting.series import Lines

COLOURS = "cividis"
"""Read alike by people with any colour vision, and on light and dark pages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WidthMap:
    """The share of channels kept, `shares[layer][epoch]`; NaN where it was not measured."""

    layers: tuple[str, ...]
    epochs: tuple[int, ...]
    shares: tuple[tuple[float, ...], ...]


def width_map(numbers: Lines) -> WidthMap:
    """Return lines over epochs as rows over the same epochs."""
    epochs = tuple(sorted({epoch for line in numbers.lines for epoch in line.epochs}))
    found = [dict(zip(line.epochs, line.values, strict=True)) for line in numbers.lines]
    return WidthMap(
        layers=tuple(line.label for line in numbers.lines),
        epochs=epochs,
        shares=tuple(tuple(row.get(epoch, np.nan) for epoch in epochs) for row in found),
    )


def draw_width_map(numbers: WidthMap) -> Figure:
    """Draw the map, the first layer at the top, with the scale of its colours."""
    n_layers, first, last = len(numbers.layers), numbers.epochs[0], numbers.epochs[-1]
    figure, axes = new_figure(height=60 + max(130.0, min(7.0 * n_layers, 420.0)))
    image = axes.imshow(
        np.array(numbers.shares),
        aspect="auto",
        interpolation="nearest",
        cmap=COLOURS,
        vmin=0,
        vmax=1,
        extent=(first - 0.5, last + 0.5, n_layers - 0.5, -0.5),
    )
    axes.grid(visible=False)
    step = -(-n_layers // 40)
    axes.set_yticks(range(0, n_layers, step), numbers.layers[::step], parse_math=False)
    axes.tick_params(axis="y", labelsize=FONT_SIZE - max(0, min(3.5, (n_layers - 14) / 6)))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    label_axes(axes, "epoch", "channels kept, of those at the start")
    bar = figure.colorbar(image, ax=axes, ticks=[0, 0.5, 1], shrink=0.6, aspect=14)
    bar.ax.spines["outline"].set_visible(False)
    bar.ax.set_yticklabels(["0 %", "50 %", "100 %"])
    bar.ax.tick_params(colors=MUTED.light, labelsize=FONT_SIZE - 1, length=0)
    return figure
