"""Figure 1b: the two regularisers in one dimension; nothing is trained."""

from collections.abc import Sequence
from typing import Any

from archlearn_paper import bounds, tables
from archlearn_paper.experiment import Derived, Experiment, Row

_STEPS = 100
_RATIO = 0.4
"""Lambda 3 over lambda 1 of the curve that the supplement describes."""


def _derive(_: Sequence[Row]) -> dict[str, Any]:
    w = [step / _STEPS for step in range(_STEPS + 1)]
    curves = {
        "l2: w²": [x * x for x in w],
        "binarising: w(1 − w)": [x * (1 - x) for x in w],
        f"binarising + {_RATIO:g} w (λ3 = {_RATIO:g} λ1)": [x * (1 - x) + _RATIO * x for x in w],
    }
    return {"w": w, "curves": curves}


def _check(derived: Derived) -> list[bounds.Check]:
    *_, shifted = derived["curves"].values()
    peak, at = derived["w"][shifted.index(max(shifted))], 0.5 + _RATIO / 2
    what = "λ3 moves the peak, from which gates fall to 0 or 1, to 1/2 + λ3 / (2 λ1)"
    return [bounds.Check(what=what, measured=f"{peak:g}", bound=f"{at:g}", met=peak == at)]


def _tabulate(derived: Derived) -> list[tables.Table]:
    at = [(derived["w"][i], i) for i in range(0, _STEPS + 1, _STEPS // 4)]
    columns: list[tables.Column] = [("regulariser", lambda row: row[0])]
    columns += [(f"w = {w:g}", lambda row, i=i: f"{row[1][i]:.4g}") for w, i in at]
    return [tables.make_table(derived["curves"].items(), columns)]


EXPERIMENT = Experiment((), _derive, _check, _tabulate)
