"""What an experiment cannot be carried out with is refused before its first run."""

import tempfile
from pathlib import Path

from archlearn.data.registry import load_examples
from archlearn.errors import DataError, SettingsError
from archlearn.gating.attach import add_gates
from archlearn.gating.learn import Learn
from archlearn.gating.parameters import width_gates
from archlearn_paper.baselines.budget import Sizes
from archlearn_paper.baselines.interface import TOLERANCE
from archlearn_paper.comparison.protocol import Contest
from archlearn_paper.evaluation import find_dataset
from archlearn_paper.experiment import Experiment
from archlearn_paper.scale import Scale

MNIST = "mnist"


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be written, before the first run and not after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SettingsError(
            f"results cannot be written into {folder} ({error.strerror}); choose another folder "
            "with --out"
        ) from error


def check_time(experiment: Experiment, within: float | None) -> None:
    """Refuse to stop early where nothing can be made of a part of the runs."""
    if within is not None and not experiment.shows_part:
        raise SettingsError(
            f"{experiment.name} was asked for within {within:g} s, but it needs all "
            "its runs; leave the time out: stopped, it goes on where it was"
        )


def check_data(scale: Scale) -> None:
    """Refuse to call results MNIST's that are those of the digits that stand in for it."""
    if scale.data == MNIST and load_examples(MNIST).name != MNIST:
        raise DataError(
            "MNIST could not be had, and results on other digits would not be those of the paper; "
            "put its four files into the cache or a folder and say --data idx:DIR, or say "
            "--data digits:28 to run on scikit-learn's"
        )


def check_contest(contest: Contest) -> None:
    """Refuse data without classes and budgets out of reach, before anything is trained.

    Raises:
        SettingsError: If a budget is below the network with a channel a layer, or not below the
            whole network.
        DataError: If the data have no classes.
    """
    if find_dataset(contest.plain(0, 1)).task == "regression":
        raise DataError(
            f"{contest.scale.data!r} is a regression, but results state an accuracy; choose data "
            "with classes (archlearn data lists them)"
        )
    network, example = contest.fresh_network(0), contest.example()
    gated = add_gates(network, example, learn={"*": Learn.WIDTH}, width_start=1.0)
    least = Sizes(gated).parameters([1] * len(width_gates(gated)))
    most = sum(parameter.numel() for parameter in network.parameters())
    for budget in contest.budgets:
        if least > (1 + TOLERANCE) * budget or budget >= most:
            raise SettingsError(
                f"--budget {budget:,}: {contest.model} has {most:,} parameters, and {least:,} with "
                "one channel in each layer; choose budgets in between"
            )
