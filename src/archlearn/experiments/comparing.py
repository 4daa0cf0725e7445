"""The referee: all methods at equal parameters, equal epochs and equal order of data.

Every method has the same number of epochs in total: two thirds before its network is brought to the
budget, one third after. Those that begin with a small network have all of them for that. Strengths are
chosen on validation data of another seed, and what that took is counted apart.
"""

from collections.abc import Callable, Sequence
from functools import partial

from torch import nn

from archlearn.baselines.scratch import start_anew
from archlearn.experiments.calibrating import (
    WEAKER,
    begin_trials,
    choose_strength,
    end_trials,
    is_enough,
    name_first,
)
from archlearn.experiments.contenders import (
    CONTENDERS,
    OURS,
    SCRATCH,
    Contender,
    Fresh,
    Learnt,
    Pruned,
    named,
    try_reduce,
)
from archlearn.experiments.contests import Contest
from archlearn.experiments.definitions import Done, Evaluation, Experiment, Stage, Work
from archlearn.experiments.scales import Scale
from archlearn.experiments.verdicts import Verdict, name_result
from archlearn.training.errors import SettingsError
from archlearn.training.teams import Run

LARGE = "large network"
N_RETRIES = 3
UNTUNED = "svd, not fine-tuned"


def make_experiment(
    model: str, data: str, budgets: tuple[int, ...], contenders: Sequence[Contender] = CONTENDERS
) -> Experiment:
    """Return the comparison of some methods on a network, data and budgets."""
    referee = _Referee(model, budgets, contenders)
    verdict = Verdict(budgets, contenders)
    plain = model.replace(":", "-").replace(".", "-")
    return Experiment(
        name=f"compare-{plain}-{data.replace(':', '-').replace('/', '-')}",
        title=f"{model} on {data}: all methods at equal parameters and equal epochs",
        stages=referee.stages(),
        derive=verdict.derive,
        check=verdict.check,
        tabulate=verdict.tabulate,
    )


def find_contenders(names: str | None) -> tuple[Contender, ...]:
    """Return the methods that were asked for by name; None asks for all.

    Raises:
        SettingsError: If there is no such method.
    """
    if names is None:
        return CONTENDERS
    known = {each.name: each for each in CONTENDERS}
    wanted = [name.strip() for name in names.split(";")]
    for name in wanted:
        if name not in known:
            raise SettingsError(f"there is no method {name!r}; choose of {'; '.join(known)}")
    return tuple(known[name] for name in wanted)


