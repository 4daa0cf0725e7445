"""A neuron is redundant if the loss does not rise when it is removed."""

import copy
from typing import Any

import torch
from torch import nn

from archlearn.training.evaluation import evaluate
from archlearn.training.objectives import objective_of
from archlearn.training.settings import RunSettings
from archlearn_paper.evaluation import best_device, find_dataset

_PROBE_SEED = 7


@torch.no_grad()
def measure_removals(network: nn.Module, settings: RunSettings, n_examples: int) -> dict[str, Any]:
    """Return the train loss, and its rise without each single hidden neuron.

    Weights and bias of a neuron are set to zero: what an activation with `act(0) = 0` then gives
    is zero too. The loss is that on always the same part of the train examples.

    Args:
        network: A plain chain of layers; it is left alone.
        settings: Of the run that learnt it: they say which data.
        n_examples: How many train examples are used.
    """
    dataset, device = find_dataset(settings), best_device()
    generator = torch.Generator().manual_seed(_PROBE_SEED)
    order = torch.randperm(len(dataset.train), generator=generator)
    split = dataset.train.take(order[:n_examples].sort().values).to(device)
    objective = objective_of(dataset).to(device)
    probed = copy.deepcopy(network).to(device)
    loss = evaluate(probed, split, objective).loss
    rises: list[float] = []
    for layer in hidden_layers(probed):
        for neuron in range(layer.weight.shape[0]):
            kept = _remove_(layer, neuron)
            rises.append(evaluate(probed, split, objective).loss - loss)
            _restore_(layer, neuron, kept)
    return {"loss": loss, "n_examples": len(split), "rises": rises}


def hidden_layers(network: nn.Module) -> list[nn.Linear | nn.Conv2d]:
    """Return all layers with weights but the last."""
    layers = [m for m in network.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    return layers[:-1]


def _remove_(layer: nn.Linear | nn.Conv2d, neuron: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Set what makes a neuron to zero, and return what it was."""
    bias = None if layer.bias is None else layer.bias[neuron].clone()
    kept = layer.weight[neuron].clone(), bias
    layer.weight[neuron] = 0
    if layer.bias is not None:
        layer.bias[neuron] = 0
    return kept


def _restore_(
    layer: nn.Linear | nn.Conv2d, neuron: int, kept: tuple[torch.Tensor, torch.Tensor | None]
) -> None:
    weight, bias = kept
    layer.weight[neuron] = weight
    if layer.bias is not None and bias is not None:
        layer.bias[neuron] = bias
