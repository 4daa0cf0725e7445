"""Several runs side by side: table and frontier.

Whoever picks the best of several runs by their test scores reads too high a score off the winner.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from archlearn.costs import COSTS, label_of
from archlearn_cli.reporting.architecture_diagram import (
    describe_diagram,
    draw_diagram,
    read_diagram,
)
from archlearn_cli.reporting.figures import (
    FONT_SIZE,
    GRID,
    MUTED,
    SERIES,
    SURFACE,
    FigureItem,
    draw_text,
    format_share_ticks_,
    label_axes,
    make_item,
    new_figure,
    tick_logarithmic_,
)
from archlearn_cli.reporting.formatting import (
    format_count,
    format_duration,
    format_number,
    format_percent,
    format_ratio,
)
from archlearn_cli.reporting.run_reader import JsonTable, RunRecord
from archlearn_cli.reporting.sections import (
    PICTURE_NOTE,
    TableItem,
    format_score,
    say,
    write_widths,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPoint:
    """One run: its number in the table, its parameters and its score on validation data."""

    number: int
    parameters: int
    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Frontier:
    """The numbers of the figure; the best runs no other beats in both parameters and score."""

    data: str
    score_name: str
    lower_is_better: bool
    points: tuple[RunPoint, ...]
    best: tuple[RunPoint, ...]


def read_frontiers(runs: Sequence[RunRecord]) -> tuple[Frontier, ...]:
    """Return one frontier for each data set and kind of score, numbered as in the table."""
    groups: dict[tuple[str, bool], list[RunPoint]] = {}
    for number, run in enumerate(runs, start=1):
        score, parameters = run.validation_score, run.after.costs["parameters"]
        if score is not None and parameters:
            point = RunPoint(number=number, parameters=parameters, score=score)
            groups.setdefault((run.data, run.regression), []).append(point)
    return tuple(
        Frontier(
            data=data,
            score_name="squared error" if regression else "accuracy",
            lower_is_better=regression,
            points=tuple(points),
            best=find_best(points, lower_is_better=regression),
        )
        for (data, regression), points in groups.items()
    )


def find_best(points: Sequence[RunPoint], *, lower_is_better: bool) -> tuple[RunPoint, ...]:
    """Return the points that none of fewer or equal parameters matches, smallest first."""
    sign = 1 if lower_is_better else -1
    best: list[RunPoint] = []
    for point in sorted(points, key=lambda p: (p.parameters, sign * p.score)):
        if not best or sign * point.score < sign * best[-1].score:
            best.append(point)
    return tuple(best)


LEAST_SPAN = 1.1
"""Runs that landed on one budget stand above each other, and ticks between them differ."""


def draw_run_frontier(numbers: Frontier) -> Figure:
    """Draw each run as its number in the table, those that no other beats filled and joined."""
    figure, axes = new_figure(height=225, width=380)
    axes.set_xscale("log")
    axes.plot(
        [point.parameters for point in numbers.best],
        [point.score for point in numbers.best],
        color=SERIES[0].light,
        linewidth=1.4,
        linestyle=(0, (4, 3)),
    )
    for point in numbers.points:
        best = point in numbers.best
        axes.scatter(
            [point.parameters],
            [point.score],
            s=200,
            facecolor=(SERIES[0] if best else SURFACE).light,
            edgecolor=(SERIES[0] if best else MUTED).light,
            linewidth=1.2,
            zorder=3,
        )
        shade = (SURFACE if best else MUTED).light
        place = (point.parameters, point.score)
        draw_text(axes, *place, str(point.number), ha="center", color=shade, zorder=4)
    axes.margins(x=0.12, y=0.16)
    low, high = axes.get_xlim()
    middle, reach = (low * high) ** 0.5, LEAST_SPAN**0.5
    axes.set_xlim(min(low, middle / reach), max(high, middle * reach))
    tick_logarithmic_(axes.xaxis, [point.parameters for point in numbers.points])
    axes.yaxis.set_major_locator(MaxNLocator(5))
    if not numbers.lower_is_better:
        format_share_ticks_(axes.yaxis)
    axes.grid(visible=True, axis="x", color=GRID.light, linewidth=0.8)
    axes.tick_params(labelsize=FONT_SIZE)
    label_axes(axes, "parameters, logarithmic", f"validation {numbers.score_name}")
    return figure


def describe_comparison(runs: Sequence[RunRecord]) -> dict[str, Any]:
    """Return what `template.html` needs for the page of several runs side by side."""
    groups = [numbers for numbers in read_frontiers(runs) if len(numbers.points) > 1]
    return {
        "title": f"{len(runs)} runs side by side",
        "lead": "; ".join(sorted({f"{run.model} on {run.data}" for run in runs})),
        "notes": [f"{run.name}: {note}" for run in runs for note in run.notes],
        "frontiers": [_frontier(numbers, place) for place, numbers in enumerate(groups)],
        "runs": _results(runs),
        "settings": _settings(runs),
        "pictures": [
            make_item(
                draw_diagram(layers := read_diagram(run)),
                f"architecture-{number}",
                f"{number} {run.name}:",
                (write_widths(run.after), describe_diagram(layers)),
            )
            for number, run in enumerate(runs, 1)
            if run.before.widths
        ],
        "picture_note": PICTURE_NOTE,
    }


def find_differences(runs: Sequence[RunRecord]) -> dict[str, tuple[object, ...]]:
    """Return each setting in which the runs differ, with its value in each run."""
    flat = [dict(_flatten(run.config)) for run in runs]
    names = dict.fromkeys(name for settings in flat for name in settings)
    values = {name: tuple(settings.get(name) for settings in flat) for name in names}
    return {
        name: entries
        for name, entries in values.items()
        if any(entry != entries[0] for entry in entries)
    }


def _flatten(config: JsonTable, prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _frontier(numbers: Frontier, place: int) -> FigureItem:
    caption = (
        "Numbers are rows of the table. Filled: no other run is both smaller and better on "
        "validation data."
    )
    form = format_number if numbers.lower_is_better else format_percent
    words = "; ".join(
        f"run {p.number}: {p.parameters:,} parameters, {form(p.score)}" for p in numbers.points
    )
    title = f"Validation {numbers.score_name} against parameters on {numbers.data}."
    return make_item(draw_run_frontier(numbers), f"frontier-{place}", title, (caption, words))


def _results(runs: Sequence[RunRecord]) -> TableItem:
    score = " or ".join(dict.fromkeys(run.score_name for run in runs))
    costs = [label_of(name).capitalize() for name in COSTS]
    head = ("Run", f"Validation {score}", f"Test {score}", *costs, "Time")
    rows = [_result(number, run) for number, run in enumerate(runs, start=1)]
    return TableItem("Runs side by side", head, rows)


def _result(number: int, run: RunRecord) -> tuple[object, ...]:
    costs = [(run.before.costs[name], run.after.costs[name]) for name in COSTS]
    return (
        number,
        run.name,
        format_score(run, run.validation_score),
        format_score(run, run.test_score),
        *map(_cost, costs),
        format_duration(run.summary.get("seconds")),
    )


def _cost(cost: tuple[float | None, float | None]) -> str:
    count = format_count(cost[1])
    return f"{count} (÷ {format_ratio(*cost)[:-1]})" if all(cost) else count


def _settings(runs: Sequence[RunRecord]) -> TableItem | None:
    differences = find_differences(runs)
    if not differences:
        return None
    rows = [
        (place + 1, run.name, *(say(entries[place]) for entries in differences.values()))
        for place, run in enumerate(runs)
    ]
    return TableItem("Settings that differ between the runs", ("Run", *differences), rows)
