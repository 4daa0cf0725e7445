"""Stages of the comparison: train, compress to the budget, fine-tune; all methods alike.

Every method has the same number of epochs in total: two fifths before its network is brought to
the budget, three fifths after. Those that begin with a small network have all of them for that.
Strengths are chosen on validation data of another seed, and what that took is counted apart.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from archlearn.errors import SettingsError
from archlearn_paper.baselines.from_scratch import start_anew
from archlearn_paper.comparison.methods import (
    METHODS,
    OURS,
    SCRATCH,
    FromScratchMethod,
    LearningMethod,
    Method,
    PruningMethod,
    Strength,
)
from archlearn_paper.comparison.protocol import CALIBRATION_SEED, ComparisonSetup
from archlearn_paper.comparison.ranking import LARGE, UNTUNED, MethodRanking, name_result
from archlearn_paper.comparison.strength_search import (
    N_WEAKER,
    Pending,
    begin_learnt,
    begin_trials,
    choose_strength,
    end_trials,
    is_enough,
    list_attempts,
    name_first,
    reduce_in_round,
    start_runs,
)
from archlearn_paper.experiment import (
    Evaluation,
    Experiment,
    FinishedRun,
    RunTask,
    Scale,
    Stage,
    parse_seeds,
)
from archlearn_paper.parallel_runs import Run
from archlearn_paper.results import Results, read_results


class ComparisonStages:
    """Turns methods into stages of runs."""

    def __init__(self, model: str, budgets: tuple[int, ...], methods: Sequence[Method]) -> None:
        self._model, self._budgets, self._methods = model, budgets, methods

    def stages(self) -> tuple[Stage, ...]:
        """Return all stages, each from a scale and what is done so far."""
        rounds = max([each.rounds for each in self._in_rounds()], default=0)
        later = [partial(self._prune, number=number) for number in range(1, rounds)]
        return (
            self._begin_trials,
            self._end_trials,
            self._begin,
            *[self._begin_again] * (N_WEAKER + 1),
            self._end,
            *later,
            self._from_scratch,
        )

    def _setup(self, scale: Scale) -> ComparisonSetup:
        return ComparisonSetup(model=self._model, budgets=self._budgets, scale=scale)

    def _pruned(self) -> list[PruningMethod]:
        return [each for each in self._methods if isinstance(each, PruningMethod)]

    def _learnt(self) -> list[LearningMethod]:
        return [each for each in self._methods if isinstance(each, LearningMethod)]

    def _in_rounds(self) -> list[LearningMethod | PruningMethod]:
        return [*self._pruned(), *self._learnt()]

    def _begin_trials(self, scale: Scale, done: Sequence[FinishedRun]) -> list[RunTask]:
        del done
        setup = self._setup(scale)
        return begin_trials(setup, self._methods)

    def _end_trials(self, scale: Scale, done: Sequence[FinishedRun]) -> list[RunTask]:
        return end_trials(self._setup(scale), self._methods, done)

    def _begin(self, scale: Scale, done: Sequence[FinishedRun]) -> list[RunTask]:
        """Return the large networks, the first parts at chosen strengths, and all fresh ones."""
        setup = self._setup(scale)
        works: list[RunTask] = []
        for seed in scale.seeds:
            if self._pruned():
                settings = setup.plain(seed, setup.first_epochs)
                works.append(Run(row=LARGE, settings=settings))
            for each in self._learnt():
                chosen = {choose_strength(each, b, [d.row for d in done]) for b in self._budgets}
                works += [_first(setup, each, seed, s) for s in sorted(chosen, key=str)]
        return _by_length(works + self._fresh(setup))

    def _fresh(self, setup: ComparisonSetup) -> list[RunTask]:
        pending = [
            Pending(
                row=name_result(each.name, budget),
                settings=setup.plain(seed, setup.scale.epochs),
                make=partial(each.begin, setup, seed, budget),
            )
            for each in self._methods
            if isinstance(each, FromScratchMethod)
            for seed in setup.scale.seeds
            for budget in self._budgets
        ]
        return list(start_runs(pending))

    def _begin_again(self, scale: Scale, done: Sequence[FinishedRun]) -> list[RunTask]:
        """Return first parts at less strength, for seeds that came out below their budget."""
        setup, works = self._setup(scale), dict[tuple[str, int], RunTask]()
        for each in self._learnt():
            for budget in self._budgets:
                for seed in scale.seeds:
                    known = self._attempts(each, budget, seed, done)
                    left = [strength for strength, finished in known if finished is None]
                    if left and not _first_enough(known, budget):
                        run = _first(setup, each, seed, left[0])
                        works[run.row, seed] = run
        return list(works.values())

    def _attempts(
        self, each: LearningMethod, budget: int, seed: int, done: Sequence[FinishedRun]
    ) -> list[tuple[Strength, FinishedRun | None]]:
        """Return the strengths for a seed and a budget, with the first parts that were made."""
        made = {(finished.row.row, finished.row.seed): finished for finished in done}
        strengths = list_attempts(each, budget, [finished.row for finished in done])
        return [(strength, made.get((name_first(each, strength), seed))) for strength in strengths]

    def _end(self, scale: Scale, done: Sequence[FinishedRun]) -> list[RunTask]:
        """Return the last parts: every network brought to every budget and trained on."""
        setup = self._setup(scale)
        pending = self._rounds(setup, done, number=0)
        for each in self._learnt():
            for budget in self._budgets:
                for seed in scale.seeds:
                    large = _first_enough(self._attempts(each, budget, seed, done), budget)
                    pending += [_round(setup, each, finished, budget, 0) for finished in large]
        runs = start_runs(pending)
        return _by_length([*runs, *self._untuned(setup, runs)])

    def _prune(self, scale: Scale, done: Sequence[FinishedRun], number: int) -> list[RunTask]:
        """Return a later round of pruning and training."""
        return list(start_runs(self._rounds(self._setup(scale), done, number)))

    def _rounds(
        self, setup: ComparisonSetup, done: Sequence[FinishedRun], number: int
    ) -> list[Pending]:
        return [
            _round(setup, each, finished, budget, number)
            for each in self._in_rounds()
            if number < _count_rounds(setup, each)
            for budget in self._budgets
            for finished in done
            if _is_ready(setup, each, finished, budget, number)
        ]

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


def _by_length(works: list[RunTask]) -> list[RunTask]:
    """Return runs of equal length next to each other: side by side, none waits for another."""
    return sorted(works, key=lambda work: work.settings.epochs or 0)


def _first_enough(
    attempts: Sequence[tuple[Strength, FinishedRun | None]], budget: int
) -> list[FinishedRun]:
    """Return the first part at the greatest strength that is large enough, if there is one."""
    made = [finished for _, finished in attempts if finished is not None]
    return [finished for finished in made if is_enough(finished, budget)][:1]


def _first(setup: ComparisonSetup, each: LearningMethod, seed: int, strength: Strength) -> Run:
    return begin_learnt(each, setup, seed, strength, name_first(each, strength))


def _is_ready(
    setup: ComparisonSetup,
    each: LearningMethod | PruningMethod,
    finished: FinishedRun,
    budget: int,
    number: int,
) -> bool:
    """Return whether a finished run is the one that a round goes on from."""
    if number == 0:
        before = LARGE if isinstance(each, PruningMethod) else None
    else:
        before = _name_round(setup, each, budget, number - 1)
    return finished.row.row == before and finished.row.seed in setup.scale.seeds


def _round(
    setup: ComparisonSetup,
    each: LearningMethod | PruningMethod,
    finished: FinishedRun,
    budget: int,
    number: int,
) -> Pending:
    """Return the training that follows one round of pruning; rounds share the epochs evenly."""
    rounds = _count_rounds(setup, each)
    left = rounds - number
    target = round(finished.row.parameters * (budget / finished.row.parameters) ** (1 / left))
    ends = [setup.last_epochs * done // rounds for done in (number, number + 1)]
    return Pending(
        row=_name_round(setup, each, budget, number),
        settings=setup.plain(finished.row.seed, ends[1] - ends[0]),
        make=reduce_in_round(each, setup, finished, target, number),
    )


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


logger = logging.getLogger(__name__)

COMPARISON = "compare-"
BUDGETS = (5_000, 10_000, 20_000, 40_000)
FULL_COMPARISON = Scale(name="full", seeds=(0, 1, 2, 3, 4), epochs=30, batch_size=500)
QUICK_COMPARISON = Scale(
    name="quick", seeds=(0,), epochs=5, limit=1500, validation=1 / 12, points=2, batch_size=50
)
QUICK_BUDGETS = (10_000, 40_000)


def make_experiment(
    model: str, data: str, budgets: tuple[int, ...], methods: Sequence[Method] = METHODS
) -> Experiment:
    """Return the comparison of some methods on a network, data and budgets."""
    stages, ranking = ComparisonStages(model, budgets, methods), MethodRanking(budgets, methods)
    return Experiment(
        name=name_comparison(model, data),
        title=f"{model} on {data}: all methods at equal parameters and equal epochs",
        stages=stages.stages(),
        derive=ranking.derive,
        check=ranking.check,
        tabulate=ranking.tabulate,
    )


def name_comparison(model: str, data: str) -> str:
    """Return the name of the comparison on a network and data."""
    plain = [part.replace(":", "-").replace(".", "-").replace("/", "-") for part in (model, data)]
    return f"{COMPARISON}{'-'.join(plain)}"


def find_comparisons(folder: Path) -> list[tuple[Experiment, Results]]:
    """Return the finished comparisons in a folder, with what judges them."""
    found: list[tuple[Experiment, Results]] = []
    for path in sorted(folder.glob(f"{COMPARISON}*.json")):
        results = read_results(folder, path.stem)
        if results is not None and results.complete:
            settings = results.rows[0].settings
            budgets = tuple(int(budget) for budget in results.derived["ranks"])
            methods = [each for each in METHODS if each.name in results.derived["results"]]
            found.append(
                (make_experiment(settings["model"], settings["data"], budgets, methods), results)
            )
    return found


def find_methods(names: str | None) -> tuple[Method, ...]:
    """Return the methods that were asked for, or all that what is installed allows.

    Args:
        names: With semicolons between them; None asks for all.

    Raises:
        SettingsError: If there is no such method.
    """
    known = {each.name: each for each in METHODS}
    if names is None:
        missing = [n for n, each in known.items() if each.needs and find_spec(each.needs) is None]
        if missing:
            logger.warning("left out, as they need archlearn[bench]: %s", "; ".join(missing))
        return tuple(each for name, each in known.items() if name not in missing)
    wanted = [name.strip() for name in names.split(";")]
    for place, name in enumerate(wanted):
        if name not in known:
            raise SettingsError(f"there is no method {name!r}; choose of {'; '.join(known)}")
        if name in wanted[:place]:
            raise SettingsError(f"--methods {names!r}: {name!r} is there twice; name it once")
    return tuple(known[name] for name in wanted)


def choose_setup(
    *,
    model: str,
    data: str,
    quick: bool = False,
    budgets: str | None = None,
    seeds: str | None = None,
    epochs: int | None = None,
) -> ComparisonSetup:
    """Return network, budgets and scale that were asked for.

    Raises:
        SettingsError: If one of them is no list of different numbers, or there are too few epochs.
    """
    scale = replace(QUICK_COMPARISON if quick else FULL_COMPARISON, data=data)
    if seeds is not None:
        scale = replace(scale, seeds=_parse_counted(seeds))
    if epochs is not None:
        if epochs < 2:
            raise SettingsError(f"--epochs {epochs}: give 2 at least, for a part before and after")
        scale = replace(scale, epochs=epochs)
    chosen = QUICK_BUDGETS if quick else BUDGETS
    if budgets is not None:
        chosen = _parse_budgets(budgets)
    return ComparisonSetup(model=model, budgets=chosen, scale=scale)


def _parse_counted(text: str) -> tuple[int, ...]:
    """Return the seeds that were typed; strengths are chosen on another one."""
    seeds = parse_seeds(text)
    if CALIBRATION_SEED in seeds:
        raise SettingsError(
            f"--seeds {text!r}: strengths are chosen on seed {CALIBRATION_SEED}; count others"
        )
    return seeds


def _parse_budgets(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    budgets = tuple(int(part) for part in parts if part.isdecimal())
    if len(budgets) < len(parts) or len(set(budgets)) < len(budgets) or min(budgets) < 1:
        raise SettingsError(
            f"--budget {text!r}: write different numbers of parameters, as 5000,10000"
        )
    return budgets
