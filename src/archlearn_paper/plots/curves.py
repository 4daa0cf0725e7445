"""Curves of experiments: neurons over iterations, over classes, and depth learnt from depth."""

# Methods of matplotlib are annotated in part only.
# pyright: reportUnknownMemberType=false

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from archlearn.reporting.axes import tick_logarithmic_
from archlearn.reporting.formatting import format_short_count
from archlearn_paper.plots.panels import (
    add_legend,
    draw_band,
    draw_spreads,
    mark_paper,
    name_axes,
    new_panels,
    style_of,
)

Derived = Mapping[str, Any]


def draw_figure_3a(derived: Derived) -> Figure:
    """Draw the third layer over iterations: on the left by lambda 3, on the right by lambda 1."""
    figure, (left, right) = new_panels(2)
    pairs = derived["pairs"]
    middle_cost = _middle([pair["cost"] for pair in pairs])
    middle_push = _middle([pair["binarise"] for pair in pairs])
    by_cost = [pair for pair in pairs if pair["binarise"] == middle_push]
    by_push = [pair for pair in pairs if pair["cost"] == middle_cost]
    _draw_pairs(left, by_cost, "λ3", "cost")
    _draw_pairs(right, by_push, "λ1", "binarise")
    right.sharey(left)
    measure = "neurons of the third layer (logarithmic)"
    name_axes(left, "iteration", measure, f"λ1 = {middle_push:g}")
    name_axes(right, "iteration", measure, f"λ3 = {middle_cost:g}")
    return figure


def _middle(values: Sequence[float]) -> float:
    ordered = sorted(set(values))
    return ordered[len(ordered) // 2]


def _draw_pairs(axes: Axes, pairs: Sequence[Mapping[str, Any]], name: str, strength: str) -> None:
    for place, pair in enumerate(pairs):
        style: dict[str, Any] = style_of(place) | {"marker": ""}
        label = f"{name} = {pair[strength]:g}"
        axes.plot(pair["steps"], pair["mean"], linewidth=1.6, label=label, **style)
        draw_band(axes, pair["steps"], pair["least"], pair["most"], place)
    axes.set_yscale("log")
    tick_logarithmic_(axes.yaxis, [width for pair in pairs for width in pair["least"]])
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(_write_count))
    add_legend(axes)


def _write_count(value: float, _: int | None) -> str:
    return format_short_count(value)


def draw_figure_3b(derived: Derived) -> Figure:
    """Draw neurons on the left and errors on the right, over the number of classes."""
    figure, (left, right) = new_panels(2)
    classes = derived["classes"]
    x, numbers = [int(n) for n in classes], list(classes.values())
    draw_spreads(left, x, [n["neurons"] for n in numbers], 0, "all layers")
    draw_spreads(left, x, [n["third_layer"] for n in numbers], 1, "third layer")
    draw_spreads(right, x, [n["error"] for n in numbers], 2, "")
    correlations = derived["spearman"]
    title = (
        f"Spearman {correlations['neurons']:.2f} (all), {correlations['third_layer']:.2f} (third)"
    )
    name_axes(left, "classes", "neurons kept", title)
    name_axes(right, "classes", "test error, %", f"Spearman {correlations['error']:.2f}")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(9, integer=True))
    add_legend(left, loc="upper left")
    return figure


def draw_table_3(derived: Derived) -> Figure:
    """Draw the depth learnt on the left and the error on the right, over the initial depth."""
    figure, (left, right) = new_panels(2)
    depths, paper = derived["depths"], derived["paper"]
    x = [int(depth) for depth in depths]
    draw_spreads(left, x, [of_depth["layers"] for of_depth in depths.values()], 0, "ours, mean")
    seeds = [(int(depth), n) for depth, numbers in depths.items() for n in numbers["depths"]]
    left.scatter(
        [depth for depth, _ in seeds],
        [n for _, n in seeds],
        s=10,
        color=style_of(0)["color"],
        alpha=0.6,
        label="ours, seeds",
    )
    mark_paper(left, [p["depth"] for p in paper], [p["final"] for p in paper])
    draw_spreads(right, x, [of_depth["error"] for of_depth in depths.values()], 0, "ours")
    mark_paper(right, [p["depth"] for p in paper], [p["error"] for p in paper])
    name_axes(left, "initial depth, layers", "final depth, layers")
    name_axes(right, "initial depth, layers", "test error, %")
    left.yaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (left, right):
        axes.set_ylim(bottom=0)
        axes.set_xticks([p["depth"] for p in paper])
    add_legend(left, loc="lower right")
    add_legend(right, loc="lower right")
    return figure


def draw_properties(derived: Derived) -> Figure:
    """Draw the share of neurons by the rise without them, and the gaps in loss by row."""
    figure, (left, right) = new_panels(2)
    for place, (row, numbers) in enumerate(derived["removal"].items()):
        rises = numbers["rises"]
        shares = [(index + 1) / len(rises) for index in range(len(rises))]
        style: dict[str, Any] = style_of(place) | {"marker": ""}
        label = f"{row}: {numbers['share']:.1%}"
        left.plot(rises, shares, linewidth=1.5, drawstyle="steps-post", label=label, **style)
    left.set_xscale("symlog", linthresh=1e-5)
    left.set_xticks([-1e-4, 0, 1e-4, 1e-2, 1])
    left.xaxis.set_minor_locator(NullLocator())
    left.axvline(0, color="black", linewidth=0.8)
    name_axes(left, "rise of the train loss without the neuron", "share of neurons")
    white = {"frameon": True, "facecolor": "white", "edgecolor": "none", "framealpha": 1.0}
    add_legend(left, loc="center left", title="rises above 0", **white)
    _draw_gaps(right, derived["gaps"])
    return figure


def _draw_gaps(axes: Axes, gaps: Mapping[str, Any]) -> None:
    rows = list(gaps)
    style: dict[str, Any] = style_of(0) | {"linestyle": "none"}
    axes.errorbar(
        range(len(rows)),
        [gaps[row]["gap"]["mean"] for row in rows],
        yerr=[gaps[row]["gap"]["deviation"] for row in rows],
        capsize=3,
        **style,
    )
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(rows)), [row.replace(", ", ",\n") for row in rows])
    axes.margins(x=0.15)
    name_axes(axes, "", "train loss, learnt less from scratch")
