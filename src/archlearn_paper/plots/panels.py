"""Figures of experiments are drawn for print: panels side by side on white, the paper's marked."""

# Methods of matplotlib are annotated in part only.
# pyright: reportUnknownMemberType=false

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from archlearn.reporting.colours import DASHES, GRID, INK, MUTED, SERIES

WIDTH = 6.9
"""Inches: the width of a page of text."""
HEIGHT = 3.1
FONT_SIZE = 9.0
MARKERS = ("o", "s", "D", "^", "v", "P")
PAPER_MARKER = "X"


def new_panels(
    n_panels: int, *, height: float = HEIGHT, n_rows: int = 1
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure and its panels, row by row from left to right."""
    layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.05)
    figure = Figure(figsize=(WIDTH, height), layout=layout, facecolor="white")
    n_columns = n_panels // n_rows
    panels = [figure.add_subplot(n_rows, n_columns, place + 1) for place in range(n_panels)]
    for axes in panels:
        axes.tick_params(colors=INK.light, labelsize=FONT_SIZE, length=3, color=MUTED.light)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            axes.spines[side].set_color(MUTED.light)
        axes.grid(visible=True, color=GRID.light, linewidth=0.6)
        axes.set_axisbelow(True)
    return figure, panels


def name_axes(axes: Axes, x: str, y: str, title: str = "") -> None:
    """Write what runs along the axes, and what the panel shows."""
    axes.set_xlabel(x, color=INK.light, fontsize=FONT_SIZE)
    axes.set_ylabel(y, color=INK.light, fontsize=FONT_SIZE)
    if title:
        axes.set_title(title, loc="left", color=INK.light, fontsize=FONT_SIZE + 0.5)


def style_of(place: int) -> dict[str, Any]:
    """Return colour, dashes and marker of a series: any one of them tells it from the others."""
    return {
        "color": SERIES[place % len(SERIES)].light,
        "linestyle": DASHES[place % len(DASHES)],
        "marker": MARKERS[place % len(MARKERS)],
    }


def draw_band(
    axes: Axes, x: Sequence[float], low: Sequence[float], high: Sequence[float], place: int
) -> None:
    """Draw where the seeds of a series lie."""
    axes.fill_between(
        x, low, high, color=SERIES[place % len(SERIES)].light, alpha=0.18, linewidth=0
    )


def draw_spreads(
    axes: Axes, x: Sequence[float], spreads: Sequence[Mapping[str, float]], place: int, label: str
) -> None:
    """Draw means joined by a line, and the deviation of the seeds as a band."""
    means = [spread["mean"] for spread in spreads]
    low = [spread["mean"] - spread["deviation"] for spread in spreads]
    high = [spread["mean"] + spread["deviation"] for spread in spreads]
    axes.plot(x, means, linewidth=1.6, markersize=4.5, label=label, **style_of(place))
    draw_band(axes, x, low, high, place)


def mark_paper(axes: Axes, x: Sequence[float], y: Sequence[float], label: str = "paper") -> None:
    """Draw values of the paper, the same way in every figure."""
    axes.plot(
        x,
        y,
        linestyle="none",
        marker=PAPER_MARKER,
        markersize=7,
        color=INK.light,
        markeredgecolor="white",
        markeredgewidth=0.6,
        label=label,
        zorder=5,
    )


def add_legend(axes: Axes, **options: Any) -> None:
    """Say which series is which."""
    sizes = {"fontsize": FONT_SIZE - 1, "title_fontsize": FONT_SIZE - 1}
    settings: dict[str, Any] = {"frameon": False, **sizes, **options}
    axes.legend(**settings)


def write_beside(axes: Axes, x: float, y: float, text: str, **options: Any) -> None:
    """Write a few points right of and above a point of the data."""
    settings: dict[str, Any] = {
        "xytext": (5, 4),
        "textcoords": "offset points",
        "fontsize": FONT_SIZE - 1,
        "color": INK.light,
        **options,
    }
    axes.annotate(text, (x, y), **settings)
