"""Figure 4: trainings that Bayesian optimisation needs to match one that learns widths.

(a) the width of the last hidden layer alone, (b) all three widths; each at several prices. Both
ways are judged by the same number, the train loss plus a price for every neuron (the paper's
equation 1), and every evaluation of it is a whole training.

Optuna's GPSampler does what Spearmint did (Snoek et al. 2012, "Practical Bayesian optimization of
machine learning algorithms"): a Matern-5/2 kernel with a length for each width, and expected
improvement; here in the logarithm of the widths.
"""

import functools
import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from archlearn.errors import check_installed
from archlearn_paper import bounds, statistics, tables
from archlearn_paper.experiment import Derived, Experiment, FinishedRun, Row, Run, Scale
from archlearn_paper.recipes import learn_architecture, train_plainly
from archlearn_paper.tables import Column, make_table, write_spread

_WIDTHS = {"conv1": 20, "conv2": 50, "fc1": 500}
_PRICES = (1e-5, 1e-4, 1e-3)
"""What a neuron costs; the first is the paper's."""
_EPOCHS, _BATCH_SIZE = 20, 500
"""Every training is shorter than those of other experiments, in larger batches: there are 20 in a
row."""
_FREEZE_FOR, _LARGEST_STEP = 0.4, 0.005
"""Gates of the run that learns need steps to settle, and a short run has few. At a low price their
rate is high, and a bound on their steps keeps noise from closing them (the paper clips them)."""
_N_SEEDS, _N_QUICK = 3, 3
N_TRAININGS = 20
"""As many as the paper made."""
_N_RANDOM = 5
"""Trainings of random widths, before the process has anything to go by."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One search: which widths are searched, or learnt, and at which price."""

    name: str
    words: str
    searched: tuple[str, ...]
    price: float

    @property
    def key(self) -> str:
        """Return what tells it from the others."""
        return f"{self.name}, λ = {self.price:g}"

    def row(self, number: int | None = None) -> str:
        """Return the row of a training of the search, or of the one that learns."""
        name = f"({self.name}) at {self.price:g}"
        return f"AL {name}" if number is None else f"BO {name} {number + 1}"

    def objective(self, row: Row) -> float:
        """Return what both ways minimise."""
        return row.train_loss + self.price * row.n_neurons

    def find_trainings(self, rows: Sequence[Row], seed: int) -> list[Row]:
        """Return the trainings of one search, in order."""
        by_name = {row.row: row for row in rows if row.seed == seed}
        names = [self.row(number) for number in range(N_TRAININGS)]
        return [by_name[name] for name in names if name in by_name]


PANELS = tuple(
    Panel(name, words, searched, price)
    for price in _PRICES
    for name, words, searched in (
        ("a", "the last hidden width", ("fc1",)),
        ("b", "all three widths", ("conv1", "conv2", "fc1")),
    )
)


def propose_widths(
    searched: Sequence[str], trained: Sequence[tuple[Mapping[str, int], float]], *, seed: int
) -> dict[str, int]:
    """Return the widths of all layers to train next.

    They follow from the seed, and from the widths and objectives that were trained before.
    """
    check_installed("Bayesian optimisation", "bench", "optuna")
    optuna: Any = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {
        layer: optuna.distributions.IntDistribution(1, _WIDTHS[layer], log=True)
        for layer in searched
    }
    # Seeded anew for each training, so that a study that is gone on with does not repeat itself.
    sampler = optuna.samplers.GPSampler(seed=1009 * seed + len(trained), n_startup_trials=_N_RANDOM)
    study = optuna.create_study(direction="minimize", sampler=sampler)
    for widths, objective in trained:
        params = {layer: widths[layer] for layer in searched}
        study.add_trial(
            optuna.trial.create_trial(params=params, distributions=distributions, value=objective)
        )
    return {**_WIDTHS, **study.ask(distributions).params}


@functools.cache
def _warm_up() -> None:
    """Make a proposal for nothing, once: what it takes to load the parts is no time of a search."""
    propose_widths(["fc1"], [({"fc1": n + 1}, float(n)) for n in range(_N_RANDOM)], seed=0)


