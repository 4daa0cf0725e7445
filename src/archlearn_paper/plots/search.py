"""Figure 4: the best objective of a search over its trainings and its seconds, and one run's."""

# Methods of matplotlib are annotated in part only.
# pyright: reportUnknownMemberType=false

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from archlearn_paper.plots.panels import FONT_SIZE, draw_band, name_axes, new_panels, style_of


@dataclass(frozen=True, slots=True)
class Progress:
    """One panel: how far the searches of all seeds are after each training.

    Attributes:
        counts: Trainings, from 1.
        seconds: Mean time after each of them.
        mean: Mean of the best objectives so far.
        learnt: Objective of the one run that learns, for each seed.
    """

    counts: tuple[int, ...]
    seconds: tuple[float, ...]
    mean: tuple[float, ...]
    least: tuple[float, ...]
    most: tuple[float, ...]
    learnt: tuple[float, ...]
    learnt_seconds: float


def read_progress(panel: Mapping[str, Any]) -> Progress:
    """Return what one panel shows; the shortest search decides how far it goes."""
    curves: Sequence[Mapping[str, Any]] = panel["curves"]
    length = min(len(curve["best"]) for curve in curves)
    best = [[curve["best"][place] for curve in curves] for place in range(length)]
    seconds = [[curve["seconds"][place] for curve in curves] for place in range(length)]
    return Progress(
        counts=tuple(range(1, length + 1)),
        seconds=tuple(sum(values) / len(values) for values in seconds),
        mean=tuple(sum(values) / len(values) for values in best),
        least=tuple(min(values) for values in best),
        most=tuple(max(values) for values in best),
        learnt=tuple(curve["learnt"]["objective"] for curve in curves),
        learnt_seconds=sum(curve["learnt"]["seconds"] for curve in curves) / len(curves),
    )


def draw_figure_4(derived: Mapping[str, Any]) -> Figure:
    """Draw a row for each search: over trainings on the left, over seconds on the right."""
    panels = derived["panels"]
    figure, axes = new_panels(2 * len(panels), n_rows=len(panels), height=5.6)
    objective = f"loss + {derived['price']:g} x neurons"
    for row, (name, panel) in enumerate(panels.items()):
        progress = read_progress(panel)
        left, right = axes[2 * row], axes[2 * row + 1]
        _draw(left, progress.counts, progress)
        _draw(right, progress.seconds, progress)
        left.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        right.plot(
            [progress.learnt_seconds], [sum(progress.learnt) / len(progress.learnt)],
            linestyle="none", marker="*", markersize=10, color=style_of(1)["color"], zorder=5,
            label="the run's own time",
        )  # fmt: skip
        name_axes(left, "trainings", objective, f"({name}) {panel['words']}")
        name_axes(right, "seconds, the search's own included", "")
    handles, labels = axes[-1].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=FONT_SIZE - 1
    )
    return figure


def _draw(axes: Axes, x: Sequence[float], progress: Progress) -> None:
    search: dict[str, Any] = style_of(0) | {"markersize": 3.5}
    axes.plot(
        x,
        progress.mean,
        linewidth=1.6,
        label="Bayesian optimisation, best so far: mean and range",
        **search,
    )
    draw_band(axes, x, progress.least, progress.most, 0)
    mean = sum(progress.learnt) / len(progress.learnt)
    colour = style_of(1)["color"]
    axes.axhline(mean, color=colour, linewidth=1.6, linestyle="--", label="one run that learns")
    axes.axhspan(min(progress.learnt), max(progress.learnt), color=colour, alpha=0.15, linewidth=0)
