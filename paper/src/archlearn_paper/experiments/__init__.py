"""The experiments by name, listed without importing torch."""

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING

from archlearn.errors import SettingsError, did_you_mean

if TYPE_CHECKING:
    from archlearn_paper.experiment import Experiment

TITLES = {
    "figure-1b": "the l2 and the binarising regulariser in one dimension; nothing is trained",
    "table-1": "LeNet on MNIST: learnt widths and depth, against the same network from scratch",
    "table-2": "compressing layer 3 by SVD, with and without fine-tuning, against learning",
    "figure-3a": "number of neurons against iterations, for several lambda 1 and lambda 3",
    "figure-3b": "neurons and error for 2 to 10 classes; then for more examples of all classes",
    "table-3": "20-50-(75 x n)-10: the depth that is learnt from 6 to 15 layers",
    "properties": "no neuron is redundant, weights are as good as from scratch",
    "figure-4": "trainings that Bayesian optimisation needs to match one that learns its widths",
    "table-4": "CaffeNet, pretrained, then learnt smaller; neuron pruning, SVD, Fastfood beside it",
    "regression": "five sets of UCI: learnt width and depth, unlearnt, and boosted trees",
    "ablation": "the paper's own recipe, one setting changed at a time, on two networks",
}

GPU_MINUTES = {
    "figure-1b": 0, "table-1": 25, "table-2": 8, "figure-3a": 2, "figure-3b": 6, "table-3": 2,
    "properties": 2, "figure-4": 6, "table-4": 60, "regression": 2, "ablation": 4,
}  # fmt: skip
"""Estimates for one H200, from the seconds that earlier runs took and how many there are now."""


def list_experiments() -> str:
    """Return a line for each experiment: its name, what it shows, and what it takes."""
    width = max(map(len, TITLES))
    return "".join(
        f"{name:{width}}  {title} (about {GPU_MINUTES[name]} min on an H200)\n"
        for name, title in TITLES.items()
    )


def find_experiment(name: str) -> "Experiment":
    """Return an experiment by its name."""
    check_name(name)
    module = importlib.import_module(f"archlearn_paper.experiments.{name.replace('-', '_')}")
    return replace(module.EXPERIMENT, name=name, title=TITLES[name])


def check_name(name: str) -> None:
    """Refuse a name that no experiment has."""
    if name in TITLES:
        return
    hint = did_you_mean(name, TITLES)
    raise SettingsError(f"there is no experiment {name!r}; {hint}choose one of {', '.join(TITLES)}")
