"""Stages of the comparison: train, compress to the budget, fine-tune; all methods alike.

Every method has the same number of epochs in total: two fifths before its network is brought to
the budget, three fifths after. Those that begin with a small network have all of them for that.
Strengths are chosen on validation data of another seed, and what that took is counted apart. The
first methods at each budget then have more seeds.
"""

import os
import signal
import tempfile
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
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
    BudgetMethod,
    ComparisonSetup,
    FromScratchMethod,
    LearningMethod,
    Method,
    PruningMethod,
    Reduce,
    choose_strength,
    count_l0_left,
    name_first,
    name_trial,
)
from archlearn_paper.comparison.ranking import LARGE, UNTUNED, name_result
from archlearn_paper.experiment import (
    Evaluation,
    FinishedRun,
    Run,
    RunTask,
    Scale,
    Stage,
    group,
    spread_of,
)
from archlearn_paper.recipes import start_anew

N_FIRST = 3
"""Methods that have more seeds at a budget: those of the highest means."""
LATER_SEEDS = (5, 6, 7, 8, 9)
MOST_WORKERS, LEFT_ALONE = 14, 2
"""Processes that make networks, and processors that are left to the one that asks."""
Make = Callable[[], nn.Module]
Pending = tuple[Run, Make]
"""A run, and what makes the network that it starts from."""


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
    networks = make_networks([make for _, make in pending])
    return [
        replace(run, network=network)
        for (run, _), network in zip(pending, networks, strict=True)
        if network is not None
    ]


