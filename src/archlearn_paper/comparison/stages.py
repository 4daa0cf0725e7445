"""Stages of the comparison: train, compress to the budget, fine-tune; all methods alike.

Every method has the same number of epochs in total: two fifths before its network is brought to
the budget, three fifths after. Those that begin with a small network have all of them for that.
Strengths are chosen on validation data of another seed, and what that took is counted apart. The
first methods at each budget then have more seeds.
"""

import os
import signal
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn

from archlearn.errors import InputError
from archlearn.serialization import load, save
from archlearn_paper.baselines.budget import BudgetError
from archlearn_paper.comparison.methods import (
    CALIBRATION_SEED,
    L0,
    OURS,
    SCRATCH,
    ComparisonSetup,
    Method,
    Reduce,
    choose_strength,
    count_l0_left,
    name_first,
    name_trial,
)
from archlearn_paper.comparison.ranking import LARGE, UNTUNED, name_result
from archlearn_paper.experiment import (
    FinishedRun,
    Run,
    Scale,
    Stage,
    group,
    spread_of,
)
from archlearn_paper.recipes import reinitialise

N_FIRST = 3
"""Methods that have more seeds at a budget: those of the highest means."""
LATER_SEEDS = (5, 6, 7, 8, 9)
MOST_WORKERS, LEFT_ALONE = 14, 2
"""Processes that make networks, and processors that are left to the one that asks."""
Make = Callable[[], nn.Module]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A method that goes for a budget with a seed; a trial, where its strength is to be chosen."""

    method: Method
    budget: int
    seed: int
    strength: float
    is_trial: bool = False

    @property
    def row(self) -> str:
        """Return the row of its last run."""
        if self.is_trial:
            return name_trial(self.method, self.strength, self.budget)
        return name_result(self.method.name, self.budget)


@dataclass(frozen=True, slots=True)
class Step:
    """One run of an attempt.

    Attributes:
        make: Makes the network that it starts from; None where that is a fresh one.
        in_worker: Whether another process may make it. A penalty is not saved with its network.
    """

    run: Run
    make: Make | None = None
    in_worker: bool = True


def list_steps(setup: ComparisonSetup, attempt: Attempt) -> Generator[Step, FinishedRun]:
    """Yield the runs of an attempt; each is sent back when it has finished."""
    method, seed = attempt.method, attempt.seed
    if method.reduce is None:
        if method.begin is None:
            settings = setup.to_budget(seed, attempt.budget, attempt.strength)
            yield Step(Run(row=attempt.row, settings=settings, finish_compact=True))
        else:
            run = Run(row=attempt.row, settings=setup.plain(seed, setup.scale.epochs))
            yield Step(run, partial(method.begin, setup, seed, attempt.budget))
        return
    settings = setup.plain(seed, setup.first_epochs)
    if method.begin is None:
        finished = yield Step(Run(row=LARGE, settings=settings))
    else:
        make = partial(_make, method.name, method.begin, setup, seed, attempt.strength)
        run = Run(row=name_first(method, attempt.strength), settings=settings)
        finished = yield Step(run, make, in_worker=False)
    n_rounds = 1 if attempt.is_trial else min(method.rounds, setup.last_epochs)
    # Rounds share the epochs evenly.
    ends = [setup.last_epochs * done // n_rounds for done in range(n_rounds + 1)]
    for number in range(n_rounds):
        reduce = method.again if number and method.again else method.reduce
        # The network of a first part that learns has more numbers than the large one.
        whole = finished.row.parameters
        target = round(whole * (attempt.budget / whole) ** (1 / (n_rounds - number)))
        factor = attempt.strength if method.is_pruning else 1.0
        settings = setup.plain(seed, ends[number + 1] - ends[number], factor)
        row = attempt.row if number == n_rounds - 1 else f"{attempt.row}, round {number + 1}"
        make = partial(_make, method.name, _reduce, reduce, setup, finished, target)
        finished = yield Step(Run(row=row, settings=settings), make)


def _reduce(
    reduce: Reduce, setup: ComparisonSetup, finished: FinishedRun, budget: int
) -> nn.Module:
    return reduce(setup, finished.load_model(), budget)


def _make(method: str, function: Callable[..., nn.Module], *arguments: object) -> nn.Module:
    """Call what makes a network; say which method it is that cannot be used with it.

    A budget out of reach is another matter, and passes as it is.
    """
    try:
        return function(*arguments)
    except BudgetError:
        raise
    except InputError as error:
        raise InputError(
            f"{method} cannot be used with this network: {error}; or name the others with --methods"
        ) from error


def find_step(
    setup: ComparisonSetup, attempt: Attempt, done: Mapping[tuple[str, int], FinishedRun], n: int
) -> Step | None:
    """Return the run of an attempt behind `n` others; None if there is none, or one is missing."""
    steps = list_steps(setup, attempt)
    try:
        step = next(steps)
        for _ in range(n):
            finished = done.get((step.run.row, attempt.seed))
            if finished is None:
                return None
            step = steps.send(finished)
    except StopIteration:
        return None
    return step


def start_runs(steps: Sequence[Step]) -> list[Run]:
    """Return the runs with their networks; one that cannot reach its budget is left out."""
    made = iter(make_networks([step.make for step in steps if step.make and step.in_worker]))
    runs: list[Run] = []
    for step in steps:
        network = None
        if step.make is not None:
            network = next(made) if step.in_worker else step.make()
            if network is None:
                continue
        runs.append(replace(step.run, network=network))
    return runs


def make_networks(makes: Sequence[Make], n_workers: int | None = None) -> list[nn.Module | None]:
    """Return the network that each function makes, or None where a budget cannot be reached.

    They are made on the CPU, in processes where there are processors to spare, so that a GPU need
    not wait for long; below 2 workers, in this one.
    """
    if n_workers is None:
        n_workers = min(MOST_WORKERS, (os.cpu_count() or 1) - LEFT_ALONE)
    n_workers = min(n_workers, len(makes))
    with tempfile.TemporaryDirectory() as folder:
        tasks = [(make, Path(folder) / f"{place}.safetensors") for place, make in enumerate(makes)]
        if n_workers < 2:
            made = [_make_file(task) for task in tasks]
        else:
            # Not forked: a copy of a process that uses a GPU, or has threads, may hang.
            with ProcessPoolExecutor(n_workers, get_context("spawn"), _use_one_cpu) as pool:
                made = list(pool.map(_make_file, tasks))
        return [load(path) if there else None for (_, path), there in zip(tasks, made, strict=True)]


def _make_file(task: tuple[Make, Path]) -> bool:
    """Write the network that a function makes; return whether there is one."""
    make, path = task
    try:
        save(make(), path)
    except BudgetError:
        return False
    return True


def _use_one_cpu() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # Ctrl-C reaches workers, too; they leave without a word.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(1)


class ComparisonStages:
    """Turns methods into stages of runs."""

    def __init__(self, model: str, budgets: tuple[int, ...], methods: Sequence[Method]) -> None:
        self._model, self._budgets, self._methods = model, budgets, methods
        self._l0_rows = [name_first(m, s) for m in methods if m.name == L0 for s in m.strengths]

    def stages(self) -> tuple[Stage, ...]:
        """Return all stages, each from a scale and what is done so far."""
        numbers = range(1 + max(each.rounds for each in self._methods))
        return (
            *(partial(self._try_strengths, number=number) for number in (0, 1)),
            *(partial(self._compare, number=number) for number in numbers),
            *(partial(self._repeat, number=number) for number in numbers),
            self._from_scratch,
        )

    def _setup(self, scale: Scale) -> ComparisonSetup:
        return ComparisonSetup(model=self._model, budgets=self._budgets, scale=scale)

    def measure(self, scale: Scale, done: FinishedRun) -> dict[str, Any]:
        """Return how large a network L0 leaves at a strength that was tried."""
        row = done.row
        if row.seed != CALIBRATION_SEED or row.row not in self._l0_rows:
            return {}
        return {"left": count_l0_left(self._setup(scale), done.load_model())}

    def _try_strengths(
        self, scale: Scale, done: Sequence[FinishedRun], *, number: int
    ) -> list[Run]:
        """Return runs at every strength and budget, on the calibration seed."""
        setup = self._setup(scale).calibration()
        attempts = [
            Attempt(each, budget, CALIBRATION_SEED, strength, is_trial=True)
            for each in self._methods
            for strength in setup.scale.pick(each.strengths)
            for budget in self._budgets
        ]
        return self._advance(setup, attempts, done, number)

    def _compare(self, scale: Scale, done: Sequence[FinishedRun], *, number: int) -> list[Run]:
        """Return runs of all methods at the strengths that were best, for all seeds."""
        setup, rows = self._setup(scale), [finished.row for finished in done]
        attempts = [
            Attempt(each, budget, seed, choose_strength(each, budget, rows))
            for seed in scale.seeds
            for each in self._methods
            for budget in self._budgets
        ]
        return self._advance(setup, attempts, done, number)

    def _repeat(self, scale: Scale, done: Sequence[FinishedRun], *, number: int) -> list[Run]:
        """Return runs of the first methods at each budget, with more seeds; none if quick."""
        if scale.points is not None:
            return []
        setup, rows = self._setup(scale), [finished.row for finished in done]
        counted = [finished for finished in done if finished.row.seed in scale.seeds]
        attempts = [
            Attempt(each, budget, seed, choose_strength(each, budget, rows))
            for budget in self._budgets
            for each in self._find_first(budget, counted)
            for seed in LATER_SEEDS
        ]
        return self._advance(setup, attempts, done, number)

    def _advance(
        self,
        setup: ComparisonSetup,
        attempts: Sequence[Attempt],
        done: Sequence[FinishedRun],
        number: int,
    ) -> list[Run]:
        """Return the runs of attempts behind so many others, each once.

        Those of equal length are next to each other: side by side, none waits for another.
        """
        known = {(finished.row.row, finished.row.seed): finished for finished in done}
        found = [find_step(setup, attempt, known, number) for attempt in attempts]
        steps = {(step.run.row, step.run.settings.seed): step for step in found if step}
        runs = start_runs(list(steps.values()))
        return sorted(
            [*runs, *self._untuned(setup, runs)], key=lambda work: work.settings.epochs or 0
        )

    def _untuned(self, setup: ComparisonSetup, runs: Sequence[Run]) -> list[Run]:
        """Return the networks of SVD as they are before they are trained on."""
        rows = {
            name_result("svd", budget): name_result(UNTUNED, budget) for budget in self._budgets
        }
        return [
            Run(
                row=rows[run.row],
                settings=setup.plain(run.settings.seed, 1),
                network=run.network,
                is_trained=False,
            )
            for run in runs
            if run.row in rows and run.network is not None
        ]

    def _find_first(self, budget: int, done: Sequence[FinishedRun]) -> list[Method]:
        """Return the methods of the highest means at a budget."""
        groups = group([finished.row for finished in done])
        means = {
            each.name: spread_of(groups[row], lambda found: found.accuracy)["mean"]
            for each in self._methods
            if (row := name_result(each.name, budget)) in groups
        }
        names = sorted(means, key=lambda name: -means[name])[:N_FIRST]
        return [each for each in self._methods if each.name in names]

    def _from_scratch(self, scale: Scale, done: Sequence[FinishedRun]) -> list[Run]:
        """Return the architectures that ours learnt, with fresh weights."""
        setup, works = self._setup(scale), list[Run]()
        rows = {name_result(OURS, budget): budget for budget in self._budgets}
        for finished in done:
            budget, seed = rows.get(finished.row.row), finished.row.seed
            if budget is not None and seed in scale.seeds:
                network = reinitialise(finished.load_model(), seed)
                settings = setup.plain(seed, scale.epochs)
                row = name_result(SCRATCH, budget)
                works.append(Run(row=row, settings=settings, network=network))
        return works
