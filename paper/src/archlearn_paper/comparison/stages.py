"""Stages of the comparison: train, compress to the budget, fine-tune; all methods alike.

Every method has the same number of epochs in total: two fifths before its network is brought to
the budget, three fifths after. Those that begin with a small network have all of them for that.
Strengths are chosen on validation data of another seed, and what that took is counted apart. The
first methods at each budget then have more seeds.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from archlearn.errors import InputError
from archlearn_paper import statistics
from archlearn_paper.baselines.parameter_budget import BudgetError, ParameterCounts, gate_widths
from archlearn_paper.comparison import methods
from archlearn_paper.comparison.ranking import LARGE, UNTUNED, name_result
from archlearn_paper.evaluation import widths_of
from archlearn_paper.experiment import FinishedRun, Origin, Run, Scale, Stage
from archlearn_paper.recipes import reinitialise

N_FIRST = 3
"""Methods that have more seeds at a budget: those of the highest means."""
LATER_SEEDS = (5, 6, 7, 8, 9)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A method that goes for a budget with a seed; a trial, where its strength is to be chosen."""

    method: methods.Method
    budget: int
    seed: int
    strength: float
    is_trial: bool = False

    @property
    def row(self) -> str:
        """Return the row of its last run."""
        if self.is_trial:
            return methods.name_trial(self.method, self.strength, self.budget)
        return name_result(self.method.name, self.budget)


def list_runs(setup: methods.ComparisonSetup, attempt: Attempt) -> Generator[Run, FinishedRun]:
    """Yield the runs of an attempt; each is sent back when it has finished."""
    method, seed = attempt.method, attempt.seed
    if method.reduce is None:
        if method.begin is None:
            settings = setup.to_budget(seed, attempt.budget, attempt.strength)
            yield Run(row=attempt.row, settings=settings, finish_compact=True)
        else:
            make = partial(method.begin, setup, seed, attempt.budget)
            origin = Origin(make=make, in_worker=True)
            settings = setup.plain(seed, setup.scale.epochs)
            yield Run(row=attempt.row, settings=settings, origin=origin)
        return
    settings = setup.plain(seed, setup.first_epochs)
    if method.begin is None:
        finished = yield Run(row=LARGE, settings=settings)
    else:
        make = partial(_make, method.name, method.begin, setup, seed, attempt.strength)
        origin = Origin(make=make)
        row = methods.name_first(method, attempt.strength)
        finished = yield Run(row=row, settings=settings, origin=origin)
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
        make = partial(_make, method.name, reduce, setup, target)
        origin = Origin(make=make, parent=finished, in_worker=True)
        finished = yield Run(row=row, settings=settings, origin=origin)


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


def find_run(
    setup: methods.ComparisonSetup,
    attempt: Attempt,
    done: Mapping[tuple[str, int], FinishedRun],
    n: int,
) -> Run | None:
    """Return the run of an attempt behind `n` others; None if there is none, or one is missing."""
    runs = list_runs(setup, attempt)
    try:
        run = next(runs)
        for _ in range(n):
            finished = done.get((run.row, attempt.seed))
            if finished is None:
                return None
            run = runs.send(finished)
    except StopIteration:
        return None
    return run


