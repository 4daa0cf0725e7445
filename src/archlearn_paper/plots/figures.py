"""The figure of an experiment, by name, written as SVG for pages and as PNG for looking at."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from archlearn_paper.plots.curves import (
    draw_figure_3a,
    draw_figure_3b,
    draw_properties,
    draw_table_3,
)
from archlearn_paper.plots.scatters import draw_frontier, draw_table_1, draw_table_2
from archlearn_paper.plots.search import draw_figure_4
from archlearn_paper.plots.table_4 import draw_table_4

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
    return save_figure(DRAWINGS[name](derived), name, folder) if name in DRAWINGS else []


def save_figure(figure: Figure, name: str, folder: Path) -> list[Path]:
    """Write a figure; return the files written. The same figure always gives the same SVG."""
    paths = [folder / f"{name}.svg", folder / f"{name}.png"]
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        figure.savefig(paths[0], metadata={"Date": None, "Creator": None})
    figure.savefig(paths[1], dpi=_DOTS_PER_INCH, metadata={"Software": None})
    return paths
