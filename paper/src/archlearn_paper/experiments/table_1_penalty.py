"""The rows of table 1 by the paper's own method: equations 4 and 5, clipping, plain SGD.

`TriState` stands in the network's forward. Lambda 3 is 0.4 or 0.2 of lambda 1, as table 1 prints;
lambda 1 follows from that and the supplement's advice on lambda 3, by widths and loss; lambda 2
and lambda 4 are a tenth of lambda 1 and lambda 3. The paper does not say at which rate gates move.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from archlearn_paper import statistics, tables
from archlearn_paper.experiment import FULL, Derived, FinishedRun, Origin, Row, Run, Scale
from archlearn_paper.recipes import choose_gate_rate, learn_architecture, read_paper
from archlearn_paper.tristate_lenet import make_tristate_lenet

PENALTY = "penalty "
PENALTY_SEEDS = tuple(range(5, 15))
"""Fixed before any of them was run."""
LAMBDA_1 = 1e-3
"""Of a LeNet: with 0.4 of that, all 570 neurons together cost a tenth of the loss of a guess."""
RATIOS = {"AL1": 0.4, "AL2": 0.4, "AL3": 0.2, "AL4": 0.2}
"""Lambda 3 over lambda 1."""
LEARN_DEPTH = ("AL1", "AL3")
_DEPTH_SHARE = 0.1


def learn_by_penalty(scale: Scale, _: Sequence[FinishedRun]) -> list[Run]:
    """Return the runs by the penalty, all rows of a seed together; of a quick version one seed."""
    seeds = PENALTY_SEEDS if scale.points is None else PENALTY_SEEDS[:1]
    # One rate for all rows: what differs is what pulls.
    rate = choose_gate_rate(scale, max(RATIOS.values()) * LAMBDA_1)
    runs: list[Run] = []
    for seed in seeds:
        for row, ratio in RATIOS.items():
            settings = learn_architecture(
                scale,
                seed,
                ratio * LAMBDA_1,
                ratio=ratio,
                learn="nothing",  # gates are in the network already
                depth_share=_DEPTH_SHARE,
                gate_rate=rate,
            )
            origin = Origin(make=partial(make_tristate_lenet, seed, depth=row in LEARN_DEPTH))
            run = Run(row=PENALTY + row, settings=settings, origin=origin, finish_compact=True)
            runs.append(run)
    return runs


def summarise_penalty(groups: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """Return what the rows by the penalty came to, and the seeds that they lack."""
    by_row = {row: groups[PENALTY + row] for row in RATIOS if PENALTY + row in groups}
    missing = {
        PENALTY + row: [s for s in PENALTY_SEEDS if s not in [r.seed for r in by_row.get(row, ())]]
        for row in RATIOS
    }
    return {
        "penalty": {row: statistics.summarise_rows(members) for row, members in by_row.items()},
        "missing": {row: seeds for row, seeds in missing.items() if seeds},
    }


def tabulate_penalty(derived: Derived) -> list[tables.Table]:
    """Return the paper's rows, those by its penalty, and those by a budget beside them."""
    ours, budget, paper = derived["penalty"], derived["rows"], read_paper("table-1")

    def merged(row: str) -> str:
        counts = [text.count("-") < len("---") for text in ours[row]["architectures"]]
        return f"{sum(counts)} of {len(counts)}" if row in LEARN_DEPTH else tables.NOTHING

    columns: list[tables.Column] = [
        ("row", str),
        ("λ3 / λ1", lambda row: f"{RATIOS[row]:g}"),
        ("paper: architecture", lambda row: paper[row]["architecture"]),
        ("AL %", lambda row: f"{paper[row]['accuracy']:.2f}"),
        ("by the penalty: architecture", lambda row: ", ".join(ours[row]["architectures"])),
        ("third layer merged", merged),
        ("parameters", lambda row: tables.write_counts(ours[row]["parameters"])),
        ("AL %", lambda row: tables.write_spread(ours[row]["accuracy"], error=True)),
        ("by budget: parameters", lambda row: tables.write_counts(budget[row]["parameters"])),
        ("AL %", lambda row: tables.write_spread(budget[row]["accuracy"], error=True)),
    ]
    title = (
        f"By the paper's own penalty: equations 4 and 5, λ1 = {LAMBDA_1:g}, λ2 and λ4 a tenth of "
        "λ1 and λ3, clipping, plain SGD on the gates, TriState in forward; "
        f"{FULL.epochs} epochs where the paper has 300."
    )
    there = [row for row in ours if row in budget]
    return [tables.make_table(there, columns, title)] if there else []
