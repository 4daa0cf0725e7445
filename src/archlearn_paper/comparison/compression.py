"""A run may wait for its network, which is made from one that is trained already."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from torch import nn

from archlearn.errors import InputError
from archlearn.training.settings import RunSettings
from archlearn_paper.baselines.interface import BudgetError
from archlearn_paper.comparison.methods import Learnt, Pruned, Reduce, Strength, named
from archlearn_paper.comparison.protocol import Contest
from archlearn_paper.experiment import Done
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
    contender: Learnt, contest: Contest, seed: int, strength: Strength, row: str
) -> Run:
    """Return the first part of a run that learns its widths."""
    with naming(contender.name):
        return named(contender.begin(contest, seed, strength), row)


def reduce_learnt(contender: Learnt, contest: Contest, finished: Done, budget: int) -> Make:
    """Return what brings a network that learnt its widths to a budget."""
    return partial(_reduce_learnt, contender, contest, finished, budget)


def reduce_in_round(
    contender: Learnt | Pruned, contest: Contest, finished: Done, budget: int, number: int
) -> Make:
    """Return what brings a network nearer to its budget in one of several rounds."""
    if isinstance(contender, Pruned):
        reduce = contender.reduce
    elif number == 0 or contender.again is None:
        return reduce_learnt(contender, contest, finished, budget)
    else:
        reduce = contender.again
    return partial(_reduce, contender.name, reduce, contest, finished, budget)


def _reduce_learnt(contender: Learnt, contest: Contest, finished: Done, budget: int) -> nn.Module:
    with naming(contender.name):
        return contender.reduce(contest, finished.load_model(), budget)


def _reduce(
    method: str, reduce: Reduce, contest: Contest, finished: Done, budget: int
) -> nn.Module:
    with naming(method):
        return reduce(finished.load_model(), contest.example(), budget)
