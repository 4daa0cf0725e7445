"""Table 4 as a picture: accuracy against parameters of CaffeNet and all that was made of it."""

# Methods of matplotlib are annotated in part only.
# pyright: reportUnknownMemberType=false

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from archlearn.reporting.axes import tick_logarithmic_
from archlearn_paper.plots.panels import add_legend, name_axes, new_panels, write_beside
from archlearn_paper.plots.scatters import draw_marks, read_mark

LEARNT, WHOLE = "AL-", "reference"
BELOW = ("AL-fc",)
"""Names that are written below their marks, since AL-conv-fc is about as large."""


def draw_table_4(derived: Mapping[str, Any]) -> Figure:
    """Draw what was learnt, what the compared methods made, and the references.

    The paper's networks were trained on ImageNet: their accuracies have no place here.
    """
    figure, (axes,) = new_panels(1, height=3.4)
    rows = derived["rows"]
    kinds = {
        "learnt (AL)": [row for row in rows if row.startswith(LEARNT)],
        "compared methods": [r for r in rows if not r.startswith((LEARNT, WHOLE))],
        "reference": [row for row in rows if row.startswith(WHOLE)],
    }
    counts: list[float] = []
    for place, (label, names) in enumerate(kinds.items()):
        marks = [read_mark(name, rows[name]) for name in names]
        draw_marks(axes, marks, place, label)
        for mark in marks:
            counts.append(mark.parameters)
            # Names of large networks would leave the picture on the right.
            left = mark.parameters > 3e7
            side = "right" if left else "left"
            place_of_name = (-6 if left else 6, -12 if mark.name in BELOW else 4)
            x, y = mark.parameters, mark.accuracy
            write_beside(axes, x, y, mark.name, xytext=place_of_name, horizontalalignment=side)
    axes.set_xscale("log")
    tick_logarithmic_(axes.xaxis, counts)
    axes.margins(x=0.12, y=0.14)
    name_axes(axes, "parameters (logarithmic)", "accuracy on Tiny-ImageNet, %")
    add_legend(axes, loc="lower center")
    return figure
