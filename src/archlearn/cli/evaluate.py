"""`archlearn evaluate`."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

EXAMPLES = """Examples:
  archlearn evaluate runs/a
  archlearn evaluate small.safetensors --data mnist
"""


def evaluate(
    target: Path,
    /,
    *,
    data: str | None = None,
    split: Literal["test", "validation", "train"] = "test",
    normalise: Literal["data", "imagenet"] | None = None,
    skip_broken: bool = False,
) -> None:
    """Measure a compact model on data.

    Args:
        target: A run's folder, or a file that `archlearn compact` or archlearn.save wrote.
        data: The data set; a run knows its own.
        split: The part to measure on.
        normalise: Whose mean and deviation inputs are normalised by; a run knows its own.
        skip_broken: Leave broken images out, naming each, instead of stopping.
    """
    from archlearn.data.downloads import no_progress
    from archlearn.errors import SettingsError
    from archlearn.serialization import load
    from archlearn.training.initial_model import check_fit
    from archlearn.training.metrics import evaluate as evaluate_network
    from archlearn.training.objectives import objective_of
    from archlearn.training.run_directory import COMPACT, read_run_settings
    from archlearn.training.run_setup import load_dataset
    from archlearn.training.settings import RunSettings

    path = target / COMPACT if target.is_dir() else target
    settings = read_run_settings(target) if target.is_dir() else RunSettings()
    _check(target, path, data)
    asked = replace(
        settings,
        data=data or settings.data,
        normalise=normalise or settings.normalise,
        skip_broken=skip_broken or settings.skip_broken,
    )
    dataset = load_dataset(asked, no_progress)
    if len(getattr(dataset, split)) == 0:
        raise SettingsError(
            f"{target} set no validation part apart (--validation 0); measure it on another part, "
            "as --split test"
        )
    network = load(path)
    check_fit(network, dataset, str(path))
    score = evaluate_network(network, getattr(dataset, split), objective_of(dataset))
    measured = (
        f"{score.accuracy:.2%} right"
        if score.accuracy is not None
        else f"mean squared error {score.error:.4g}"
    )
    sys.stdout.write(f"{measured}, loss {score.loss:.4f}, on {score.n_examples:,} examples\n")


def _check(target: Path, path: Path, data: str | None) -> None:
    """Refuse what cannot be measured, and say what can be."""
    from archlearn.errors import SettingsError
    from archlearn.training.checkpoint import is_checkpoint

    if is_checkpoint(target):
        raise SettingsError(
            f"{target} is the checkpoint of a run; to measure the run: archlearn evaluate "
            f"{target.parent}"
        )
    if data is None and not target.is_dir():
        raise SettingsError(f"say what to measure {target} on: --data mnist")
    if target.is_dir() and not path.is_file():
        raise SettingsError(
            f"the run {target} has no compact model yet; let it end (archlearn learn --resume "
            f"{target}), or compact it as it is: archlearn compact {target}"
        )
