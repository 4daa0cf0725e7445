"""A worker of a search: `python -m archlearn.experiments.searching --file study.db --panel b`.

Several workers, on one machine or on many that see the same file, share one study; a worker that
was stopped is started again with the same words, and goes on.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from archlearn.baselines.bayesian import (
    N_TRAININGS,
    Proposal,
    Search,
    measure_objective,
)
from archlearn.errors import ArchlearnError
from archlearn.experiments.figure_4 import BATCH_SIZE, EPOCHS, PRICE
from archlearn.experiments.recipes import train_plainly
from archlearn.experiments.scales import FULL, Scale
from archlearn.experiments.searches import PANELS, WIDTHS, name_model
from archlearn.training.teams import Run, train_team

Train = Callable[[Proposal], tuple[float, float]]
"""Trains the widths of a proposal; returns the objective and the seconds it took."""


def work_on(search: Search, train: Train, n_trainings: int = N_TRAININGS) -> int:
    """Train proposals until a study has as many as it should; return how many were trained here.

    A training that fails is given up at once, so that no other worker waits for it.
    """
    search.drop_abandoned()
    count = 0
    while search.n_left(n_trainings):
        proposal = search.propose()
        try:
            objective, seconds = train(proposal)
        except BaseException:
            search.give_up(proposal)
            raise
        search.tell(proposal, objective, seconds)
        count += 1
    return count


def train_widths(proposal: Proposal, scale: Scale, seed: int) -> tuple[float, float]:
    """Train a LeNet of these widths; return its objective and the seconds it took."""
    settings = train_plainly(scale, seed, model=name_model(proposal.widths))
    (outcome,) = train_team([Run(row=f"training {proposal.number}", settings=settings)])
    n_neurons = sum(outcome.widths[layer] for layer in WIDTHS)
    return measure_objective(outcome.train_loss, n_neurons, PRICE), outcome.seconds


def main(words: list[str]) -> int:
    """Work on a study until it is done; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m archlearn.experiments.searching")
    parser.add_argument("--file", type=Path, required=True, help="the study's SQLite file")
    parser.add_argument("--panel", choices=[panel.name for panel in PANELS], default="a")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--limit", type=int, help="use only so many train examples")
    parser.add_argument("--trainings", type=int, default=N_TRAININGS)
    given = parser.parse_args(words)
    panel = next(panel for panel in PANELS if panel.name == given.panel)
    scale = Scale(
        name=FULL.name,
        seeds=(given.seed,),
        epochs=given.epochs,
        data=given.data,
        limit=given.limit,
        batch_size=BATCH_SIZE,
    )
    try:
        name = f"{given.panel} {given.seed}"
        search = Search(name, panel.space(), seed=given.seed, file=given.file)
        count = work_on(search, lambda p: train_widths(p, scale, given.seed), given.trainings)
    except ArchlearnError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    best = min(search.history(), key=lambda training: training.objective)
    widths = "-".join(str(best.widths[layer]) for layer in WIDTHS)
    sys.stdout.write(f"{count} trainings here, {len(search.history())} in all; ")
    sys.stdout.write(f"best: {widths} with an objective of {best.objective:.4f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
