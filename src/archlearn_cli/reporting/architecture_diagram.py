"""Diagram of the architecture before and after: one bar a layer."""

# Methods of matplotlib are annotated in part only.
# pyright: reportUnknownMemberType=false

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from archlearn_cli.reporting.figures import (
    FIGURE_WIDTH,
    FONT_SIZE,
    GHOST,
    GHOST_EDGE,
    INK,
    MUTED,
    SERIES,
    draw_text,
    new_figure,
)
from archlearn_cli.reporting.run_reader import RunRecord

BAR = 0.56
"""Height of a bar, where rows are one apart."""
LONGEST_NAME = 18


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerChange:
    """A layer's channels before and after.

    `after` is None where the layer is gone: merged with the next, or left out with its branch.
    """

    name: str
    before: int
    after: int | None
    is_merged: bool = False


def read_diagram(run: RunRecord) -> tuple[LayerChange, ...]:
    """Return each layer of the network at the start, with what became of it."""
    return tuple(
        LayerChange(
            name=name,
            before=width,
            after=None if name in run.merged else run.after.widths.get(name),
            is_merged=name in run.merged,
        )
        for name, width in run.before.widths.items()
    )


def draw_diagram(layers: Sequence[LayerChange]) -> Figure:
    """Draw hollow bars for the start and filled ones for what is left.

    A bar is as long as the square root of its channels, so that 10 beside 500 can be seen.
    """
    n_layers = len(layers)
    row = max(11.0, min(24.0, 480.0 / n_layers))
    figure, axes = new_figure(height=18 + row * n_layers)
    size = min(FONT_SIZE, row * 0.7)
    axes.set_axis_off()
    # Names and numbers have room beside the bars.
    longest, character = max(_half(layer.before) for layer in layers), 0.62 * size
    left = character * (1 + max(len(_shorten(layer.name)) for layer in layers))
    right = character * (1 + max(len(_change(layer)) for layer in layers))
    unit = (FIGURE_WIDTH - left - right) / (2 * longest)
    axes.set_xlim(-longest - left / unit, longest + right / unit)
    axes.set_ylim(n_layers - 0.3, -0.7)
    before = {index: layer.before for index, layer in enumerate(layers)}
    after = {p: layer.after for p, layer in enumerate(layers) if layer.after is not None}
    for widths, fill, edge in ((before, GHOST, GHOST_EDGE), (after, SERIES[0], SERIES[0])):
        ends = [(index, _half(width)) for index, width in widths.items()]
        for (upper, above), (lower, below) in pairwise(ends):  # join bars to those that follow
            rows, sides = (upper + BAR / 2, lower - BAR / 2), np.array([above, below])
            axes.fill_betweenx(rows, -sides, sides, facecolor=fill.light, alpha=0.35, linewidth=0)
        halves = np.array([half for _, half in ends])
        style: dict[str, Any] = {"facecolor": fill.light, "edgecolor": edge.light, "lw": 0.8}
        axes.barh(list(widths), 2 * halves, BAR, left=-halves, **style)
    start, end = axes.get_xlim()
    for index, layer in enumerate(layers):
        colour = (MUTED if layer.after in (None, layer.before) else INK).light
        draw_text(axes, start, index, _shorten(layer.name), fontsize=size, color=MUTED.light)
        draw_text(axes, end, index, _change(layer), ha="right", fontsize=size, color=colour)
    return figure


def describe_diagram(layers: Sequence[LayerChange]) -> str:
    """Return the picture in words, for those who do not see it."""
    return "; ".join(f"{layer.name}: {_change(layer)}" for layer in layers)


def _half(width: int) -> float:
    return width**0.5 / 2


def _shorten(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else "…" + name[1 - LONGEST_NAME :]


def _change(layer: LayerChange) -> str:
    if layer.after is None:
        return f"{layer.before} → {'merged' if layer.is_merged else 'left out'}"
    return f"{layer.before} → {layer.after}" if layer.after != layer.before else f"{layer.before}"
