"""Bayesian optimisation of widths: a Gaussian process proposes which network to train next.

The objective is the paper's, loss + lambda x neurons (equation 1), and every evaluation of it is a
whole training. Optuna's GPSampler does what Spearmint did: a Matern-5/2 kernel with a length for
each width, and expected improvement. A study lies in an SQLite file, so that it can be gone on
with, and several workers, on one machine or many, can share it.
"""

import datetime
import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from archlearn_paper.baselines.optuna_studies import (
    WORKER,
    Sampler,
    import_optuna,
    is_gone,
    open_study,
)

N_TRAININGS = 20
"""As many as the paper made."""
N_RANDOM = 5
"""Trainings of random widths, before the process has anything to go by."""
_ABANDONED_AFTER = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """The widths that are searched, and those that stay.

    Attributes:
        most: The largest width of each layer that is searched; the smallest is 1.
        fixed: The widths of all other layers.
    """

    most: Mapping[str, int]
    fixed: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """Widths to train next.

    Attributes:
        number: Of the training in its study, from 0.
        widths: Of all layers, the fixed ones among them.
        seconds: How long it took to find them.
    """

    number: int
    widths: dict[str, int]
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A proposal that was trained, and what it came to."""

    number: int
    widths: dict[str, int]
    objective: float
    search_seconds: float
    train_seconds: float


class Search:
    """One study: proposals are asked for, and what they came to is told."""

    def __init__(self, name: str, space: Space, *, seed: int, file: Path | None = None) -> None:
        """Open a study, or go on with one.

        Args:
            name: Of the study in its file.
            space: What is searched.
            seed: Of the sampler.
            file: The SQLite file; None keeps the study in memory.
        """
        self._states = import_optuna().trial.TrialState
        self._space = space
        self._study = open_study(name, file)
        self._study.sampler = Sampler(seed, N_RANDOM)

    def add(self, training: Training) -> None:
        """Take note of a training that was proposed elsewhere."""
        optuna = import_optuna()
        IntDistribution = optuna.distributions.IntDistribution  # noqa: N806
        trial = optuna.trial.create_trial(
            params={name: training.widths[name] for name in self._space.most},
            distributions={
                name: IntDistribution(1, most) for name, most in self._space.most.items()
            },
            value=training.objective,
            user_attrs={
                "search_seconds": training.search_seconds,
                "train_seconds": training.train_seconds,
            },
        )
        self._study.add_trial(trial)

    def propose(self) -> Proposal:
        """Return widths to train next. They follow from the seed and what is known so far."""
        started = time.perf_counter()
        trial = self._study.ask()
        searched = {
            name: trial.suggest_int(name, 1, most) for name, most in self._space.most.items()
        }
        seconds = time.perf_counter() - started
        trial.set_user_attr("search_seconds", seconds)
        return Proposal(
            number=trial.number, widths={**self._space.fixed, **searched}, seconds=seconds
        )

    def tell(self, proposal: Proposal, objective: float, train_seconds: float) -> None:
        """Take note of what a proposal came to."""
        trial = self._study.trials[proposal.number]
        self._study._storage.set_trial_user_attr(trial._trial_id, "train_seconds", train_seconds)
        self._study.tell(proposal.number, objective)

    def give_up(self, proposal: Proposal) -> None:
        """Take note that a proposal came to nothing."""
        self._study.tell(proposal.number, state=self._states.FAIL)

    def history(self) -> list[Training]:
        """Return all finished trainings, in the order in which they were proposed."""
        finished = self._study.get_trials(deepcopy=False, states=(self._states.COMPLETE,))
        return [
            Training(
                number=trial.number,
                widths={
                    **self._space.fixed,
                    **{name: trial.params[name] for name in self._space.most},
                },
                objective=float(trial.value),
                search_seconds=trial.user_attrs["search_seconds"],
                train_seconds=trial.user_attrs["train_seconds"],
            )
            for trial in finished
        ]

    def n_left(self, n_trainings: int = N_TRAININGS) -> int:
        """Return how many of so many trainings are neither finished nor under way."""
        states = (self._states.COMPLETE, self._states.RUNNING)
        return max(0, n_trainings - len(self._study.get_trials(deepcopy=False, states=states)))

    def has_enough_without(self, proposal: Proposal, n_trainings: int) -> bool:
        """Return whether workers that asked before this proposal train as many as are wanted."""
        states = (self._states.COMPLETE, self._states.RUNNING)
        trials = self._study.get_trials(deepcopy=False, states=states)
        return sum(trial.number < proposal.number for trial in trials) >= n_trainings

    def drop_abandoned(self, older_than: float = _ABANDONED_AFTER) -> int:
        """Give up trainings of workers that were killed; return how many.

        Those of another machine are given up so many seconds after they were begun.
        """
        limit = datetime.datetime.now() - datetime.timedelta(seconds=older_than)
        running = self._study.get_trials(deepcopy=False, states=(self._states.RUNNING,))
        abandoned = [
            trial
            for trial in running
            if trial.datetime_start <= limit or is_gone(trial.user_attrs.get(WORKER, ""))
        ]
        for trial in abandoned:
            self._study.tell(trial.number, state=self._states.FAIL)
        return len(abandoned)


@functools.cache
def warm_up() -> None:
    """Make a proposal for nothing, once: what it takes to load the parts is no time of a search."""
    search = Search("warm-up", Space(most={"a": 2 * N_RANDOM}, fixed={}), seed=0)
    for number in range(N_RANDOM):
        search.add(
            Training(
                number=number,
                widths={"a": number + 1},
                objective=float(number),
                search_seconds=0.0,
                train_seconds=0.0,
            )
        )
    search.propose()


def measure_objective(loss: float, n_neurons: int, price: float) -> float:
    """Return what is minimised: the loss, and a price for every neuron (the paper's equation 1)."""
    return loss + price * n_neurons


def best_so_far(trainings: Sequence[Training]) -> list[float]:
    """Return the smallest objective after each training."""
    best: list[float] = []
    for training in trainings:
        best.append(min([training.objective, *best[-1:]]))
    return best


def trainings_to_reach(trainings: Sequence[Training], objective: float) -> int | None:
    """Return how many trainings it took to be as good as an objective; None if never."""
    for count, best in enumerate(best_so_far(trainings), start=1):
        if best <= objective:
            return count
    return None
