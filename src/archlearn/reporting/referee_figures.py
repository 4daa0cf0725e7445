"""Figures of the comparison: accuracy against parameters, one line a method."""

# Methods of matplotlib are annotated in part only.
# pyright: reportUnknownMemberType=false

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from archlearn.reporting.colours import MUTED
from archlearn.reporting.paper_panels import add_legend, name_axes, new_panels, style_of
from archlearn.reporting.scales import tick_logarithmic_

LEADING = ("archlearn",)
"""Methods whose line is thick."""
_SHOWN_WITHIN = 3.0
"""Accuracies this many points below the best are left out of the panel, and said to be."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One method: mean parameters, mean accuracies and their deviations over budgets."""

    method: str
    parameters: tuple[float, ...]
    accuracies: tuple[float, ...]
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
                    tuple(numbers["accuracy"]["mean"] for numbers in points),
                    tuple(numbers["accuracy"]["deviation"] for numbers in points),
                )
            )
    return curves


def choose_floor(curves: Sequence[Curve]) -> float:
    """Return the least accuracy that is shown: the worst one that is not far below the best."""
    every = [accuracy for curve in curves for accuracy in curve.accuracies]
    return min(accuracy for accuracy in every if accuracy >= max(every) - _SHOWN_WITHIN)


def draw_comparison(derived: Mapping[str, Any]) -> Figure:
    """Draw all methods; what is far below the others is left to the table."""
    figure, (axes,) = new_panels(1, height=5.2)
    curves = read_curves(derived)
    floor = choose_floor(curves)
    below = [curve.method for curve in curves if min(curve.accuracies) < floor]
    for place, curve in enumerate(curves):
        thick = curve.method in LEADING
        axes.errorbar(
            curve.parameters,
            curve.accuracies,
            yerr=curve.deviations,
            linewidth=2.4 if thick else 1.1,
            elinewidth=0.8,
            capsize=2,
            markersize=6 if thick else 4,
            zorder=4 if thick else 3,
            label=curve.method,
            **style_of(place + place // 6),
        )
    top = max(max(curve.accuracies) for curve in curves)
    margin = 0.12 * max(top - floor, 0.1)
    axes.set_ylim(floor - margin, top + margin)
    axes.set_xscale("log")
    tick_logarithmic_(axes.xaxis, [x for curve in curves for x in curve.parameters])
    name_axes(axes, "parameters (logarithmic)", "test accuracy, %")
    add_legend(axes, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    if below:
        note = f"partly or wholly below the panel: {', '.join(below)}"
        axes.annotate(note, (0.0, -0.14), xycoords="axes fraction", fontsize=7.5, color=MUTED.light)
    return figure
