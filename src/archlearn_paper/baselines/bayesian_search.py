"""Bayesian optimisation of widths: a Gaussian process proposes which network to train next.

The objective is the paper's, loss + lambda x neurons (equation 1), and every evaluation of it is a
whole training. Optuna's GPSampler does what Spearmint did: a Matern-5/2 kernel with a length for
each width, and expected improvement.
"""

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from archlearn.errors import InputError

N_TRAININGS = 20
"""As many as the paper made."""
N_RANDOM = 5
"""Trainings of random widths, before the process has anything to go by."""


def import_optuna() -> Any:
    """Return the package, or say how to get it."""
    try:
        import optuna
    except ImportError as error:
        raise InputError(
            "Bayesian optimisation needs optuna, which is not installed; "
            "pip install 'archlearn[bench]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """The widths that are searched, by their logarithms, and those that stay.

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
    """One Optuna study: widths are proposed from what is known so far."""

    def __init__(self, space: Space, *, seed: int) -> None:
        """Open a study in memory: what was trained before is added to it.

        Args:
            space: What is searched.
            seed: Of the sampler.
        """
        self._optuna = import_optuna()
        self._space, self._seed = space, seed
        self._study = self._optuna.create_study(direction="minimize")

    def add(self, training: Training) -> None:
        """Take note of a training that was proposed elsewhere."""
        distributions = self._optuna.distributions
        trial = self._optuna.trial.create_trial(
            params={name: training.widths[name] for name in self._space.most},
            distributions={
                name: distributions.IntDistribution(1, most, log=True)
                for name, most in self._space.most.items()
            },
            value=training.objective,
        )
        self._study.add_trial(trial)

    def propose(self) -> Proposal:
        """Return widths to train next. They follow from the seed and what is known so far."""
        started = time.perf_counter()
        # Seeded anew for each training, so that a study that is gone on with does not repeat
        # itself.
        state = self._optuna.trial.TrialState
        number = len(self._study.get_trials(deepcopy=False, states=(state.COMPLETE,)))
        self._study.sampler = self._optuna.samplers.GPSampler(
            seed=1009 * self._seed + number, n_startup_trials=N_RANDOM
        )
        trial = self._study.ask()
        searched = {
            name: trial.suggest_int(name, 1, most, log=True)
            for name, most in self._space.most.items()
        }
        seconds = time.perf_counter() - started
        # What came of it is added as a training, so the study need not wait for this one.
        self._study.tell(trial, state=state.FAIL)
        return Proposal(number=number, widths={**self._space.fixed, **searched}, seconds=seconds)


@functools.cache
def warm_up() -> None:
    """Make a proposal for nothing, once: what it takes to load the parts is no time of a search."""
    search = Search(Space(most={"a": 2 * N_RANDOM}, fixed={}), seed=0)
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
