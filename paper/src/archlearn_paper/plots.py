"""The figure of each experiment, drawn with matplotlib from its derived numbers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from archlearn_cli.reporting import figures
from archlearn_cli.reporting.formatting import format_short_count

WIDTH = 6.9
"""Inches: the width of a page of text."""
HEIGHT = 3.1
_FONT_SIZE = 9.0
MARKERS = ("o", "s", "D", "^", "v", "P")
PAPER_MARKER = "X"


def new_panels(
    n_panels: int, *, height: float = HEIGHT, n_rows: int = 1
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure and its panels, row by row from left to right."""
    layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.05)
    figure = Figure(figsize=(WIDTH, height), layout=layout, facecolor="white")
    n_columns = n_panels // n_rows
    panels = [figure.add_subplot(n_rows, n_columns, index + 1) for index in range(n_panels)]
    for axes in panels:
        axes.tick_params(
            colors=figures.INK.light, labelsize=_FONT_SIZE, length=3, color=figures.MUTED.light
        )
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            axes.spines[side].set_color(figures.MUTED.light)
        axes.grid(visible=True, color=figures.GRID.light, linewidth=0.6)
        axes.set_axisbelow(True)
    return figure, panels


def name_axes(axes: Axes, x: str, y: str, title: str = "") -> None:
    """Write what runs along the axes, and what the panel shows."""
    axes.set_xlabel(x, color=figures.INK.light, fontsize=_FONT_SIZE)
    axes.set_ylabel(y, color=figures.INK.light, fontsize=_FONT_SIZE)
    if title:
        axes.set_title(title, loc="left", color=figures.INK.light, fontsize=_FONT_SIZE + 0.5)


def style_of(index: int) -> dict[str, Any]:
    """Return colour, dashes and marker of a series: any one of them tells it from the others."""
    return {
        "color": figures.SERIES[index % len(figures.SERIES)].light,
        "linestyle": figures.DASHES[index % len(figures.DASHES)],
        "marker": MARKERS[index % len(MARKERS)],
    }


def draw_band(
    axes: Axes, x: Sequence[float], low: Sequence[float], high: Sequence[float], index: int
) -> None:
    """Draw where the seeds of a series lie."""
    axes.fill_between(
        x,
        low,
        high,
        color=figures.SERIES[index % len(figures.SERIES)].light,
        alpha=0.18,
        linewidth=0,
    )


def draw_spreads(
    axes: Axes,
    x: Sequence[float],
    spreads: Sequence[Mapping[str, float]],
    index: int,
    label: str,
) -> None:
    """Draw means joined by a line, and the deviation of the seeds as a band."""
    means = [spread["mean"] for spread in spreads]
    low = [spread["mean"] - spread["deviation"] for spread in spreads]
    high = [spread["mean"] + spread["deviation"] for spread in spreads]
    axes.plot(x, means, linewidth=1.6, markersize=4.5, label=label, **style_of(index))
    draw_band(axes, x, low, high, index)


def mark_paper(axes: Axes, x: Sequence[float], y: Sequence[float]) -> None:
    """Draw values of the paper, the same way in every figure."""
    axes.plot(
        x,
        y,
        linestyle="none",
        marker=PAPER_MARKER,
        markersize=7,
        color=figures.INK.light,
        markeredgecolor="white",
        markeredgewidth=0.6,
        label="paper",
        zorder=5,
    )


def add_legend(axes: Axes, **options: Any) -> None:
    """Say which series is which."""
    sizes = {"fontsize": _FONT_SIZE - 1, "title_fontsize": _FONT_SIZE - 1}
    settings: dict[str, Any] = {"frameon": False, **sizes, **options}
    axes.legend(**settings)


def write_beside(axes: Axes, x: float, y: float, text: str, **options: Any) -> None:
    """Write a few points right of and above a point of the data."""
    settings: dict[str, Any] = {
        "xytext": (5, 4),
        "textcoords": "offset points",
        "fontsize": _FONT_SIZE - 1,
        "color": figures.INK.light,
        **options,
    }
    axes.annotate(text, (x, y), **settings)


