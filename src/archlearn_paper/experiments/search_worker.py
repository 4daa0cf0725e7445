"""Worker: `python -m archlearn_paper.experiments.search_worker --file study.db --panel b`.

Several workers, on one machine or on many that see the same file, share one study; a worker that
was stopped is started again with the same words, and goes on. Any network can be searched.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from archlearn.errors import ArchlearnError
from archlearn_paper.baselines.bayesian_search import (
    N_TRAININGS,
    Proposal,
    Search,
    Space,
    find_widths,
    measure_objective,
    start_at_widths,
)
from archlearn_paper.comparison.protocol import Contest
from archlearn_paper.experiment import FULL, Scale
from archlearn_paper.experiments.figure_4 import BATCH_SIZE, EPOCHS, PANELS, PRICE
from archlearn_paper.parallel_runs import Run, train_team

_INTERRUPTED = 130
Train = Callable[[Proposal], tuple[float, float]]
"""Trains the widths of a proposal; returns the objective and the seconds it took."""


def work_on(search: Search, train: Train, n_trainings: int = N_TRAININGS) -> int:
    """Train proposals until a study has as many as it should; return how many were trained here.

    A training that fails is given up at once, so that no other worker waits for it.
    """
    count = 0
    while _is_wanted(search, n_trainings):
        proposal = search.propose()
        if search.has_enough_without(proposal, n_trainings):
            search.give_up(proposal)
            break
        try:
            objective, seconds = train(proposal)
        except BaseException:
            search.give_up(proposal)
            raise
        search.tell(proposal, objective, seconds)
        count += 1
    return count


def _is_wanted(search: Search, n_trainings: int) -> bool:
    """Return whether another training is to be made, be it that a killed worker began one."""
    search.drop_abandoned()
    return search.n_left(n_trainings) > 0


def choose_space(widths: Mapping[str, int], panel: str) -> Space:
    """Return what is searched of a network: its last width in panel a, all widths in panel b."""
    last = list(widths)[-1]
    most = {name: width for name, width in widths.items() if panel == "b" or name == last}
    fixed = {name: width for name, width in widths.items() if name not in most}
    return Space(most=most, fixed=fixed)


def train_widths(proposal: Proposal, contest: Contest, seed: int) -> tuple[float, float]:
    """Train a network of these widths and say so; return its objective and the seconds it took."""
    large = contest.fresh_network(seed)
    network = start_at_widths(large, contest.example(), proposal.widths, seed)
    settings = contest.plain(seed, contest.scale.epochs)
    name = f"training {proposal.number + 1}"
    (outcome,) = train_team([Run(row=name, settings=settings, network=network)])
    n_neurons = sum(list(outcome.widths.values())[:-1])
    objective = measure_objective(outcome.train_loss, n_neurons, PRICE)
    sys.stdout.write(f"{name}: {_write(proposal.widths)}, objective {objective:.4f}\n")
    sys.stdout.flush()
    return objective, outcome.seconds


def main(words: list[str]) -> int:
    """Work on a study until it is done; return the exit code."""
    given = _parse(words)
    try:
        return _work(given)
    except ArchlearnError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("stopped: interrupted; the same command goes on from there\n")
        return _INTERRUPTED


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m archlearn_paper.experiments.search_worker")
    parser.add_argument("--file", type=Path, required=True, help="the study's SQLite file")
    parser.add_argument(
        "--panel",
        choices=[panel.name for panel in PANELS],
        default="a",
        help="a searches the last hidden width, b all widths",
    )
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=_count, default=EPOCHS)
    parser.add_argument("--limit", type=_count, help="use only so many train examples")
    parser.add_argument("--trainings", type=_count, default=N_TRAININGS)
    return parser.parse_args(words)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def _work(given: argparse.Namespace) -> int:
    scale = Scale(
        name=FULL.name,
        seeds=(given.seed,),
        epochs=given.epochs,
        data=given.data,
        limit=given.limit,
        batch_size=BATCH_SIZE,
    )
    contest = Contest(model=given.model, budgets=(), scale=scale)
    widths = find_widths(contest.fresh_network(given.seed), contest.example())
    # Trainings of other data or lengths are no part of the same study.
    name = f"{given.model} {given.data} {given.limit} {given.epochs} {given.panel} {given.seed}"
    search = Search(name, choose_space(widths, given.panel), seed=given.seed, file=given.file)
    count = work_on(search, lambda p: train_widths(p, contest, given.seed), given.trainings)
    sys.stdout.write(f"{count} trainings here, {len(search.history())} in all")
    if search.history():
        best = min(search.history(), key=lambda training: training.objective)
        sys.stdout.write(f"; best: {_write(best.widths)} with an objective of {best.objective:.4f}")
    sys.stdout.write("\n")
    return 0


def _write(widths: Mapping[str, int]) -> str:
    return "-".join(map(str, widths.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
