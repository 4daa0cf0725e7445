"""The comparison of all methods at equal parameters, equal epochs and equal data."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from archlearn.errors import SettingsError
from archlearn_paper.comparison.methods import CALIBRATION_SEED, METHODS, ComparisonSetup, Method
from archlearn_paper.comparison.ranking import MethodRanking
from archlearn_paper.comparison.stages import ComparisonStages
from archlearn_paper.experiment import Experiment, Scale, parse_numbers, parse_seeds
from archlearn_paper.results import Results, read_results

logger = logging.getLogger(__name__)

COMPARISON = "compare-"
BUDGETS = (5_000, 10_000, 20_000, 40_000)
FULL_COMPARISON = Scale(name="full", seeds=(0, 1, 2, 3, 4), epochs=30, batch_size=500)
QUICK_COMPARISON = Scale(
    name="quick", seeds=(0,), epochs=5, limit=1500, validation=1 / 12, points=1, batch_size=50
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
        measure=stages.measure,
        version=2,
    )


def name_comparison(model: str, data: str) -> str:
    """Return the name of the comparison on a network and data."""
    plain = [part.replace(":", "-").replace(".", "-").replace("/", "-") for part in (model, data)]
    return f"{COMPARISON}{'-'.join(plain)}"


def find_comparisons(folder: Path) -> list[tuple[Experiment, Results]]:
    """Return the finished comparisons in a folder, with what judges them."""
    comparisons: list[tuple[Experiment, Results]] = []
    for path in sorted(folder.glob(f"{COMPARISON}*.json")):
        results = read_results(folder, path.stem)
        if results is not None and results.complete:
            settings = results.rows[0].settings
            budgets = tuple(int(budget) for budget in results.derived["ranks"])
            methods = [method for method in METHODS if method.name in results.derived["results"]]
            comparisons.append(
                (make_experiment(settings["model"], settings["data"], budgets, methods), results)
            )
    return comparisons


def find_methods(names: str | None) -> tuple[Method, ...]:
    """Return the methods named, between semicolons, or all that what is installed allows."""
    methods = {m.name: m for m in METHODS}
    if names is None:
        missing = [n for n, m in methods.items() if m.needs and find_spec(m.needs) is None]
        if missing:
            logger.warning("left out, as they need archlearn[bench]: %s", "; ".join(missing))
        return tuple(m for name, m in methods.items() if name not in missing)
    wanted = [name.strip() for name in names.split(";")]
    for index, name in enumerate(wanted):
        if name not in methods:
            raise SettingsError(f"there is no method {name!r}; choose of {'; '.join(methods)}")
        if name in wanted[:index]:
            raise SettingsError(f"--methods {names!r}: {name!r} is there twice; name it once")
    return tuple(methods[name] for name in wanted)


def choose_setup(
    *,
    model: str,
    data: str,
    quick: bool = False,
    budgets: str | None = None,
    seeds: str | None = None,
    epochs: int | None = None,
) -> ComparisonSetup:
    """Return network, budgets and scale that were asked for."""
    scale = replace(QUICK_COMPARISON if quick else FULL_COMPARISON, data=data)
    if seeds is not None:
        scale = replace(scale, seeds=parse_seeds(seeds))
        if CALIBRATION_SEED in scale.seeds:
            raise SettingsError(
                f"--seeds {seeds!r}: strengths are chosen on seed {CALIBRATION_SEED}; count others"
            )
    if epochs is not None:
        if epochs < 2:
            raise SettingsError(f"--epochs {epochs}: give 2 at least, for a part before and after")
        scale = replace(scale, epochs=epochs)
    chosen = QUICK_BUDGETS if quick else BUDGETS
    if budgets is not None:
        chosen = parse_numbers(budgets, "--budget", "of parameters, as 5000,10000")
    return ComparisonSetup(model=model, budgets=chosen, scale=scale)