def make_networks(makes: Sequence[Make], n_workers: int | None = None) -> list[nn.Module | None]:
    """Return the network that each function makes, or None where a budget cannot be reached.

    They are made on the CPU, in processes where there are processors to spare, so that a GPU need
    not wait for long.

    Args:
        makes: Functions that can be pickled, with all that they hold.
        n_workers: How many processes; None chooses, and below 2 stays in this one.
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


def _reduce(
    method: str, reduce: Reduce, setup: ComparisonSetup, finished: FinishedRun, budget: int
) -> nn.Module:
    with naming(method):
        return reduce(setup, finished.load_model(), budget)


class ComparisonStages:
    """Turns methods into stages of runs."""

    def __init__(self, model: str, budgets: tuple[int, ...], methods: Sequence[Method]) -> None:
        self._model, self._budgets, self._methods = model, budgets, methods
        self._l0_rows = [name_first(m, s) for m in methods if m.name == L0 for s in m.strengths]

    def stages(self) -> tuple[Stage, ...]:
        """Return all stages, each from a scale and what is done so far."""
        once = [ComparisonStages.begin, *(partial(_prune, number=n) for n in range(self._rounds()))]
        more = [partial(self._repeat, stage) for stage in once]
        first = [partial(stage, self) for stage in once]
        return (self._begin_trials, self._end_trials, *first, *more, self._from_scratch)

    def _rounds(self) -> int:
        return max([each.rounds for each in self._in_rounds()], default=1)

    def _setup(self, scale: Scale) -> ComparisonSetup:
        return ComparisonSetup(model=self._model, budgets=self._budgets, scale=scale)

    def measure(self, scale: Scale, done: FinishedRun) -> dict[str, Any]:
        """Return how large a network L0 leaves at a strength that was tried."""
        row = done.row
        if row.seed != CALIBRATION_SEED or row.row not in self._l0_rows:
            return {}
        return {"left": count_l0_left(self._setup(scale), done.load_model())}

    def _in_rounds(self) -> list[LearningMethod | PruningMethod]:
        return [m for m in self._methods if isinstance(m, LearningMethod | PruningMethod)]

    def _begin_trials(self, scale: Scale, done: Sequence[FinishedRun]) -> list[RunTask]:
        """Return, on the calibration seed, whole runs to budgets and all first parts."""
        del done
        setup, works = self._setup(scale).calibration(), list[RunTask]()
        for each in self._methods:
            for strength in setup.scale.pick(each.strengths):
                if isinstance(each, LearningMethod):
                    works.append(_first(setup, each, CALIBRATION_SEED, strength))
                if isinstance(each, BudgetMethod):
                    works += [
                        _land(setup, CALIBRATION_SEED, b, strength, name_trial(each, strength, b))
                        for b in self._budgets
                    ]
        if any(isinstance(each, PruningMethod) and each.strengths for each in self._methods):
            works.append(_large(setup, CALIBRATION_SEED))
        return _by_length(works)

    def _end_trials(self, scale: Scale, done: Sequence[FinishedRun]) -> list[RunTask]:
        """Return the last parts on the calibration seed, at every strength and budget."""
        setup, pending = self._setup(scale).calibration(), list[Pending]()
        first = {d.row.row: d for d in done if d.row.seed == CALIBRATION_SEED}
        for each in self._in_rounds():
            for strength in setup.scale.pick(each.strengths):
                pruned = isinstance(each, PruningMethod)
                finished = first[LARGE if pruned else name_first(each, strength)]
                factor = strength if pruned else 1.0
                settings = setup.plain(CALIBRATION_SEED, setup.last_epochs, factor)
                pending += [
                    (
                        Run(row=name_trial(each, strength, budget), settings=settings),
                        partial(_reduce, each.name, each.reduce, setup, finished, budget),
                    )
                    for budget in self._budgets
                ]
        return list(start_runs(pending))

    def begin(self, scale: Scale, done: Sequence[FinishedRun]) -> list[RunTask]:
        """Return large networks, first parts, runs to budgets and fresh networks."""
        setup, rows = self._setup(scale), [finished.row for finished in done]
        works: list[RunTask] = []
        for seed in scale.seeds:
            if any(isinstance(each, PruningMethod) for each in self._methods):
                works.append(_large(setup, seed))
            for each in self._methods:
                chosen = {b: choose_strength(each, b, rows) for b in self._budgets}
                if isinstance(each, LearningMethod):
                    works += [_first(setup, each, seed, s) for s in sorted(set(chosen.values()))]
                if isinstance(each, BudgetMethod):
                    works += [
                        _land(setup, seed, budget, strength, name_result(each.name, budget))
                        for budget, strength in chosen.items()
                    ]
        return _by_length(works + self._fresh(setup))

    def _fresh(self, setup: ComparisonSetup) -> list[RunTask]:
        pending: list[Pending] = [
            (
                Run(
                    row=name_result(each.name, budget),
                    settings=setup.plain(seed, setup.scale.epochs),
                ),
                partial(each.begin, setup, seed, budget),
            )
            for each in self._methods
            if isinstance(each, FromScratchMethod)
            for seed in setup.scale.seeds
            for budget in self._budgets
        ]
        return list(start_runs(pending))

    def prune(self, scale: Scale, done: Sequence[FinishedRun], number: int) -> list[RunTask]:
        """Return a round: networks brought to their budgets, or nearer, and trained on."""
        setup, rows = self._setup(scale), [finished.row for finished in done]
        made = {(d.row.row, d.row.seed): d for d in done}
        pending: list[Pending] = []
        for each in self._in_rounds():
            for budget in self._budgets if number < _count_rounds(setup, each) else ():
                strength = choose_strength(each, budget, rows)
                start = LARGE if isinstance(each, PruningMethod) else name_first(each, strength)
                before = start if number == 0 else _name_round(setup, each, budget, number - 1)
                pending += [
                    _round(setup, each, made[before, seed], budget, number, strength)
                    for seed in scale.seeds
                    if (before, seed) in made
                ]
        runs = start_runs(pending)
        return _by_length([*runs, *self._untuned(setup, runs)])

    def _untuned(self, setup: ComparisonSetup, runs: Sequence[Run]) -> list[RunTask]:
        """Return the networks of SVD as they are before they are trained on."""
        rows = {
            name_result("svd", budget): name_result(UNTUNED, budget) for budget in self._budgets
        }
        return [
            Evaluation(
                row=rows[run.row], settings=setup.plain(run.settings.seed, 1), network=run.network
            )
            for run in runs
            if run.row in rows and run.network is not None
        ]

    def _repeat(
        self,
        stage: Callable[["ComparisonStages", Scale, Sequence[FinishedRun]], list[RunTask]],
        scale: Scale,
        done: Sequence[FinishedRun],
    ) -> list[RunTask]:
        """Return a stage of the first methods at each budget, with more seeds; none if quick."""
        if scale.points is not None:
            return []
        later, works = replace(scale, seeds=LATER_SEEDS), dict[tuple[str, int], RunTask]()
        for budget in self._budgets:
            first = self._find_first(budget, [d for d in done if d.row.seed in scale.seeds])
            part = ComparisonStages(self._model, (budget,), first)
            for work in stage(part, later, done):
                works[work.row, work.settings.seed] = work
        return _by_length(list(works.values()))

    def _find_first(self, budget: int, done: Sequence[FinishedRun]) -> list[Method]:
        """Return the methods of the highest means at a budget."""
        groups = group([finished.row for finished in done])
        means = {
            each.name: spread_of(groups[row], lambda found: found.accuracy).mean
            for each in self._methods
            if (row := name_result(each.name, budget)) in groups
        }
        names = sorted(means, key=lambda name: -means[name])[:N_FIRST]
        return [each for each in self._methods if each.name in names]

    def _from_scratch(self, scale: Scale, done: Sequence[FinishedRun]) -> list[RunTask]:
        """Return the architectures that ours learnt, with fresh weights."""
        setup, works = self._setup(scale), list[RunTask]()
        rows = {name_result(OURS, budget): budget for budget in self._budgets}
        for finished in done:
            budget, seed = rows.get(finished.row.row), finished.row.seed
            if budget is not None and seed in scale.seeds:
                network = start_anew(finished.load_model(), seed)
                settings = setup.plain(seed, scale.epochs)
                row = name_result(SCRATCH, budget)
                works.append(Run(row=row, settings=settings, network=network))
        return works


def _prune(
    stages: ComparisonStages, scale: Scale, done: Sequence[FinishedRun], *, number: int
) -> list[RunTask]:
    return stages.prune(scale, done, number)


def _by_length(works: list[RunTask]) -> list[RunTask]:
    """Return runs of equal length next to each other: side by side, none waits for another."""
    return sorted(works, key=lambda work: work.settings.epochs or 0)


def _large(setup: ComparisonSetup, seed: int) -> Run:
    return Run(row=LARGE, settings=setup.plain(seed, setup.first_epochs))


def _first(setup: ComparisonSetup, each: LearningMethod, seed: int, strength: float) -> Run:
    with naming(each.name):
        network = each.begin(setup, seed, strength)
    settings = setup.plain(seed, setup.first_epochs)
    return Run(row=name_first(each, strength), settings=settings, network=network)


def _land(setup: ComparisonSetup, seed: int, budget: int, strength: float, row: str) -> Run:
    settings = setup.to_budget(seed, budget, strength)
    return Run(row=row, settings=settings, finish_compact=True)


def _round(
    setup: ComparisonSetup,
    each: LearningMethod | PruningMethod,
    finished: FinishedRun,
    budget: int,
    number: int,
    strength: float,
) -> Pending:
    """Return the training that follows one round of pruning; rounds share the epochs evenly."""
    rounds = _count_rounds(setup, each)
    ends = [setup.last_epochs * done // rounds for done in (number, number + 1)]
    if isinstance(each, PruningMethod):
        reduce, factor = each.reduce, strength
    else:
        reduce, factor = (each.again if number and each.again else each.reduce), 1.0
    # The network of a first part that learns has more numbers than the large one.
    whole = finished.row.parameters
    target = round(whole * (budget / whole) ** (1 / (rounds - number)))
    settings = setup.plain(finished.row.seed, ends[1] - ends[0], factor)
    run = Run(row=_name_round(setup, each, budget, number), settings=settings)
    return run, partial(_reduce, each.name, reduce, setup, finished, target)


def _count_rounds(setup: ComparisonSetup, each: LearningMethod | PruningMethod) -> int:
    """Return in how many rounds a method prunes: each has an epoch at least."""
    return min(each.rounds, setup.last_epochs)


def _name_round(
    setup: ComparisonSetup, each: LearningMethod | PruningMethod, budget: int, number: int
) -> str:
    """Return the row of a round; the last one is the result."""
    row = name_result(each.name, budget)
    last = number == _count_rounds(setup, each) - 1
    return row if last else f"{row}, round {number + 1}"
