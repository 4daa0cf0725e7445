"""Measure networks: scores on all splits, sizes, time of a forward pass, and a run's data."""

import copy
import functools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from archlearn.verification.speed import compare_speed
from archlearn_cli.data.dataset import Dataset
from archlearn_cli.data.file_cache import no_progress
from archlearn_cli.training.metrics import costs_of, evaluate
from archlearn_cli.training.objectives import Objective, objective_of
from archlearn_cli.training.run_setup import load_dataset
from archlearn_cli.training.settings import RunSettings, to_table
from archlearn_paper.experiment import Row, Run

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_MOST_NUMBERS = 1 << 31
"""Of all train inputs as the network sees them; of more, evenly spaced ones are scored."""
_MOST_BYTES_ON_DEVICE = 8 << 30
_FEWEST_SCORED = 1000
_OF_DATA = (
    "data", "validation", "limit", "classes", "resize", "augment", "normalise", "skip_broken",
    "start_from",
)  # fmt: skip
_CPU = torch.device("cpu")


def find_dataset(settings: RunSettings, device: torch.device = _CPU) -> Dataset:
    """Return the data set of a run, loaded once; on the device unless it is very large.

    With a limit on train examples, validation and test are scored on no more evenly spaced ones
    than that, or 1,000: else a quick run would be scored for longer than it is trained.
    """
    chosen = {name: getattr(settings, name) for name in _OF_DATA}
    return _load(replace(RunSettings(), **chosen), device)


@functools.lru_cache(maxsize=16)
def _load(settings: RunSettings, device: torch.device) -> Dataset:
    dataset = load_dataset(settings, no_progress)
    if settings.limit is not None:
        most = max(settings.limit, _FEWEST_SCORED)
        validation, test = (
            part[:: max(1, math.ceil(len(part) / most))]
            for part in (dataset.validation, dataset.test)
        )
        dataset = replace(dataset, validation=validation, test=test)
    return dataset.to(device) if dataset.train.inputs.nbytes <= _MOST_BYTES_ON_DEVICE else dataset


def evaluate_run(work: Run) -> Row:
    """Return the row of a network that is measured as it is."""
    assert work.network is not None
    dataset, device = find_dataset(work.settings), best_device()
    objective = objective_of(dataset)
    return Row(
        row=work.row,
        seed=work.settings.seed,
        settings=to_table(work.settings),
        architecture="-".join(map(str, widths_of(work.network).values())),
        epochs=0,
        seconds=0.0,
        **measure_scores(copy.deepcopy(work.network).to(device), dataset, objective.to(device)),
        **measure_sizes(work.network, objective.inputs(dataset.train.inputs[:2])),
    )


def measure_scores(network: nn.Module, dataset: Dataset, objective: Objective) -> dict[str, Any]:
    """Return losses and accuracies on all parts, as a row has them, on the objective's device."""
    # Evenly spaced train examples where scoring all would take long.
    n_numbers = len(dataset.train) * math.prod(dataset.input_shape)
    some = dataset.train[:: 1 + (n_numbers - 1) // _MOST_NUMBERS]
    train = evaluate(network, some, objective)
    aside = dataset.validation
    validation = evaluate(network, aside, objective) if len(aside) else None
    test = evaluate(network, dataset.test, objective)
    accuracy = test.accuracy
    if test.error is not None:  # of numbers the part of their variance that is explained
        accuracy = 1.0 - test.error / dataset.test.targets.var(correction=0).item()
    return {
        "train_loss": train.loss,
        "validation_loss": None if validation is None else validation.loss,
        "validation_accuracy": None if validation is None else validation.accuracy,
        "test_loss": test.loss,
        "test_accuracy": accuracy,
    }


def measure_sizes(network: nn.Module, example: Tensor) -> dict[str, Any]:
    """Return the widths and costs of a plain network, as a row has them."""
    costs, widths = costs_of(network, example), widths_of(network)
    return {
        "widths": widths,
        "n_layers": len(widths),
        "parameters": costs.parameters,
        "multiply_adds": costs.multiply_adds,
    }


def widths_of(network: nn.Module) -> dict[str, int]:
    """Return the width of every linear layer and convolution of a plain network, by name."""
    return {
        name: layer.weight.shape[0]
        for name, layer in network.named_modules()
        if isinstance(layer, _LAYERS)
    }


_N_BATCHES, _BATCH_SIZE = 30, 100
"""What a channel is worth is measured on many small batches: the square of a batch's gradient says
more of it the smaller the batch is."""


def list_losses(settings: RunSettings, model: nn.Module) -> Iterator[Tensor]:
    """Yield the losses of a model on some batches of the train data of a run."""
    dataset = find_dataset(settings)
    objective, train = objective_of(dataset), dataset.train
    for batch in range(min(_N_BATCHES, max(1, len(train.inputs) // _BATCH_SIZE))):
        part = slice(batch * _BATCH_SIZE, (batch + 1) * _BATCH_SIZE)
        yield objective.loss(model(objective.inputs(train.inputs[part])), train.targets[part])


def best_device() -> torch.device:
    """Return a GPU where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


_BATCHES = {"cpu": 16, "cuda": 256}


def time_side_by_side(first: nn.Module, second: nn.Module, example: Tensor) -> dict[str, Any]:
    """Return the median time of a forward pass of both, in milliseconds, by device."""
    times: dict[str, Any] = {}
    for kind in dict.fromkeys(("cpu", best_device().type)):
        batch = _BATCHES[kind]
        # Zeros would be multiplied faster than numbers are.
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(batch, *example.shape[1:], generator=generator)
        (speed,) = compare_speed(first, second, x, (batch,), kind)
        reference, seconds = speed.seconds
        times[kind] = {
            "batch": batch,
            "threads": torch.get_num_threads(),
            "reference_ms": round(1000 * reference, 3),
            "own_ms": round(1000 * seconds, 3),
            "ratio": round(seconds / reference, 4),
        }
    return times
