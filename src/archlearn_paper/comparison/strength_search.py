"""Strengths are chosen on validation data, on a seed that does not count afterwards."""

from collections.abc import Mapping, Sequence

from archlearn_paper.baselines.interface import TOLERANCE
from archlearn_paper.comparison.compression import Pending, begin_learnt, reduce_learnt, start_runs
from archlearn_paper.comparison.methods import Contender, Learnt, Strength
from archlearn_paper.comparison.protocol import CALIBRATION_SEED, Contest
from archlearn_paper.experiment import Done, Work
from archlearn_paper.run_row import Row

MARGIN = 1.15
"""How far above its budget a network had better be: other seeds come out smaller or larger."""
WEAKER = 1.4
"""By how much less a strength is tried where a seed came out below its budget."""
N_WEAKER = 2
"""How often it is tried so."""


def name_first(contender: Learnt, strength: Strength) -> str:
    """Return the row of the first part of a run."""
    return f"{contender.name}, strength {strength}"


def name_trial(contender: Learnt, strength: Strength, budget: int) -> str:
    """Return the row of a strength that is tried to the end."""
    return f"{name_first(contender, strength)}, tried at {budget}"


def begin_trials(contest: Contest, contenders: Sequence[Contender]) -> list[Work]:
    """Return the first part of a run for every strength, on the calibration seed."""
    trial = contest.calibration()
    return [
        begin_learnt(each, trial, CALIBRATION_SEED, strength, name_first(each, strength))
        for each in contenders
        if isinstance(each, Learnt)
        for strength in trial.scale.pick(each.strengths)
    ]


def end_trials(
    contest: Contest, contenders: Sequence[Contender], done: Sequence[Done]
) -> list[Work]:
    """Return the last part for those strengths whose networks are large enough, nearest first."""
    trial = contest.calibration()
    settings = trial.plain(CALIBRATION_SEED, trial.last_epochs)
    pending = [
        Pending(
            row=name_trial(each, strength, budget),
            settings=settings,
            make=reduce_learnt(each, trial, finished, budget),
        )
        for each in contenders
        if isinstance(each, Learnt)
        for budget in contest.budgets
        for strength, finished in find_candidates(trial, each, budget, done)
    ]
    return list(start_runs(pending))


def find_candidates(
    trial: Contest, contender: Learnt, budget: int, done: Sequence[Done]
) -> list[tuple[Strength, Done]]:
    """Return the strengths whose networks are least above a budget, with those networks.

    Those that are above it by less than a margin come last.
    """
    first = {(d.row.row, d.row.seed): d for d in done}
    found = [
        (strength, first[key])
        for strength in trial.scale.pick(contender.strengths)
        if (key := (name_first(contender, strength), CALIBRATION_SEED)) in first
    ]
    large = [pair for pair in found if is_enough(pair[1], budget)]
    large.sort(key=lambda pair: pair[1].row.parameters)
    large.sort(key=lambda pair: pair[1].row.parameters < MARGIN * budget)
    variants = dict.fromkeys(strength.variant for strength in contender.strengths)
    n_most = contender.n_candidates
    return [
        pair
        for variant in variants
        for pair in [pair for pair in large if pair[0].variant == variant][:n_most]
    ]


def is_enough(finished: Done, budget: int) -> bool:
    """Return whether a network has the parameters for a budget."""
    return finished.row.parameters >= (1 - TOLERANCE) * budget


def choose_strength(contender: Learnt, budget: int, rows: Sequence[Row]) -> Strength:
    """Return the strength that was best on validation data at a budget, or else the weakest."""
    scores: Mapping[str, float] = {
        row.row: row.validation_accuracy or 0.0 for row in rows if row.seed == CALIBRATION_SEED
    }
    tried = {s: scores.get(name_trial(contender, s, budget)) for s in contender.strengths}
    known = {strength: score for strength, score in tried.items() if score is not None}
    if not known:
        return min(contender.strengths, key=lambda strength: strength.value)
    return max(known, key=lambda strength: known[strength])


def list_attempts(contender: Learnt, budget: int, rows: Sequence[Row]) -> list[Strength]:
    """Return the strengths at which a seed is begun, one after the other until it is large enough.

    The last one is the weakest of the first variant: at any price, a network that loses whole
    layers may be too small.
    """
    start = choose_strength(contender, budget, rows)
    weaker = [start.weaken(WEAKER**times) for times in range(N_WEAKER + 1)]
    return [*weaker, contender.strengths[0]]
