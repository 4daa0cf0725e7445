"""The figure of each experiment."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from archlearn.reporting.figures import tick_at_counts_, tick_logarithmic_
from archlearn_paper.plots.panels import (
    FONT_SIZE,
    add_legend,
    draw_figure_3a,
    draw_figure_3b,
    draw_frontier,
    draw_marks,
    draw_properties,
    draw_table_1,
    draw_table_2,
    draw_table_3,
    name_axes,
    new_panels,
    read_mark,
    style_of,
    write_beside,
)

LEARNT, WHOLE = "AL-", "reference"
BELOW = ("AL-fc",)
"""Names that are written below their marks, since AL-conv-fc is about as large."""


def draw_table_4(derived: Mapping[str, Any]) -> Figure:
    """Draw what was learnt, what the compared methods made, and the references.

    The paper's networks were trained on ImageNet: their accuracies have no place here.
    """
    figure, (axes,) = new_panels(1, height=3.4)
    rows = derived["rows"]
    kinds = {
        "learnt (AL)": [row for row in rows if row.startswith(LEARNT)],
        "compared methods": [r for r in rows if not r.startswith((LEARNT, WHOLE))],
        "reference": [row for row in rows if row.startswith(WHOLE)],
    }
    counts: list[float] = []
    for place, (label, names) in enumerate(kinds.items()):
        marks = [read_mark(name, rows[name]) for name in names]
        draw_marks(axes, marks, place, label)
        for mark in marks:
            counts.append(mark.parameters)
            # Names of large networks would leave the picture on the right.
            left = mark.parameters > 3e7
            side = "right" if left else "left"
            place_of_name = (-6 if left else 6, -12 if mark.name in BELOW else 4)
            x, y = mark.parameters, mark.accuracy
            write_beside(axes, x, y, mark.name, xytext=place_of_name, horizontalalignment=side)
    axes.set_xscale("log")
    tick_logarithmic_(axes.xaxis, counts)
    axes.margins(x=0.12, y=0.14)
    name_axes(axes, "parameters (logarithmic)", "accuracy on Tiny-ImageNet, %")
    add_legend(axes, loc="lower center")
    return figure


def draw_figure_4(derived: Mapping[str, Any]) -> Figure:
    """Draw every search by itself: its best objective so far, beside the run of the same seed."""
    panels: list[Mapping[str, Any]] = list(derived["panels"].values())
    rows = sorted({panel["name"] for panel in panels})
    figure, axes = new_panels(len(panels), n_rows=len(rows), height=2.8 * len(rows))
    for place, panel in zip(axes, sorted(panels, key=lambda panel: panel["name"]), strict=True):
        _draw_searches(place, panel)
    handles, labels = axes[-1].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=FONT_SIZE - 1
    )
    return figure


def _draw_searches(axes: Axes, panel: Mapping[str, Any]) -> None:
    for place, curve in enumerate(panel["curves"]):
        first = place == 0
        colour = style_of(place)["color"]
        axes.plot(
            range(1, len(curve["best"]) + 1), curve["best"], color=colour, linewidth=1.4,
            marker=".", label="Bayesian optimisation, best so far, by seed" if first else None,
        )  # fmt: skip
        axes.axhline(
            curve["learnt"]["objective"], color=colour, linewidth=1.2, linestyle="--",
            label="one run that learns, same seed" if first else None,
        )  # fmt: skip
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    title = f"({panel['name']}) λ = {panel['price']:g}"
    name_axes(axes, "trainings", "loss + λ x neurons", title)


LEADING = ("archlearn",)
"""Methods whose line is thick."""
_LEAST_ERROR = 0.01
_MOST_TIMES = 3
"""Errors above so many times the least are not shown: the table has them."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One method: mean parameters, mean errors in per cent and their deviations over budgets."""

    method: str
    parameters: tuple[float, ...]
    errors: tuple[float, ...]
    deviations: tuple[float, ...]


def read_curves(derived: Mapping[str, Any]) -> list[Curve]:
    """Return a curve for each method that reached a budget, the smallest network first."""
    curves: list[Curve] = []
    for method, by_budget in derived["results"].items():
        points = sorted(by_budget.values(), key=lambda numbers: numbers["parameters"]["mean"])
        if points:
            curves.append(
                Curve(
                    method,
                    tuple(numbers["parameters"]["mean"] for numbers in points),
                    tuple(
                        max(_LEAST_ERROR, 100 - numbers["accuracy"]["mean"]) for numbers in points
                    ),
                    tuple(numbers["accuracy"]["deviation"] for numbers in points),
                )
            )
    return curves


def draw_comparison(derived: Mapping[str, Any]) -> Figure:
    """Draw the error of all methods against their parameters, both logarithmic."""
    figure, (axes,) = new_panels(1, height=6.2)
    curves = read_curves(derived)
    most = _MOST_TIMES * min(error for curve in curves for error in curve.errors)
    for place, curve in enumerate(curves):
        thick = curve.method in LEADING
        axes.errorbar(
            curve.parameters,
            curve.errors,
            yerr=_find_bars(curve, most),
            linewidth=2.4 if thick else 1.1,
            elinewidth=0.8,
            capsize=2,
            markersize=6 if thick else 4,
            zorder=4 if thick else 3,
            label=curve.method if min(curve.errors) <= most else f"{curve.method} (above)",
            **_style(place),
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    shown = [error for curve in curves for error in curve.errors if error <= most]
    if len(shown) < sum(len(curve.errors) for curve in curves):
        axes.set_ylim(0.85 * min(shown), most)
    tick_at_counts_(axes.xaxis, [int(budget) for budget in derived["ranks"]])
    tick_logarithmic_(axes.yaxis, shown)
    name_axes(axes, "parameters (logarithmic)", "test error, % (logarithmic)")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=FONT_SIZE - 1.5)
    return figure


def _find_bars(curve: Curve, most: float) -> tuple[list[float], list[float]]:
    """Return how far bars go down and up; a point that is not shown has none."""
    bars = [
        deviation if error <= most else 0.0
        for error, deviation in zip(curve.errors, curve.deviations, strict=True)
    ]
    low = [min(b, e - _LEAST_ERROR) for b, e in zip(bars, curve.errors, strict=True)]
    return low, bars


def _style(place: int) -> dict[str, Any]:
    """Return a style; from the seventh line on, colours come with other dashes and markers."""
    second = style_of(place + place // 6)
    return style_of(place) | {"linestyle": second["linestyle"], "marker": second["marker"]}


DRAWINGS = {
    "table-1": draw_table_1,
    "table-2": draw_table_2,
    "figure-3a": draw_figure_3a,
    "figure-3b": draw_figure_3b,
    "table-3": draw_table_3,
    "table-4": draw_table_4,
    "figure-4": draw_figure_4,
    "properties": draw_properties,
    "frontier": draw_frontier,
}


_DOTS_PER_INCH = 200


def write_figure(name: str, derived: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw the figure of an experiment from its derived numbers; return the files written.

    An experiment without a drawing has none.
    """
    draw = draw_comparison if name.startswith("compare-") else DRAWINGS.get(name)
    return [] if draw is None else save_figure(draw(derived), name, folder)


def save_figure(figure: Figure, name: str, folder: Path) -> list[Path]:
    """Write a figure; return the files written. The same figure always gives the same SVG."""
    paths = [folder / f"{name}.svg", folder / f"{name}.png"]
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        figure.savefig(paths[0], metadata={"Date": None, "Creator": None})
    figure.savefig(paths[1], dpi=_DOTS_PER_INCH, metadata={"Software": None})
    return paths
