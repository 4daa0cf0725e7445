"""Compare all methods at equal parameters, equal epochs and equal data.

Every method has the same number of epochs in total: two fifths before its network is brought to
the budget, three fifths after. Those that begin with a small network have all of them for that.
Strengths are chosen on validation data of another seed, and what that took is counted apart.
"""

import argparse
import logging
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from archlearn.errors import SettingsError
from archlearn_paper.comparison.methods import CONTENDERS, Contender
from archlearn_paper.comparison.protocol import CALIBRATION_SEED, Contest
from archlearn_paper.comparison.ranking import Verdict
from archlearn_paper.comparison.referee import Referee
from archlearn_paper.earlier_results import check_earlier_comparison
from archlearn_paper.experiment import Experiment, Scale
from archlearn_paper.parallel_runs import SIDE_BY_SIDE
from archlearn_paper.plain_command import carry_out
from archlearn_paper.request_options import choose_folder, parse_seeds
from archlearn_paper.results import Results, read_results
from archlearn_paper.runner import RunRequest, check_contest

logger = logging.getLogger(__name__)

BUDGETS = (5_000, 10_000, 20_000, 40_000)
FULL = Scale(name="full", seeds=(0, 1, 2, 3, 4), epochs=30, batch_size=500)
QUICK = Scale(
    name="quick", seeds=(0,), epochs=5, limit=1500, validation=1 / 12, points=2, batch_size=50
)
QUICK_BUDGETS = (10_000, 40_000)


def make_experiment(
    model: str, data: str, budgets: tuple[int, ...], contenders: Sequence[Contender] = CONTENDERS
) -> Experiment:
    """Return the comparison of some methods on a network, data and budgets."""
    referee, verdict = Referee(model, budgets, contenders), Verdict(budgets, contenders)
    plain = [part.replace(":", "-").replace(".", "-").replace("/", "-") for part in (model, data)]
    return Experiment(
        name=f"compare-{'-'.join(plain)}",
        title=f"{model} on {data}: all methods at equal parameters and equal epochs",
        stages=referee.stages(),
        derive=verdict.derive,
        check=verdict.check,
        tabulate=verdict.tabulate,
    )


def find_comparisons(folder: Path) -> list[tuple[Experiment, Results]]:
    """Return the finished comparisons in a folder, with what judges them."""
    found: list[tuple[Experiment, Results]] = []
    for path in sorted(folder.glob("compare-*.json")):
        results = read_results(folder, path.stem)
        if results is not None and results.complete:
            settings = results.rows[0].settings
            budgets = tuple(int(budget) for budget in results.derived["ranks"])
            methods = [each for each in CONTENDERS if each.name in results.derived["results"]]
            found.append(
                (make_experiment(settings["model"], settings["data"], budgets, methods), results)
            )
    return found


def find_contenders(names: str | None) -> tuple[Contender, ...]:
    """Return the methods that were asked for, or all that what is installed allows.

    Args:
        names: With semicolons between them; None asks for all.

    Raises:
        SettingsError: If there is no such method.
    """
    known = {each.name: each for each in CONTENDERS}
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


def choose_contest(
    *, quick: bool, budgets: str | None, seeds: str | None, data: str, epochs: int | None = None
) -> tuple[Scale, tuple[int, ...]]:
    """Return scale and budgets that were asked for.

    Raises:
        SettingsError: If one of them is no list of different numbers, or there are too few epochs.
    """
    scale = replace(QUICK if quick else FULL, data=data)
    if seeds is not None:
        scale = replace(scale, seeds=_parse_counted(seeds))
    if epochs is not None:
        if epochs < 2:
            raise SettingsError(f"--epochs {epochs}: give 2 at least, for a part before and after")
        scale = replace(scale, epochs=epochs)
    if budgets is None:
        return scale, QUICK_BUDGETS if quick else BUDGETS
    return scale, _parse_budgets(budgets)


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


def main(words: list[str]) -> int:
    """Compare without the command line's parts, on machines that have not got them."""
    parser = argparse.ArgumentParser(prog="python -m archlearn_paper.method_comparison")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--budget")
    parser.add_argument("--methods", help="names with semicolons between them")
    parser.add_argument("--seeds")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--side-by-side", type=int, default=SIDE_BY_SIDE)
    given = parser.parse_args(words)
    return carry_out(lambda: _order(given, words))


def _order(given: argparse.Namespace, words: list[str]) -> RunRequest:
    scale, budgets = choose_contest(
        quick=given.quick,
        budgets=given.budget,
        seeds=given.seeds,
        data=given.data,
        epochs=given.epochs,
    )
    contenders = find_contenders(given.methods)
    experiment = make_experiment(given.model, given.data, budgets, contenders)
    folder = choose_folder(given.out, quick=given.quick)
    contest = Contest(model=given.model, budgets=budgets, scale=scale)
    check_contest(contest)
    check_earlier_comparison(folder, experiment.name, contest, [each.name for each in contenders])
    return RunRequest(
        experiment=experiment,
        scale=scale,
        folder=folder,
        command=shlex.join(["python", "-m", "archlearn_paper.method_comparison", *words]),
        side_by_side=given.side_by_side,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
