"""A run may wait for its network, which is made from one that is trained already."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import nn

from archlearn.experiments.contenders import Learnt, Pruned
from archlearn.experiments.contests import Contest
from archlearn.experiments.definitions import Done
from archlearn.experiments.helping import Make, make_networks
from archlearn.training.settings import RunSettings
from archlearn.training.teams import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Pending:
    """A run whose network is still to be made."""

    row: str
    settings: RunSettings
    make: Make


def start_runs(pending: Sequence[Pending]) -> list[Run]:
    """Return the runs with their networks; one that cannot reach its budget is left out."""
    networks = make_networks([each.make for each in pending])
    return [
        Run(row=each.row, settings=each.settings, network=network)
        for each, network in zip(pending, networks, strict=True)
        if network is not None
    ]


def reduce_learnt(contender: Learnt, contest: Contest, finished: Done, budget: int) -> Make:
    """Return what brings a network that learnt its widths to a budget."""
    return partial(_reduce_learnt, contender, contest, finished, budget)


def reduce_pruned(contender: Pruned, contest: Contest, finished: Done, budget: int) -> Make:
    """Return what prunes a trained network to a budget."""
    return partial(_reduce_pruned, contender, contest, finished, budget)


def _reduce_learnt(contender: Learnt, contest: Contest, finished: Done, budget: int) -> nn.Module:
    return contender.reduce(contest, finished.load_model(), budget)


def _reduce_pruned(contender: Pruned, contest: Contest, finished: Done, budget: int) -> nn.Module:
    return contender.reduce(finished.load_model(), contest.example(), budget)
