"""Accuracy against parameters: table 1, table 2 and the frontier, with the paper's points."""

# Methods of matplotlib are annotated in part only.
# pyright: reportUnknownMemberType=false

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from archlearn.reporting.axes import tick_logarithmic_
from archlearn.reporting.colours import MUTED
from archlearn_paper.plots.panels import (
    add_legend,
    draw_band,
    mark_paper,
    name_axes,
    new_panels,
    style_of,
    write_beside,
)

Derived = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A network in the figure: means over the seeds, with their deviations.

    Attributes:
        deviation: Of the accuracy; 0 for a value of the paper.
    """

    name: str
    parameters: float
    accuracy: float
    deviation: float = 0.0
    spread: float = 0.0


def read_mark(name: str, summary: Mapping[str, Any]) -> Mark:
    """Return the mark of a row."""
    return Mark(
        name=name,
        parameters=summary["parameters"]["mean"],
        spread=summary["parameters"]["deviation"],
        accuracy=summary["accuracy"]["mean"],
        deviation=summary["accuracy"]["deviation"],
    )


def draw_marks(
    axes: Axes, marks: Sequence[Mark], place: int, label: str, *, hollow: bool = False
) -> None:
    """Draw networks with the deviations of their seeds as bars.

    Hollow ones have as many parameters as others, and no bar for them.
    """
    style: dict[str, Any] = style_of(place) | {"linestyle": "none"}
    if hollow:
        style |= {"markerfacecolor": "white", "markeredgewidth": 1.2}
    axes.errorbar(
        [mark.parameters for mark in marks],
        [mark.accuracy for mark in marks],
        xerr=None if hollow else [mark.spread for mark in marks],
        yerr=[mark.deviation for mark in marks],
        elinewidth=1,
        capsize=2,
        markersize=6,
        label=label,
        **style,
    )


def draw_table_1(derived: Derived) -> Figure:
    """Draw what was learnt, the same from scratch, and the paper's rows."""
    figure, (axes,) = new_panels(1)
    rows, paper = derived["rows"], derived["paper"]
    learnt = [row for row in rows if f"{row} NN" in rows]
    marks = [read_mark(row, rows[row]) for row in learnt]
    draw_marks(axes, [read_mark("baseline", rows["baseline"])], 3, "baseline, ours")
    scratch = [read_mark(row, rows[f"{row} NN"]) for row in learnt]
    draw_marks(axes, scratch, 1, "the same from scratch (NN), ours", hollow=True)
    draw_marks(axes, marks, 0, "learnt (AL), ours")
    _mark_points_(axes, paper)
    for mark in marks:
        x, y = mark.parameters, mark.accuracy
        name = mark.name.replace(", ", ",\n")
        write_beside(axes, x, y, name, xytext=(-5, 4), horizontalalignment="right")
    _finish_(axes, [m.parameters for m in marks] + [p["parameters"] for p in paper])
    add_legend(axes, loc="lower right")
    return figure


def draw_table_2(derived: Derived) -> Figure:
    """Draw SVD with and without fine-tuning against learning."""
    figure, (axes,) = new_panels(1)
    rows, paper = derived["rows"], derived["paper"]
    kinds = {
        "learnt (AL), ours": [row for row in rows if row.startswith("AL")],
        "SVD, ours": [r for r in rows if r.startswith("SVD") and not r.endswith("fine-tuned")],
        "SVD, fine-tuned, ours": [row for row in rows if row.endswith("fine-tuned")],
        "baseline, ours": ["baseline"],
    }
    for place, (label, names) in enumerate(kinds.items()):
        draw_marks(axes, [read_mark(name, rows[name]) for name in names], place, label)
    _mark_points_(axes, paper)
    _finish_(axes, [rows[row]["parameters"]["mean"] for row in rows])
    add_legend(axes, loc="lower right")
    return figure


def draw_frontier(derived: Derived) -> Figure:
    """Draw the curve of each kind of price, its seeds as a band, and the paper's points."""
    figure, (axes,) = new_panels(1, height=3.8)
    points, paper = derived["points"], derived["paper"]
    for place, price in enumerate(dict.fromkeys(point["price"] for point in points)):
        marks = [read_mark("", point) for point in points if point["price"] == price]
        marks.sort(key=lambda mark: mark.parameters)
        x = [mark.parameters for mark in marks]
        axes.plot(
            x,
            [mark.accuracy for mark in marks],
            linewidth=1.6,
            markersize=5,
            label=f"ours, price on {price}",
            **style_of(place),
        )
        low = [mark.accuracy - mark.deviation for mark in marks]
        high = [mark.accuracy + mark.deviation for mark in marks]
        draw_band(axes, x, low, high, place)
    _mark_points_(axes, paper)
    counts = [point["parameters"]["mean"] for point in points]
    _finish_(axes, counts + [p["parameters"] for p in paper])
    add_legend(axes, loc="lower right")
    return figure


def _mark_points_(axes: Axes, paper: Sequence[Mapping[str, Any]]) -> None:
    """Draw the paper's networks and their names, most of them above their points.

    Below are those of SVD, and AL3's, above which the curves of the frontier pass.
    """
    mark_paper(axes, [p["parameters"] for p in paper], [p["accuracy"] for p in paper])
    for point in paper:
        place = (5, -11) if point["row"].startswith(("SVD", "AL3")) else (5, 4)
        x, y = point["parameters"], point["accuracy"]
        write_beside(axes, x, y, point["row"], color=MUTED.light, xytext=place)


def _finish_(axes: Axes, counts: Sequence[float]) -> None:
    axes.set_xscale("log")
    tick_logarithmic_(axes.xaxis, counts)
    axes.margins(x=0.12, y=0.08)
    name_axes(axes, "parameters (logarithmic)", "test accuracy, %")