FigureNumbers = Mapping[str, Any]


def draw_figure_1b(derived: FigureNumbers) -> Figure:
    """Draw the regularisers over a gate."""
    figure, (axes,) = new_panels(1)
    for index, (name, values) in enumerate(derived["curves"].items()):
        style: dict[str, Any] = style_of(index) | {"marker": ""}
        axes.plot(derived["w"], values, linewidth=1.6, label=name, **style)
    name_axes(axes, "gate w", "regulariser, λ1 = 1")
    add_legend(axes, loc="upper left")
    return figure


def draw_figure_3a(derived: FigureNumbers) -> Figure:
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
    for index, pair in enumerate(pairs):
        style: dict[str, Any] = style_of(index) | {"marker": ""}
        label = f"{name} = {pair[strength]:g}"
        axes.plot(pair["steps"], pair["mean"], linewidth=1.6, label=label, **style)
        draw_band(axes, pair["steps"], pair["least"], pair["most"], index)
    axes.set_yscale("log")
    figures.tick_logarithmic_(
        axes.yaxis, [max(1, width) for pair in pairs for width in pair["least"]]
    )
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: format_short_count(count)))
    add_legend(axes)


def draw_figure_3b(derived: FigureNumbers) -> Figure:
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


def draw_table_3(derived: FigureNumbers) -> Figure:
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


def draw_properties(derived: FigureNumbers) -> Figure:
    """Draw the share of neurons by the rise without them, and the gaps in loss by row."""
    figure, (left, right) = new_panels(2)
    for number, (row, numbers) in enumerate(derived["removal"].items()):
        rises = numbers["rises"]
        shares = [(index + 1) / len(rises) for index in range(len(rises))]
        style: dict[str, Any] = style_of(number) | {"marker": ""}
        label = f"{row}: {numbers['share']:.1%}"
        left.plot(rises, shares, linewidth=1.5, drawstyle="steps-post", label=label, **style)
    left.set_xscale("symlog", linthresh=1e-5)
    left.set_xticks([-1e-4, 0, 1e-4, 1e-2, 1])
    left.xaxis.set_minor_locator(NullLocator())
    left.axvline(0, color="black", linewidth=0.8)
    name_axes(left, "rise of the train loss without the neuron", "share of neurons")
    sizes: dict[str, Any] = {"fontsize": _FONT_SIZE - 1, "title_fontsize": _FONT_SIZE - 1}
    below: dict[str, Any] = {"loc": "outside lower center", "ncols": 3, "frameon": False}
    figure.legend(title="rises above 0", **below, **sizes)
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
    name_axes(axes, "", "train loss less from scratch")


def draw_marks(
    axes: Axes, rows: Sequence[FigureNumbers], index: int, label: str, *, hollow: bool = False
) -> None:
    """Draw networks: means over their seeds, with the deviations as bars.

    Hollow ones have as many parameters as others, and no bar for them.
    """
    style: dict[str, Any] = style_of(index) | {"linestyle": "none"}
    if hollow:
        style |= {"markerfacecolor": "white", "markeredgewidth": 1.2}
    axes.errorbar(
        [row["parameters"]["mean"] for row in rows],
        [row["accuracy"]["mean"] for row in rows],
        xerr=None if hollow else [row["parameters"]["deviation"] for row in rows],
        yerr=[row["accuracy"]["deviation"] for row in rows],
        elinewidth=1,
        capsize=2,
        markersize=6,
        label=label,
        **style,
    )


def draw_table_1(derived: FigureNumbers) -> Figure:
    """Draw what was learnt, the same from scratch, and the paper's rows."""
    figure, (axes,) = new_panels(1)
    rows, paper = derived["rows"], derived["paper"]
    learnt = [row for row in rows if f"{row} NN" in rows]
    draw_marks(axes, [rows["baseline"]], 3, "baseline, ours")
    scratch = [rows[f"{row} NN"] for row in learnt]
    draw_marks(axes, scratch, 1, "the same from scratch (NN), ours", hollow=True)
    draw_marks(axes, [rows[row] for row in learnt], 0, "learnt (AL), ours")
    _mark_points_(axes, paper)
    counts = [rows[row]["parameters"]["mean"] for row in learnt]
    for row, x in zip(learnt, counts, strict=True):
        y, name = rows[row]["accuracy"]["mean"], row.replace(", ", ",\n")
        side = 1 if any(x / 1.5 < other < x for other in counts) else -1
        aligned = "left" if side == 1 else "right"
        write_beside(axes, x, y, name, xytext=(5 * side, 4), horizontalalignment=aligned)
    _finish_(axes, counts + [p["parameters"] for p in paper])
    return figure