class ComparisonStages:
    """Turns methods into stages of runs."""

    def __init__(
        self, model: str, budgets: tuple[int, ...], asked: Sequence[methods.Method]
    ) -> None:
        self._model, self._budgets, self._methods = model, budgets, asked
        self._l0_rows = [
            methods.name_first(m, s) for m in asked if m.name == methods.L0 for s in m.strengths
        ]

    def stages(self) -> tuple[Stage, ...]:
        """Return all stages, each from a scale and what is done so far."""
        numbers = range(1 + max(method.rounds for method in self._methods))
        return (
            *(partial(self._try_strengths, number=number) for number in (0, 1)),
            *(partial(self._compare, number=number) for number in numbers),
            *(partial(self._repeat, number=number) for number in numbers),
            self._from_scratch,
        )

    def _setup(self, scale: Scale) -> methods.ComparisonSetup:
        return methods.ComparisonSetup(model=self._model, budgets=self._budgets, scale=scale)

    def measure(self, scale: Scale, done: FinishedRun) -> dict[str, Any]:
        """Return how large a network L0 leaves at a strength that was tried."""
        row = done.row
        if row.seed != methods.CALIBRATION_SEED or row.row not in self._l0_rows:
            return {}
        return {"left": methods.count_l0_left(self._setup(scale), done.load_model())}

    def _try_strengths(
        self, scale: Scale, done: Sequence[FinishedRun], *, number: int
    ) -> list[Run]:
        """Return runs at every strength and budget, on the calibration seed."""
        setup = self._setup(scale).calibration()
        attempts = [
            Attempt(method, budget, methods.CALIBRATION_SEED, strength, is_trial=True)
            for method in self._methods
            for strength in setup.scale.pick(method.strengths)
            for budget in self._budgets
        ]
        return self._advance(setup, attempts, done, number)

    def _compare(self, scale: Scale, done: Sequence[FinishedRun], *, number: int) -> list[Run]:
        """Return runs of all methods at the strengths that were best, for all seeds."""
        setup, rows = self._setup(scale), [finished.row for finished in done]
        attempts = [
            Attempt(method, budget, seed, methods.choose_strength(method, budget, rows))
            for seed in scale.seeds
            for method in self._methods
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
            Attempt(method, budget, seed, methods.choose_strength(method, budget, rows))
            for budget in self._budgets
            for method in self._find_first(budget, counted)
            for seed in LATER_SEEDS
        ]
        return self._advance(setup, attempts, done, number)

    def _advance(
        self,
        setup: methods.ComparisonSetup,
        attempts: Sequence[Attempt],
        done: Sequence[FinishedRun],
        number: int,
    ) -> list[Run]:
        """Return the runs of attempts behind so many others, each once.

        Those of equal length are next to each other: side by side, none waits for another.
        """
        by_key = {(finished.row.row, finished.row.seed): finished for finished in done}
        wanted = [find_run(setup, attempt, by_key, number) for attempt in attempts]
        runs = list({(run.row, run.settings.seed): run for run in wanted if run}.values())
        return sorted(
            [*runs, *self._untuned(setup, runs)], key=lambda work: work.settings.epochs or 0
        )

    def _untuned(self, setup: methods.ComparisonSetup, runs: Sequence[Run]) -> list[Run]:
        """Return the networks of SVD as they are before they are trained on."""
        rows = {
            name_result("svd", budget): name_result(UNTUNED, budget) for budget in self._budgets
        }
        return [
            Run(
                row=rows[run.row],
                settings=setup.plain(run.settings.seed, 1),
                origin=run.origin,
                is_trained=False,
            )
            for run in runs
            if run.row in rows
        ]

    def _find_first(self, budget: int, done: Sequence[FinishedRun]) -> list[methods.Method]:
        """Return the methods of the highest means at a budget."""
        groups = statistics.group([finished.row for finished in done])
        means = {
            method.name: statistics.spread_of(groups[row], lambda result: result.accuracy)["mean"]
            for method in self._methods
            if (row := name_result(method.name, budget)) in groups
        }
        names = sorted(means, key=lambda name: -means[name])[:N_FIRST]
        return [method for method in self._methods if method.name in names]

    def _from_scratch(self, scale: Scale, done: Sequence[FinishedRun]) -> list[Run]:
        """Return the architectures that ours learnt, with fresh weights.

        Where no layer has merged, the widths say all, and no model is needed.
        """
        setup, works = self._setup(scale), list[Run]()
        rows = {name_result(methods.OURS, budget): budget for budget in self._budgets}
        large = setup.fresh_network(0)
        sizes = ParameterCounts(gate_widths(large, setup.example()))
        for finished in done:
            row, seed = finished.row, finished.row.seed
            if row.row not in rows or seed not in scale.seeds:
                continue
            kept = [row.widths.get(group, 0) for group in sizes.groups]
            if row.n_layers == len(widths_of(large)) and sizes.parameters(kept) == row.parameters:
                origin = Origin(make=partial(methods.narrow, setup, seed, kept))
            else:
                make = partial(reinitialise, seed=seed)
                origin = Origin(make=make, parent=finished)
            name, settings = (
                name_result(methods.SCRATCH, rows[row.row]),
                setup.plain(seed, scale.epochs),
            )
            works.append(Run(row=name, settings=settings, origin=origin))
        return works
