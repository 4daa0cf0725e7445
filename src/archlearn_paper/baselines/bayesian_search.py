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
    """Widths of all layers to train next, and how long it took to find them."""

    widths: dict[str, int]
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A proposal that was trained, and what it came to."""

    widths: dict[str, int]
    objective: float
    search_seconds: float = 0.0
    train_seconds: float = 0.0


def propose_widths(space: Space, trainings: Sequence[Training], *, seed: int) -> Proposal:
    """Return widths to train next. They follow from the seed and what was trained before."""
    optuna = import_optuna()
    study = optuna.create_study(direction="minimize")
    distributions = {
        name: optuna.distributions.IntDistribution(1, most, log=True)
        for name, most in space.most.items()
    }
    for training in trainings:
        params = {name: training.widths[name] for name in space.most}
        trial = optuna.trial.create_trial(
            params=params, distributions=distributions, value=training.objective
        )
        study.add_trial(trial)
    started = time.perf_counter()
    # Seeded anew for each training, so that a study that is gone on with does not repeat itself.
    study.sampler = optuna.samplers.GPSampler(
        seed=1009 * seed + len(trainings), n_startup_trials=N_RANDOM
    )
    searched = study.ask(distributions).params
    seconds = time.perf_counter() - started
    return Proposal(widths={**space.fixed, **searched}, seconds=seconds)


@functools.cache
def warm_up() -> None:
    """Make a proposal for nothing, once: what it takes to load the parts is no time of a search."""
    space = Space(most={"a": 2 * N_RANDOM}, fixed={})
    trainings = [Training(widths={"a": n + 1}, objective=float(n)) for n in range(N_RANDOM)]
    propose_widths(space, trainings, seed=0)


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
