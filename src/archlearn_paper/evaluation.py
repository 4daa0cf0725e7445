"""Measure a network as it is: costs, scores on all splits, time of a forward pass."""

import copy
import functools
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from archlearn.data.dataset import Dataset
from archlearn.data.downloads import no_progress
from archlearn.training.config import to_table
from archlearn.training.metrics import costs_of, evaluate
from archlearn.training.objectives import objective_of
from archlearn.training.run_setup import load_dataset
from archlearn.training.settings import RunSettings
from archlearn_paper.experiment import Evaluation
from archlearn_paper.outcomes import widths_of


def evaluate_work(work: Evaluation) -> dict[str, Any]:
    """Return what an outcome of training would say, of a network that is not trained."""
    dataset = find_dataset(work.settings)
    device = best_device()
    network = copy.deepcopy(work.network).to(device)
    objective = objective_of(dataset).to(device)
    train = evaluate(network, dataset.train, objective)
    aside = dataset.validation
    validation = evaluate(network, aside, objective) if len(aside) else None
    test = evaluate(network, dataset.test, objective)
    example = objective_of(dataset).inputs(dataset.train.inputs[:2])
    costs, widths = costs_of(work.network, example), widths_of(work.network)
    return {
        "row": work.row,
        "seed": work.settings.seed,
        "settings": to_table(work.settings),
        "architecture": "-".join(map(str, widths.values())),
        "widths": widths,
        "n_layers": len(widths),
        "parameters": costs.parameters,
        "multiply_adds": costs.multiply_adds,
        "train_loss": train.loss,
        "validation_loss": None if validation is None else validation.loss,
        "validation_accuracy": None if validation is None else validation.accuracy,
        "test_loss": test.loss,
        "test_accuracy": test.accuracy,
        "epochs": 0,
        "seconds": 0.0,
    }


@functools.lru_cache(maxsize=2)
def _load(settings: RunSettings) -> Dataset:
    return load_dataset(settings, no_progress)


def find_dataset(settings: RunSettings) -> Dataset:
    """Return the data set of a run, loaded once."""
    names = ("data", "validation", "limit", "classes", "resize")
    return _load(RunSettings(**{name: getattr(settings, name) for name in names}))


N_BATCHES, BATCH_SIZE = 30, 100
"""What a channel is worth is measured on many small batches: the square of a batch's gradient says
more of it the smaller the batch is."""


def list_losses(settings: RunSettings, model: nn.Module) -> Iterator[Tensor]:
    """Yield the losses of a model on some batches of the train data of a run."""
    dataset = find_dataset(settings)
    objective, train = objective_of(dataset), dataset.train
    for place in range(min(N_BATCHES, max(1, len(train.inputs) // BATCH_SIZE))):
        part = slice(place * BATCH_SIZE, (place + 1) * BATCH_SIZE)
        yield objective.loss(model(objective.inputs(train.inputs[part])), train.targets[part])


def best_device() -> torch.device:
    """Return a GPU where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


_TURNS = 9
_WARM_UP = 2
_BATCHES = {"cpu": 16, "cuda": 256}


def time_side_by_side(first: nn.Module, second: nn.Module, example: Tensor) -> dict[str, Any]:
    """Return the median time of a forward pass of both, in milliseconds, by device.

    Turns alternate, so that a busy moment of the machine meets both.
    """
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    return {name: _time_on(torch.device(name), first, second, example) for name in devices}


@torch.no_grad()
def _time_on(
    device: torch.device, first: nn.Module, second: nn.Module, example: Tensor
) -> dict[str, Any]:
    batch = _BATCHES[device.type]
    # Zeros would be multiplied faster than numbers are.
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, *example.shape[1:], generator=generator).to(device)
    networks = [copy.deepcopy(network).to(device).eval() for network in (first, second)]
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(_WARM_UP + _TURNS):
        for network, spent in zip(networks, times, strict=True):
            seconds = _time(network, x)
            if turn >= _WARM_UP:
                spent.append(1000 * seconds)
    medians = [statistics.median(spent) for spent in times]
    return {
        "batch": batch,
        "threads": torch.get_num_threads(),
        "reference_ms": round(medians[0], 3),
        "own_ms": round(medians[1], 3),
        "ratio": round(medians[1] / medians[0], 4),
    }


def _time(network: nn.Module, x: Tensor) -> float:
    _wait(x)
    started = time.perf_counter()
    network(x)
    _wait(x)
    return time.perf_counter() - started


def _wait(x: Tensor) -> None:
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)
