"""Table 3: whatever depth a network starts with, about the same depth is learnt.

Every hidden layer starts non-linear, as in the paper, and some become linear and merge.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from archlearn.nn.functional import THRESHOLD
from archlearn_paper import bounds, recipes, statistics, tables
from archlearn_paper.experiment import Derived, Experiment, FinishedRun, Row, Run, Scale
from archlearn_paper.recipes import learn_architecture
from archlearn_paper.tables import Column, counts_in, make_table, spread_in

_COST, _DEPTH_START = 2e-4, 0.45
_CHANGED: Mapping[str, Any] = {
    "learn": "all",
    "depth_share": 2.0,
    "start_after": 0.2,
    "freeze_for": 0.35,
    "depth_start": _DEPTH_START,
    "largest_step": 0.005,
}
"""A deep network must have found its feet before gates move, and loses neurons a few at a time: if
all gates crossed one half within a few steps, it would die."""
_EPOCHS = 40
_N_OTHER_LAYERS = 3
"""Two convolutions and the last layer; the others are of width 75."""
_PAPER = {int(depth): numbers for depth, numbers in recipes.read_paper("table-3").items()}
"""By initial depth."""
_LARGEST_ERROR = 1.04
_DEAD = 50.0
"""A network whose accuracy is below this has died; a guess has 10."""


def _learn_rows(scale: Scale, _: Sequence[FinishedRun]) -> list[Run]:
    """Return one run for each initial depth and seed; of a quick version the least depth only.

    Deeper networks do not begin to learn within the few steps that a quick version has.
    """
    quick = scale.points is not None
    depths = list(_PAPER)[:1] if quick else list(_PAPER)
    scale = replace(scale, epochs=2 * scale.epochs) if quick else scale.shorten(_EPOCHS)
    return [
        Run(
            row=f"depth {depth}",
            settings=learn_architecture(
                scale, seed, _COST, model=f"deep-lenet:{depth - _N_OTHER_LAYERS}", **_CHANGED
            ),
            finish_compact=True,
        )
        for depth in depths
        for seed in scale.seeds
    ]


def _derive(rows: Sequence[Row]) -> dict[str, Any]:
    groups, depths = statistics.group(rows), dict[str, Any]()
    for depth in _PAPER:
        members = groups.get(f"depth {depth}")
        if members:
            depths[str(depth)] = {
                **statistics.summarise_rows(members),
                "depths": [row.n_layers for row in members],
                "start": _describe_start(members[0]),
                "error": statistics.spread_of(members, lambda row: row.error),
                "dead": sum(row.accuracy < _DEAD for row in members),
            }
    finals = [n for of_depth in depths.values() for n in of_depth["depths"]]
    paper = [{"depth": n, "final": p["final"], "error": p["error"]} for n, p in _PAPER.items()]
    return {
        "depths": depths,
        "median_depth": sorted(finals)[(len(finals) - 1) // 2],
        "paper": paper,
    }


def _describe_start(row: Row) -> str:
    """Return how the hidden layers of a run started."""
    start = row.settings.get("gates", {}).get("depth_start", _DEPTH_START)
    return "linear" if start >= THRESHOLD else "non-linear"


def _check(derived: Derived) -> list[bounds.Check]:
    depths, median = derived["depths"], derived["median_depth"]
    finals = [n for of_depth in depths.values() for n in of_depth["depths"]]
    dead = sum(of_depth["dead"] for of_depth in depths.values())
    within = sum(abs(n - median) <= 1 for n in finals)
    starts = {of_depth["start"] for of_depth in depths.values()}
    merged = sum(n < int(depth) for depth, of in depths.items() for n in of["depths"])
    checks = [
        bounds.Check(
            what="dead networks", measured=f"{dead} of {len(finals)}", bound="0", met=dead == 0
        ),
        bounds.Check(
            what="networks of non-linear layers, some of which became linear and merged",
            measured=f"{merged} of {len(finals)} merged, layers started {' and '.join(starts)}",
            bound="all, from a non-linear start",
            met=merged == len(finals) and starts == {"non-linear"},
        ),
        bounds.Check(
            what=f"final depths within {median} ± 1, over all initial depths and seeds",
            measured=f"{within} of {len(finals)}, from {min(finals)} to {max(finals)}",
            bound="all",
            met=within == len(finals),
        ),
    ]
    return [
        *checks,
        *(
            bounds.at_most(f"error from depth {depth}", of_depth["error"], _LARGEST_ERROR)
            for depth, of_depth in depths.items()
        ),
    ]


def _tabulate(derived: Derived) -> list[tables.Table]:
    paper = {str(entry["depth"]): entry for entry in derived["paper"]}
    rows = [{**numbers, "paper": paper[depth]} for depth, numbers in derived["depths"].items()]
    columns: list[Column] = [
        ("initial depth", "{paper[depth]}"),
        ("paper: final depth", "{paper[final]}"),
        ("architecture", lambda row: _PAPER[row["paper"]["depth"]]["architecture"]),
        ("error %", "{paper[error]:.2f}"),
        ("ours: layers start", "{start}"),
        ("final depth, by seed", lambda row: ", ".join(map(str, row["depths"]))),
        ("architectures", lambda row: ", ".join(dict.fromkeys(row["architectures"]))),
        ("parameters", counts_in("parameters")),
        ("error %", spread_in("error", error=True)),
    ]
    return [make_table(rows, columns)]


EXPERIMENT = Experiment((_learn_rows,), _derive, _check, _tabulate)
