"""What an experiment cannot be carried out with is refused before its first run."""

import tempfile
from pathlib import Path

from archlearn.experiments.definitions import Experiment
from archlearn.experiments.scales import Scale
from archlearn.training.data.choosing import load_examples
from archlearn.training.errors import DataError, SettingsError

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
