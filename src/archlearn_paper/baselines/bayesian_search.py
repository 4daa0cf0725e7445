"""Bayesian optimisation of widths: a Gaussian process proposes which network to train next.

The objective is the paper's, loss + lambda x neurons (equation 1), and every evaluation of it is a
whole training. Optuna's GPSampler does what Spearmint did: a Matern-5/2 kernel with a length for
each width, and expected improvement. A study lies in an SQLite file, so that it can be gone on
with, and several workers, on one machine or many, can share it.
"""

import datetime
import functools
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from archlearn.errors import InputError
from archlearn.gating.attach import add_gates
from archlearn.gating.learn import Learn
from archlearn.gating.parameters import width_gates
from archlearn.surgery.compaction import compact
from archlearn_paper.baselines.from_scratch import start_anew

WORKER = "worker"


"""Under this a study holds who trains."""


_N_ATTEMPTS = 8


_SECONDS_BETWEEN = 0.25


_LOCKED_FOR = 60.0


"""Seconds for which a worker waits while another writes."""


class Sampler:
    """Optuna's GPSampler, seeded anew for each training.

    What it draws follows from its seed and the number of the training. So workers that ask at the
    same time do not draw the same, and a study that is gone on with does not repeat itself.
    """

    def __init__(self, seed: int, n_random: int) -> None:
        self._samplers = import_optuna().samplers
        self._seed, self._n_random = seed, n_random
        self._own = self._make(0)

    def before_trial(self, study: Any, trial: Any) -> None:
        """Take note of the training that is to be proposed, and of who asks; comes first."""
        study._storage.set_trial_user_attr(trial._trial_id, WORKER, name_worker())
        self._own = self._make(trial.number)
        self._own.before_trial(study, trial)

    def __getattr__(self, name: str) -> Any:
        """Leave all else to the sampler itself."""
        return getattr(self._own, name)

    def _make(self, number: int) -> Any:
        mixed = 1009 * self._seed + number
        return self._samplers.GPSampler(seed=mixed, n_startup_trials=self._n_random)


def open_study(name: str, file: Path | None) -> Any:
    """Return a study, from its file if there is one.

    Of workers that start together, one makes the tables of the file, and the others try again.

    Raises:
        InputError: If the file holds something else, or cannot be written.
    """
    optuna = import_optuna()
    if file is None:
        return optuna.create_study(study_name=name, direction="minimize")
    from sqlalchemy.exc import IntegrityError, OperationalError, SQLAlchemyError

    for attempt in range(1, _N_ATTEMPTS + 1):
        try:
            return _open(optuna, name, file)
        except (IntegrityError, OperationalError) as error:
            if attempt == _N_ATTEMPTS:
                raise _refuse(file, error) from error
            time.sleep(_SECONDS_BETWEEN)
        except (SQLAlchemyError, OSError) as error:
            raise _refuse(file, error) from error
    raise AssertionError


def _open(optuna: Any, name: str, file: Path) -> Any:
    file.parent.mkdir(parents=True, exist_ok=True)
    storage = optuna.storages.RDBStorage(
        f"sqlite:///{file}", engine_kwargs={"connect_args": {"timeout": _LOCKED_FOR}}
    )
    return optuna.create_study(
        study_name=name, storage=storage, direction="minimize", load_if_exists=True
    )


def _refuse(file: Path, error: Exception) -> InputError:
    what = str(error).partition("\n")[0]
    return InputError(f"{file} cannot be used for a study: {what}; name another file")


def name_worker() -> str:
    """Return the machine and the number of this process."""
    return f"{socket.gethostname()} {os.getpid()}"


def is_gone(worker: str) -> bool:
    """Return whether a worker has ended, as far as can be told: of other machines it cannot."""
    host, _, number = worker.rpartition(" ")
    if host != socket.gethostname() or sys.platform == "win32":
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


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


def find_widths(model: nn.Module, example: Tensor) -> dict[str, int]:
    """Return the widths that can be chosen, by layer.

    Channels that can only go together, as those of a convolution in groups, count as one.
    """
    return {name: len(gate) for name, gate in width_gates(_gate(model, example)).items()}


def start_at_widths(
    model: nn.Module, example: Tensor, widths: Mapping[str, int], seed: int
) -> nn.Module:
    """Return a fresh network like a model, but with these widths; layers left out stay as wide.

    Args:
        model: Any model; it is left alone.
        example: Inputs of one call.
        widths: From 1 to what the layer has.
        seed: Decides the weights.

    Raises:
        InputError: If a layer has no width to choose, or fewer channels than are asked for.
    """
    gated = _gate(model, example)
    gates = width_gates(gated)
    for name, width in widths.items():
        if name not in gates or not 1 <= width <= len(gates[name]):
            there = ", ".join(f"{key} (1 to {len(gate)})" for key, gate in gates.items())
            raise InputError(f"width {width} was asked for {name!r}; widths to choose: {there}")
    with torch.no_grad():
        for name, width in widths.items():
            gates[name][width:] = 0.0
    return start_anew(compact(gated), seed)


def _gate(model: nn.Module, example: Tensor) -> nn.Module:
    return add_gates(model, example, learn={"*": Learn.WIDTH}, width_start=1.0).eval()
