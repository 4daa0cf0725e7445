"""The rows of table 1 by the paper's own method: equations 4 and 5, clipping, plain SGD.

`TriState` stands in the network's forward. Lambda 3 is 0.4 or 0.2 of lambda 1, as table 1 prints;
lambda 1 follows from that and the supplement's advice on lambda 3, by widths and loss; lambda 2
and lambda 4 are a tenth of lambda 1 and lambda 3. The paper does not say at which rate gates move.
"""

from collections.abc import Sequence
from functools import partial

from archlearn_paper.experiment import FinishedRun, Origin, Run, Scale
from archlearn_paper.recipes import choose_gate_rate, learn_architecture
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
            depth = row in LEARN_DEPTH
            make = partial(make_tristate_lenet, seed, depth=depth)
            origin = Origin(how=f"TriState, depth {depth}", make=make)
            run = Run(row=PENALTY + row, settings=settings, origin=origin, finish_compact=True)
            runs.append(run)
    return runs