class _Referee:
    """Turns methods into stages of runs."""

    def __init__(
        self, model: str, budgets: tuple[int, ...], contenders: Sequence[Contender]
    ) -> None:
        self._model, self._budgets, self._contenders = model, budgets, contenders

    def stages(self) -> tuple[Stage, ...]:
        """Return all stages, each from a scale and what is done so far."""
        rounds = max([each.rounds for each in self._pruned()], default=0)
        later = [partial(self._prune, number=number) for number in range(1, rounds)]
        return (
            self._begin_trials,
            self._end_trials,
            self._begin,
            *[self._begin_again] * N_RETRIES,
            self._end,
            *later,
            self._from_scratch,
        )

    def _contest(self, scale: Scale) -> Contest:
        return Contest(model=self._model, budgets=self._budgets, scale=scale)

    def _pruned(self) -> list[Pruned]:
        return [each for each in self._contenders if isinstance(each, Pruned)]

    def _learnt(self) -> list[Learnt]:
        return [each for each in self._contenders if isinstance(each, Learnt)]

    def _begin_trials(self, scale: Scale, done: Sequence[Done]) -> list[Work]:
        del done
        return begin_trials(self._contest(scale), self._contenders)

    def _end_trials(self, scale: Scale, done: Sequence[Done]) -> list[Work]:
        return end_trials(self._contest(scale), self._contenders, done)

    def _begin(self, scale: Scale, done: Sequence[Done]) -> list[Work]:
        """Return the large networks, the first parts at chosen strengths, and all fresh ones."""
        contest = self._contest(scale)
        works: list[Work] = []
        for seed in scale.seeds:
            if self._pruned():
                settings = contest.plain(seed, contest.first_epochs)
                works.append(Run(row=LARGE, settings=settings))
            for each in self._learnt():
                chosen = {self._strength(each, budget, scale, done) for budget in self._budgets}
                works += [_first(contest, each, seed, strength) for strength in sorted(chosen)]
            works += self._fresh(contest, seed)
        return works

    def _fresh(self, contest: Contest, seed: int) -> list[Work]:
        works: list[Work] = []
        for each in self._contenders:
            for budget in self._budgets if isinstance(each, Fresh) else ():
                network = try_reduce(partial(each.begin, contest, seed, budget))
                if network is not None:
                    settings = contest.plain(seed, contest.scale.epochs)
                    row = name_result(each.name, budget)
                    works.append(Run(row=row, settings=settings, network=network))
        return works

    def _strength(self, each: Learnt, budget: int, scale: Scale, done: Sequence[Done]) -> float:
        default = min(scale.pick(each.strengths))
        return choose_strength(each, budget, done, default)

    def _begin_again(self, scale: Scale, done: Sequence[Done]) -> list[Work]:
        """Return first parts at less strength, for seeds that came out below their budget."""
        contest, works = self._contest(scale), dict[tuple[str, int], Work]()
        for each in self._learnt():
            for budget in self._budgets:
                for seed in scale.seeds:
                    tried = self._tried(each, budget, seed, scale, done)
                    if tried and not any(is_enough(finished, budget) for _, finished in tried):
                        strength = min(strength for strength, _ in tried) / WEAKER
                        run = _first(contest, each, seed, strength)
                        works[run.row, seed] = run
        return list(works.values())

    def _tried(
        self, each: Learnt, budget: int, seed: int, scale: Scale, done: Sequence[Done]
    ) -> list[tuple[float, Done]]:
        """Return the first parts made for a budget, the strongest first."""
        start = self._strength(each, budget, scale, done)
        strengths = [start / WEAKER**times for times in range(N_RETRIES + 1)]
        known = {(finished.row.row, finished.row.seed): finished for finished in done}
        keys = [(strength, (name_first(each, strength), seed)) for strength in strengths]
        return [(strength, known[key]) for strength, key in keys if key in known]

    def _end(self, scale: Scale, done: Sequence[Done]) -> list[Work]:
        """Return the last parts: every network brought to every budget and trained on."""
        contest, works = self._contest(scale), self._prune(scale, done, number=0)
        for each in self._learnt():
            for budget in self._budgets:
                for seed in scale.seeds:
                    tried = self._tried(each, budget, seed, scale, done)
                    large = [finished for _, finished in tried if is_enough(finished, budget)]
                    if large:
                        make = partial(each.reduce, contest, large[0].load_model(), budget)
                        works += _last(contest, name_result(each.name, budget), seed, make)
        return works

    def _prune(self, scale: Scale, done: Sequence[Done], number: int) -> list[Work]:
        """Return one round of training pruned networks, and SVD without any."""
        contest, works = self._contest(scale), list[Work]()
        for each in self._pruned():
            if number >= each.rounds:
                continue
            for finished in done:
                for budget in self._budgets:
                    works += _round(contest, each, finished, budget, number)
        return works

    def _from_scratch(self, scale: Scale, done: Sequence[Done]) -> list[Work]:
        """Return the architectures that ours learnt, with fresh weights."""
        contest, works = self._contest(scale), list[Work]()
        rows = {name_result(OURS, budget): budget for budget in self._budgets}
        for finished in done:
            budget, seed = rows.get(finished.row.row), finished.row.seed
            if budget is not None and seed in scale.seeds:
                network = start_anew(finished.load_model(), seed)
                settings = contest.plain(seed, scale.epochs)
                row = name_result(SCRATCH, budget)
                works.append(Run(row=row, settings=settings, network=network))
        return works


def _first(contest: Contest, each: Learnt, seed: int, strength: float) -> Run:
    return named(each.begin(contest, seed, strength), name_first(each, strength))


def _last(
    contest: Contest, row: str, seed: int, make: Callable[[], nn.Module], epochs: int | None = None
) -> list[Work]:
    network = try_reduce(make)
    if network is None:
        return []
    settings = contest.plain(seed, contest.last_epochs if epochs is None else epochs)
    return [Run(row=row, settings=settings, network=network)]


def _round(contest: Contest, each: Pruned, finished: Done, budget: int, number: int) -> list[Work]:
    """Return the training that follows one round of pruning, if this network is what it needs."""
    before = LARGE if number == 0 else _name_round(each, budget, number - 1)
    if finished.row.row != before or finished.row.seed not in contest.scale.seeds:
        return []
    model, seed = finished.load_model(), finished.row.seed
    left = each.rounds - number
    target = round(finished.row.parameters * (budget / finished.row.parameters) ** (1 / left))
    make = partial(each.reduce, model, contest.example(), target)
    epochs = max(1, round(contest.last_epochs / each.rounds))
    works = _last(contest, _name_round(each, budget, number), seed, make, epochs)
    if each.name == "svd" and works:
        settings = contest.plain(seed, 1)
        network = works[0].network
        assert network is not None
        works.append(
            Evaluation(row=name_result(UNTUNED, budget), settings=settings, network=network)
        )
    return works


def _name_round(each: Pruned, budget: int, number: int) -> str:
    """Return the row of a round; the last one is the result."""
    row = name_result(each.name, budget)
    return row if number == each.rounds - 1 else f"{row}, round {number + 1}"
