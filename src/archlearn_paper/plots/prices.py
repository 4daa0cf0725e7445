"""What prices come to: size by price, and accuracy by size, on validation data."""

# Methods of matplotlib are annotated in part only.
# pyright: reportUnknownMemberType=false

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from archlearn.reporting.axes import tick_logarithmic_
from archlearn_paper.plots.panels import add_legend, name_axes, new_panels, style_of


def draw_prices(points: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw parameters over the price on the left, and accuracy over parameters on the right."""
    figure, (left, right) = new_panels(2)
    kinds = dict.fromkeys((point["learnt"], point["price"]) for point in points)
    for place, (learnt, price) in enumerate(kinds):
        own = [p for p in points if (p["learnt"], p["price"]) == (learnt, price)]
        sizes = [point["parameters"]["mean"] for point in own]
        style: dict[str, Any] = {"linewidth": 1.5, "markersize": 5, **style_of(place)}
        left.plot([p["cost"] for p in own], sizes, **style)
        means = [p["accuracy"]["mean"] for p in own]
        right.plot(sizes, means, label=f"{learnt}, by {price}", **style)
        low, high = ([p["accuracy"][end] for p in own] for end in ("least", "most"))
        right.vlines(sizes, low, high, color=style["color"], linewidth=0.8)
    sizes = [point["parameters"]["mean"] for point in points]
    for axes in (left, right):
        axes.set_xscale("log")
    left.set_yscale("log")
    costs = [point["cost"] for point in points]
    left.set_xticks([3e-4, 6e-4, 1.2e-3, 2.4e-3], ["3e-4", "6e-4", "1.2e-3", "2.4e-3"])
    left.set_xlim(0.85 * min(costs), 1.2 * max(costs))
    left.minorticks_off()
    tick_logarithmic_(left.yaxis, sizes)
    tick_logarithmic_(right.xaxis, sizes)
    name_axes(left, "price λ3 (logarithmic)", "parameters (logarithmic)")
    name_axes(right, "parameters (logarithmic)", "validation accuracy, %")
    add_legend(right, loc="lower right")
    return figure
