"""Train a learnt architecture from scratch: the paper's NN column."""

import copy
from typing import Any

import torch
from torch import nn

from archlearn.errors import InputError


def start_anew(model: nn.Module, seed: int) -> nn.Module:
    """Return a copy of a model with the weights and buffers of a fresh one.

    Every layer's own `reset_parameters` is called, in the order of the modules, with torch's
    generators seeded and afterwards as they were.

    Args:
        model: A compact or any other plain model; it is left alone.
        seed: Decides the weights.

    Raises:
        InputError: If a layer with parameters of its own does not say how they start.
    """
    for name, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        if own and not hasattr(module, "reset_parameters"):
            raise InputError(
                f"{name or 'the model'!r}, a {type(module).__name__}, has parameters but no "
                "reset_parameters(); give its class one"
            )
    made = copy.deepcopy(model)
    devices = [p.device for p in made.parameters() if p.is_cuda][:1]
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        for module in made.modules():
            reset: Any = getattr(module, "reset_parameters", None)
            if reset is not None:
                reset()
    return made
