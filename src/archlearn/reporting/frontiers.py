"""Accuracy against parameters: runs on the same data, compared on validation data.

Whoever picks the best of several runs by their test scores reads too high a score off the winner.
"""

# Methods of matplotlib are annotated in part only.
# pyright: reportUnknownMemberType=false

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from archlearn.reporting.axes import format_share_ticks_, tick_logarithmic_
from archlearn.reporting.colours import GRID, MUTED, SERIES, SURFACE
from archlearn.reporting.figures import FONT_SIZE, label_axes, new_figure, write_text
from archlearn.reporting.run import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One run: its number in the table, its parameters and its score on validation data."""

    number: int
    parameters: int
    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Frontier:
    """The numbers of the figure.

    Attributes:
        best: The runs that no other run beats in both parameters and score, smallest first.
        lower_is_better: Whether the score is an error.
    """

    data: str
    score_name: str
    lower_is_better: bool
    points: tuple[Point, ...]
    best: tuple[Point, ...]


def read_frontiers(runs: Sequence[Run]) -> tuple[Frontier, ...]:
    """Return one frontier for each data set and kind of score, numbered as in the table."""
    groups: dict[tuple[str, bool], list[Point]] = {}
    for number, run in enumerate(runs, start=1):
        score = run.validation_score
        if score is not None and run.after.parameters:
            point = Point(number=number, parameters=run.after.parameters, score=score)
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


def find_best(points: Sequence[Point], *, lower_is_better: bool) -> tuple[Point, ...]:
    """Return the points that none of fewer or equal parameters matches, smallest first."""
    sign = 1 if lower_is_better else -1
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.parameters, sign * p.score)):
        if not best or sign * point.score < sign * best[-1].score:
            best.append(point)
    return tuple(best)


def draw_frontier(numbers: Frontier) -> Figure:
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
        write_text(axes, *place, str(point.number), ha="center", color=shade, zorder=4)
    _set_axes_(figure, numbers)
    return figure


def _set_axes_(figure: Figure, numbers: Frontier) -> None:
    axes = figure.axes[0]
    axes.margins(x=0.12, y=0.16)
    counts = [point.parameters for point in numbers.points]
    tick_logarithmic_(axes.xaxis, counts)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    if not numbers.lower_is_better:
        format_share_ticks_(axes.yaxis)
    axes.grid(visible=True, axis="x", color=GRID.light, linewidth=0.8)
    axes.tick_params(labelsize=FONT_SIZE)
    label_axes(axes, "parameters, logarithmic", f"validation {numbers.score_name}")
