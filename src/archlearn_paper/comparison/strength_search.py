"""Search the strength at which a method that learns sizes reaches a budget."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from torch import nn

from archlearn.errors import InputError
from archlearn.training.settings import RunSettings
from archlearn_paper.baselines.budget import TOLERANCE, BudgetError
from archlearn_paper.comparison.methods import (
    LearningMethod,
    Method,
    PruningMethod,
    Reduce,
    Strength,
    named,
)
from archlearn_paper.comparison.protocol import CALIBRATION_SEED, ComparisonSetup
from archlearn_paper.experiment import FinishedRun, Row, RunTask
from archlearn_paper.parallel_runs import Run
from archlearn_paper.worker_pool import Make, make_networks


@dataclass(frozen=True, kw_only=True, slots=True)
class Pending:
    """A run whose network is still to be made."""

    row: str
    settings: RunSettings
    make: Make


@contextmanager
def naming(method: str) -> Generator[None]:
    """Say which method it is that cannot be used with a network.

    A budget out of reach is another matter, and passes as it is.
    """
    try:
        yield
    except BudgetError:
        raise
    except InputError as error:
        raise InputError(
            f"{method} cannot be used with this network: {error}; or name the others with --methods"
        ) from error


def start_runs(pending: Sequence[Pending]) -> list[Run]:
    """Return the runs with their networks; one that cannot reach its budget is left out."""
    networks = make_networks([each.make for each in pending])
    return [
        Run(row=each.row, settings=each.settings, network=network)
        for each, network in zip(pending, networks, strict=True)
        if network is not None
    ]


def begin_learnt(
    method: LearningMethod, setup: ComparisonSetup, seed: int, strength: Strength, row: str
) -> Run:
    """Return the first part of a run that learns its widths."""
    with naming(method.name):
        return named(method.begin(setup, seed, strength), row)


def reduce_learnt(
    method: LearningMethod, setup: ComparisonSetup, finished: FinishedRun, budget: int
) -> Make:
    """Return what brings a network that learnt its widths to a budget."""
    return partial(_reduce_learnt, method, setup, finished, budget)


def reduce_in_round(
    method: LearningMethod | PruningMethod,
    setup: ComparisonSetup,
    finished: FinishedRun,
    budget: int,
    number: int,
) -> Make:
    """Return what brings a network nearer to its budget in one of several rounds."""
    if isinstance(method, PruningMethod):
        reduce = method.reduce
    elif number == 0 or method.again is None:
        return reduce_learnt(method, setup, finished, budget)
    else:
        reduce = method.again
    return partial(_reduce, method.name, reduce, setup, finished, budget)


def _reduce_learnt(
    method: LearningMethod, setup: ComparisonSetup, finished: FinishedRun, budget: int
) -> nn.Module:
    with naming(method.name):
        return method.reduce(setup, finished.load_model(), budget)


def _reduce(
    method: str, reduce: Reduce, setup: ComparisonSetup, finished: FinishedRun, budget: int
) -> nn.Module:
    with naming(method):
        return reduce(finished.load_model(), setup.example(), budget)


MARGIN = 1.15


"""How far above its budget a network had better be: other seeds come out smaller or larger."""


WEAKER = 1.4


"""By how much less a strength is tried where a seed came out below its budget."""


N_WEAKER = 2


"""How often it is tried so."""


def name_first(method: LearningMethod, strength: Strength) -> str:
    """Return the row of the first part of a run."""
    return f"{method.name}, strength {strength}"


def name_trial(method: LearningMethod, strength: Strength, budget: int) -> str:
    """Return the row of a strength that is tried to the end."""
    return f"{name_first(method, strength)}, tried at {budget}"


def begin_trials(setup: ComparisonSetup, methods: Sequence[Method]) -> list[RunTask]:
    """Return the first part of a run for every strength, on the calibration seed."""
    trial = setup.calibration()
    return [
        begin_learnt(each, trial, CALIBRATION_SEED, strength, name_first(each, strength))
        for each in methods
        if isinstance(each, LearningMethod)
        for strength in trial.scale.pick(each.strengths)
    ]


def end_trials(
    setup: ComparisonSetup, methods: Sequence[Method], done: Sequence[FinishedRun]
) -> list[RunTask]:
    """Return the last part for those strengths whose networks are large enough, nearest first."""
    trial = setup.calibration()
    settings = trial.plain(CALIBRATION_SEED, trial.last_epochs)
    pending = [
        Pending(
            row=name_trial(each, strength, budget),
            settings=settings,
            make=reduce_learnt(each, trial, finished, budget),
        )
        for each in methods
        if isinstance(each, LearningMethod)
        for budget in setup.budgets
        for strength, finished in find_candidates(trial, each, budget, done)
    ]
    return list(start_runs(pending))


def find_candidates(
    trial: ComparisonSetup, method: LearningMethod, budget: int, done: Sequence[FinishedRun]
) -> list[tuple[Strength, FinishedRun]]:
    """Return the strengths whose networks are least above a budget, with those networks.

    Those that are above it by less than a margin come last.
    """
    first = {(d.row.row, d.row.seed): d for d in done}
    found = [
        (strength, first[key])
        for strength in trial.scale.pick(method.strengths)
        if (key := (name_first(method, strength), CALIBRATION_SEED)) in first
    ]
    large = [pair for pair in found if is_enough(pair[1], budget)]
    large.sort(key=lambda pair: pair[1].row.parameters)
    large.sort(key=lambda pair: pair[1].row.parameters < MARGIN * budget)
    variants = dict.fromkeys(strength.variant for strength in method.strengths)
    n_most = method.n_candidates
    return [
        pair
        for variant in variants
        for pair in [pair for pair in large if pair[0].variant == variant][:n_most]
    ]


def is_enough(finished: FinishedRun, budget: int) -> bool:
    """Return whether a network has the parameters for a budget."""
    return finished.row.parameters >= (1 - TOLERANCE) * budget


def choose_strength(method: LearningMethod, budget: int, rows: Sequence[Row]) -> Strength:
    """Return the strength that was best on validation data at a budget, or else the weakest."""
    scores: Mapping[str, float] = {
        row.row: row.validation_accuracy or 0.0 for row in rows if row.seed == CALIBRATION_SEED
    }
    tried = {s: scores.get(name_trial(method, s, budget)) for s in method.strengths}
    known = {strength: score for strength, score in tried.items() if score is not None}
    if not known:
        return min(method.strengths, key=lambda strength: strength.value)
    return max(known, key=lambda strength: known[strength])


def list_attempts(method: LearningMethod, budget: int, rows: Sequence[Row]) -> list[Strength]:
    """Return the strengths at which a seed is begun, one after the other until it is large enough.

    The last one is the weakest of the first variant: at any price, a network that loses whole
    layers may be too small.
    """
    start = choose_strength(method, budget, rows)
    weaker = [start.weaken(WEAKER**times) for times in range(N_WEAKER + 1)]
    return [*weaker, method.strengths[0]]
