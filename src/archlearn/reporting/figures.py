"""Every figure is drawn on the same paper: no window, no global state, colours by role."""

# Methods of matplotlib are annotated in part only.
# pyright: reportUnknownMemberType=false

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from archlearn.reporting.colours import GRID, INK, MUTED

WIDTH = 330.0
"""Width of a figure in points; a phone shows it about as wide as it is."""
POINTS_PER_INCH = 72.0
FONT_SIZE = 9.5


def new_figure(height: float = 190.0, width: float = WIDTH) -> tuple[Figure, Axes]:
    """Return an empty figure of so many points, and its only axes."""
    size = (width / POINTS_PER_INCH, height / POINTS_PER_INCH)
    layout = ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.03)
    figure = Figure(figsize=size, layout=layout, facecolor="none")
    axes = figure.add_subplot()
    axes.set_facecolor("none")
    axes.tick_params(colors=MUTED.light, labelsize=FONT_SIZE, length=0, pad=4)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED.light)
    axes.spines["bottom"].set_linewidth(0.8)
    axes.grid(visible=True, axis="y", color=GRID.light, linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def label_axes(axes: Axes, x: str, y: str) -> None:
    """Write what runs along the axes; `y` stands level at the top left, to be read with ease."""
    axes.set_xlabel(x, color=MUTED.light, fontsize=FONT_SIZE)
    figure = axes.get_figure(root=True)
    if figure is not None:
        figure.suptitle(y, x=0.005, ha="left", color=MUTED.light, fontsize=FONT_SIZE)


def write_text(axes: Axes, x: float, y: float, text: str, **options: Any) -> None:
    """Write at a point of the data, in ink unless a colour is given, and as it is: no formulas."""
    settings: dict[str, Any] = {
        "color": INK.light,
        "fontsize": FONT_SIZE,
        "va": "center",
        **options,
    }
    axes.text(x, y, text, parse_math=False, **settings)


def spread(values: Sequence[float], distance: float) -> list[float]:
    """Return the values moved apart to `distance` at least, in order, near where they were.

    Labels of lines that end close together are so kept from covering each other.
    """
    order = sorted(range(len(values)), key=lambda index: values[index])
    groups: list[list[int]] = []
    for index in order:
        groups.append([index])
        while len(groups) > 1 and _top(groups[-2], values, distance) > _bottom(
            groups[-1], values, distance
        ):
            groups[-2:] = [groups[-2] + groups[-1]]
    moved = list(values)
    for group in groups:
        for place, index in enumerate(group):
            moved[index] = _first(group, values, distance) + place * distance
    return moved


def _first(group: list[int], values: Sequence[float], distance: float) -> float:
    middle = sum(values[index] for index in group) / len(group)
    return middle - distance * (len(group) - 1) / 2


def _top(group: list[int], values: Sequence[float], distance: float) -> float:
    return _first(group, values, distance) + distance * (len(group) - 0.5)


def _bottom(group: list[int], values: Sequence[float], distance: float) -> float:
    return _first(group, values, distance) - distance / 2