def draw_table_2(derived: FigureNumbers) -> Figure:
    """Draw SVD with and without fine-tuning against learning."""
    figure, (axes,) = new_panels(1)
    rows, paper = derived["rows"], derived["paper"]
    kinds = {
        "learnt (AL), ours": [row for row in rows if row.startswith("AL")],
        "SVD, ours": [r for r in rows if r.startswith("SVD") and not r.endswith("fine-tuned")],
        "SVD, fine-tuned, ours": [row for row in rows if row.endswith("fine-tuned")],
        "baseline, ours": ["baseline"],
    }
    for index, (label, names) in enumerate(kinds.items()):
        draw_marks(axes, [rows[name] for name in names], index, label)
    _mark_points_(axes, paper)
    _finish_(axes, [row["parameters"]["mean"] for row in rows.values()])
    return figure


def _mark_points_(axes: Axes, paper: Sequence[Mapping[str, Any]]) -> None:
    """Draw the paper's networks and their names, below the points of SVD and AL3."""
    mark_paper(axes, [p["parameters"] for p in paper], [p["accuracy"] for p in paper])
    for point in paper:
        offset = (5, -11) if point["row"].startswith(("SVD", "AL3")) else (5, 4)
        x, y = point["parameters"], point["accuracy"]
        write_beside(axes, x, y, point["row"], color=figures.MUTED.light, xytext=offset)


def _finish_(axes: Axes, counts: Sequence[float]) -> None:
    axes.set_xscale("log")
    figures.tick_logarithmic_(axes.xaxis, counts)
    axes.margins(x=0.12, y=0.08)
    name_axes(axes, "parameters (logarithmic)", "test accuracy, %")
    add_legend(axes, loc="lower right")


_LEARNT, _WHOLE = "AL-", "reference"
_BELOW = ("AL-conv", "AL-fc", "AL-all")


def draw_table_4(derived: FigureNumbers) -> Figure:
    """Draw a series for each method over the sizes, and a line where the reference is.

    Names stand beside what was learnt and beside the rows that the paper has of other methods. The
    paper's own networks were trained on ImageNet: their accuracies have no place here.
    """
    figure, (axes,) = new_panels(1, height=3.8)
    rows = {name: row for name, row in derived["rows"].items() if not name.startswith(_WHOLE)}
    methods: dict[str, list[str]] = {"learnt (AL)": [], "the paper's other methods": []}
    for name in rows:
        method, _, share = name.partition(", ")
        group = "learnt (AL)" if name.startswith(_LEARNT) else "the paper's other methods"
        methods.setdefault(method if share else group, []).append(name)
    for index, (label, names) in enumerate(methods.items()):
        draw_marks(axes, [rows[name] for name in names], index, label)
        for name in names if ", " not in names[0] else ():
            x, y = rows[name]["parameters"]["mean"], rows[name]["accuracy"]["mean"]
            write_beside(axes, x, y, name, xytext=(6, -12 if name in _BELOW else 4))
    for name, row in derived["rows"].items():
        if name.startswith(_WHOLE):
            axes.axhline(
                row["accuracy"]["mean"], color=figures.MUTED.light, linewidth=0.8, zorder=0
            )
    axes.set_xscale("log")
    figures.tick_logarithmic_(axes.xaxis, [row["parameters"]["mean"] for row in rows.values()])
    axes.margins(x=0.16, y=0.1)
    name_axes(axes, "parameters (logarithmic)", "accuracy on Tiny-ImageNet, %")
    add_legend(axes, loc="lower right", title="lines: the reference, and trained further")
    return figure


