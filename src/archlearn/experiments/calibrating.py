"""Strengths are chosen on validation data, on a seed that does not count afterwards."""

from collections.abc import Mapping, Sequence

from archlearn.baselines.methods import TOLERANCE
from archlearn.experiments.contenders import Contender, Learnt, Strength, named, try_reduce
from archlearn.experiments.contests import CALIBRATION_SEED, Contest
from archlearn.experiments.definitions import Done, Work
from archlearn.training.teams import Run

N_CANDIDATES = 2
"""How many strengths of each variant are tried to the end for each budget."""
WEAKER = 1.4
"""By how much less a strength is tried where a seed came out below its budget."""


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
        named(each.begin(trial, CALIBRATION_SEED, strength), name_first(each, strength))
        for each in contenders
        if isinstance(each, Learnt)
        for strength in trial.scale.pick(each.strengths)
    ]


def end_trials(
    contest: Contest, contenders: Sequence[Contender], done: Sequence[Done]
) -> list[Work]:
    """Return the last part for those strengths whose networks are large enough, nearest first."""
    trial, works = contest.calibration(), list[Work]()
    for each in contenders:
        if not isinstance(each, Learnt):
            continue
        for budget in contest.budgets:
            for strength, finished in find_candidates(trial, each, budget, done):
                model = finished.load_model()
                small = try_reduce(lambda m=model, e=each, b=budget: e.reduce(trial, m, b))
                if small is not None:
                    settings = trial.plain(CALIBRATION_SEED, trial.last_epochs)
                    row = name_trial(each, strength, budget)
                    works.append(Run(row=row, settings=settings, network=small))
    return works


def find_candidates(
    trial: Contest, contender: Learnt, budget: int, done: Sequence[Done]
) -> list[tuple[Strength, Done]]:
    """Return the strengths whose networks are least above a budget, with those networks."""
    first = {(d.row.row, d.row.seed): d for d in done}
    found = [
        (strength, first[key])
        for strength in trial.scale.pick(contender.strengths)
        if (key := (name_first(contender, strength), CALIBRATION_SEED)) in first
    ]
    large = [pair for pair in found if is_enough(pair[1], budget)]
    large.sort(key=lambda pair: pair[1].row.parameters)
    variants = dict.fromkeys(strength.variant for strength in contender.strengths)
    return [
        pair
        for variant in variants
        for pair in [pair for pair in large if pair[0].variant == variant][:N_CANDIDATES]
    ]


def is_enough(finished: Done, budget: int) -> bool:
    """Return whether a network has the parameters for a budget."""
    return finished.row.parameters >= (1 - TOLERANCE) * budget


def choose_strength(
    contender: Learnt, budget: int, done: Sequence[Done], default: Strength
) -> Strength:
    """Return the strength that was best on validation data at a budget."""
    scores: Mapping[str, float] = {
        d.row.row: d.row.validation_accuracy or 0.0 for d in done if d.row.seed == CALIBRATION_SEED
    }
    tried = {s: scores.get(name_trial(contender, s, budget)) for s in contender.strengths}
    known = {strength: score for strength, score in tried.items() if score is not None}
    return max(known, key=lambda strength: known[strength]) if known else default