def _shorten(scale: Scale) -> Scale:
    """Return the scale of this experiment: three seeds and, unless it is quick, fewer epochs."""
    if scale.points:
        return scale.shorten(scale.epochs // 2, 1)
    return replace(scale.shorten(_EPOCHS, _N_SEEDS), batch_size=_BATCH_SIZE)


def _choose_panels(scale: Scale) -> list[Panel]:
    """Return the searches that are made; of a quick version those at one price."""
    prices = _PRICES if scale.points is None else _PRICES[-1:]
    return [panel for panel in PANELS if panel.price in prices]


def _learn_rows(scale: Scale, _: Sequence[FinishedRun]) -> list[Run]:
    short = _shorten(scale)
    return [
        Run(
            row=panel.row(),
            settings=learn_architecture(
                short,
                seed,
                panel.price,
                leave=tuple(layer for layer in _WIDTHS if layer not in panel.searched),
                freeze_for=_FREEZE_FOR,
                largest_step=_LARGEST_STEP,
            ),
            finish_compact=True,
        )
        for panel in _choose_panels(scale)
        for seed in short.seeds
    ]


def propose(scale: Scale, done: Sequence[FinishedRun], *, number: int) -> list[Run]:
    """Return the next training of every search; all searches go on side by side."""
    if number >= (_N_QUICK if scale.points else N_TRAININGS):
        return []
    _warm_up()
    short, rows, works = _shorten(scale), [finished.row for finished in done], list[Run]()
    for panel in _choose_panels(scale):
        for seed in short.seeds:
            before = panel.find_trainings(rows, seed)
            trained = [(row.widths, panel.objective(row)) for row in before]
            started = time.perf_counter()
            widths = propose_widths(panel.searched, trained, seed=seed)
            taken = time.perf_counter() - started
            model = "lenet:" + "-".join(map(str, widths.values()))
            settings = train_plainly(short, seed, model=model)
            row = panel.row(number)
            works.append(Run(row=row, settings=settings, measured={"search_seconds": taken}))
    return works


def _derive(rows: Sequence[Row]) -> dict[str, Any]:
    panels: dict[str, Any] = {}
    for panel in PANELS:
        seeds = [row.seed for row in rows if row.row == panel.row()]
        curves = [_follow(panel, [row for row in rows if row.seed == seed]) for seed in seeds]
        if curves:
            words = {"name": panel.name, "words": panel.words, "price": panel.price}
            panels[panel.key] = words | {"seeds": seeds, "curves": curves}
    return {"panels": panels}


def _follow(panel: Panel, rows: Sequence[Row]) -> dict[str, Any]:
    learnt = next(row for row in rows if row.row == panel.row())
    trainings = panel.find_trainings(rows, learnt.seed)
    taken = [row.measured.get("search_seconds", 0.0) + row.seconds for row in trainings]
    objectives, seconds = [panel.objective(row) for row in trainings], list(accumulate(taken))
    best = list(accumulate(objectives, min))
    count = next((n for n, least in enumerate(best, 1) if least <= panel.objective(learnt)), None)
    return {
        "learnt": {
            "objective": panel.objective(learnt),
            "seconds": learnt.seconds,
            "architecture": learnt.architecture,
            "accuracy": learnt.accuracy,
        },
        "best": best,
        "objectives": objectives,
        "seconds": seconds,
        "trainings_to_match": count,
        "seconds_to_match": None if count is None else seconds[count - 1],
    }


def _check(derived: Derived) -> list[bounds.Check]:
    return [
        bounds.Check(
            what=f"trainings to match one run, ({key}) {panel['words']}",
            measured=", ".join(_write_count(curve) for curve in panel["curves"]),
            bound=f"at least {N_TRAININGS} for each seed (the paper: about {N_TRAININGS})",
            # A search that is shorter and never matched says nothing.
            met=all(
                (c["trainings_to_match"] or len(c["best"])) >= N_TRAININGS for c in panel["curves"]
            ),
        )
        for key, panel in derived["panels"].items()
    ]


def _write_count(curve: Mapping[str, Any]) -> str:
    count = curve["trainings_to_match"]
    return f"not in {len(curve['best'])}" if count is None else str(count)


def _tabulate(derived: Derived) -> list[tables.Table]:

    def spread(values: Sequence[float], digits: int = 4) -> str:
        return write_spread(statistics.measure_spread(values) if values else None, digits)

    def learnt(entry: str, digits: int = 4) -> Callable[[Mapping[str, Any]], str]:
        return lambda panel: spread([c["learnt"][entry] for c in panel["curves"]], digits)

    def searched(entry: str, digits: int = 4) -> Callable[[Mapping[str, Any]], str]:
        return lambda panel: spread([c[entry][-1] for c in panel["curves"] if c["best"]], digits)

    columns: list[Column] = [
        ("widths", "({key}) {words}"),
        (
            "learnt in one run",
            lambda panel: ", ".join(c["learnt"]["architecture"] for c in panel["curves"]),
        ),
        ("its objective", learnt("objective")),
        ("seconds", learnt("seconds", 1)),
        ("best of the search", searched("best")),
        ("seconds of the search, its own time included", searched("seconds", 1)),
        (
            "trainings to match, by seed",
            lambda panel: ", ".join(map(_write_count, panel["curves"])),
        ),
    ]
    return [make_table([{"key": k, **panel} for k, panel in derived["panels"].items()], columns)]


_STAGES = (_learn_rows, *(functools.partial(propose, number=n) for n in range(N_TRAININGS)))
EXPERIMENT = Experiment(_STAGES, _derive, _check, _tabulate, n_seeds=_N_SEEDS)
