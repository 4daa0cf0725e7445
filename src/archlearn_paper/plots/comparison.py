"""The figure of the comparison: error against parameters, one line a method."""

# Methods of matplotlib are annotated in part only.
# pyright: reportUnknownMemberType=false

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from archlearn.reporting.axes import tick_at_counts_, tick_logarithmic_
from archlearn_paper.plots.panels import FONT_SIZE, name_axes, new_panels, style_of

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