def draw_figure_4(derived: FigureNumbers) -> Figure:
    """Draw every search by itself: its best objective so far, beside the run of the same seed."""
    panels: list[Mapping[str, Any]] = list(derived["panels"].values())
    rows = sorted({panel["name"] for panel in panels})
    figure, axes = new_panels(len(panels), n_rows=len(rows), height=2.8 * len(rows))
    for ax, panel in zip(axes, sorted(panels, key=lambda panel: panel["name"]), strict=True):
        _draw_searches(ax, panel)
    handles, labels = axes[-1].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=_FONT_SIZE - 1
    )
    return figure


def _draw_searches(axes: Axes, panel: Mapping[str, Any]) -> None:
    for index, curve in enumerate(panel["curves"]):
        first = index == 0
        colour = style_of(index)["color"]
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


_LEADING = "archlearn"
"""The method whose line is thick."""
_LEAST_ERROR = 0.01
_MOST_TIMES = 3
"""Errors above so many times the least are not shown: the table has them."""


def draw_comparison(derived: FigureNumbers) -> Figure:
    """Draw the error of all methods against their parameters, both logarithmic."""
    figure, (axes,) = new_panels(1, height=6.2)
    curves = {
        method: sorted(points.values(), key=lambda point: point["parameters"]["mean"])
        for method, points in derived["results"].items()
        if points
    }
    every = [_find_error(point) for points in curves.values() for point in points]
    most = _MOST_TIMES * min(every)
    for index, (method, points) in enumerate(curves.items()):
        thick, errors = method == _LEADING, [_find_error(point) for point in points]
        # From the seventh line on, colours come with other dashes and markers.
        style = style_of(index + index // 6) | {"color": style_of(index)["color"]}
        axes.errorbar(
            [point["parameters"]["mean"] for point in points],
            errors,
            yerr=_find_bars(points, most),
            linewidth=2.4 if thick else 1.1,
            elinewidth=0.8,
            capsize=2,
            markersize=6 if thick else 4,
            zorder=4 if thick else 3,
            label=method if min(errors) <= most else f"{method} (above)",
            **style,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    shown = [error for error in every if error <= most]
    if len(shown) < len(every):
        axes.set_ylim(0.85 * min(shown), most)
    budgets = [int(budget) for budget in derived["ranks"]]
    axes.set_xticks(budgets, [format_short_count(budget) for budget in budgets], minor=False)
    axes.xaxis.set_minor_locator(NullLocator())
    figures.tick_logarithmic_(axes.yaxis, shown)
    name_axes(axes, "parameters (logarithmic)", "test error, % (logarithmic)")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=_FONT_SIZE - 1.5)
    return figure


def _find_error(point: FigureNumbers) -> float:
    return max(_LEAST_ERROR, 100 - point["accuracy"]["mean"])


def _find_bars(points: Sequence[FigureNumbers], most: float) -> tuple[list[float], list[float]]:
    """Return how far bars go down and up; a point that is not shown has none."""
    errors = [_find_error(point) for point in points]
    bars = [
        point["accuracy"]["deviation"] if error <= most else 0.0
        for point, error in zip(points, errors, strict=True)
    ]
    return [min(b, e - _LEAST_ERROR) for b, e in zip(bars, errors, strict=True)], bars


def find_drawing(name: str) -> Callable[[FigureNumbers], Figure] | None:
    """Return the function that draws an experiment: `draw_table_1` of table-1; None without one."""
    kind = "comparison" if name.startswith("compare-") else name.replace("-", "_")
    return globals().get(f"draw_{kind}")


def write_figure(name: str, derived: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw the figure of an experiment from its derived numbers; return the files written.

    An experiment without a drawing has none. The same figure always gives the same SVG.
    """
    draw = find_drawing(name)
    if draw is None:
        return []
    figure, paths = draw(derived), [folder / f"{name}.svg", folder / f"{name}.png"]
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        figure.savefig(paths[0], metadata={"Date": None, "Creator": None})
    figure.savefig(paths[1], dpi=200, metadata={"Software": None})
    return paths
