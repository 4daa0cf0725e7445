"""Weights have the optimiser that was asked for; gates have plain SGD with a rate of their own."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from archlearn.gating.parameters import depth_gates, parameter_groups, width_gates
from archlearn.optim.gate_optimizer import GateOptimizer
from archlearn.training.schedules import Schedule
from archlearn.training.settings import OptimiserSettings

Optimisers = tuple[torch.optim.Optimizer, ...]


def has_gates(model: nn.Module) -> bool:
    """Return whether there is anything to learn of the architecture."""
    return bool(width_gates(model)) or bool(depth_gates(model))


def make_optimisers(
    model: nn.Module,
    settings: OptimiserSettings,
    gates: GateOptimizer | None = None,
    *,
    on_device: bool = False,
) -> Optimisers:
    """Return the optimiser of the weights and, if there are gates, that of the gates.

    Args:
        model: The model, with gates or without.
        settings: How the weights are learnt.
        gates: What learns the gates to a budget; left out, plain SGD does, by a penalty.
        on_device: Whether the step must not ask anything of the host.
    """
    decay = settings.weight_decay
    if not has_gates(model):
        groups: list[dict[str, Any]] = [{"params": list(model.parameters()), "weight_decay": decay}]
    else:
        groups = parameter_groups(model, lr=0.0, gate_lr=0.0, weight_decay=decay)
    weights = _optimiser_of_weights(groups[0], settings, on_device=on_device)
    # A rate may be a tensor on the device only where the update is fused.
    fused = True if on_device else None
    if gates is not None:
        return weights, gates
    return weights, *(torch.optim.SGD(g["params"], lr=0.0, fused=fused) for g in groups[1:])


def _optimiser_of_weights(
    group: dict[str, Any], settings: OptimiserSettings, *, on_device: bool
) -> torch.optim.Optimizer:
    decay = group["weight_decay"]
    fused = True if on_device else None
    if settings.optimiser == "adam":
        return torch.optim.AdamW(
            group["params"], lr=0.0, weight_decay=decay, fused=fused, capturable=on_device
        )
    return torch.optim.SGD(
        group["params"], lr=0.0, momentum=settings.momentum, weight_decay=decay, fused=fused
    )


def set_rates_(optimisers: Sequence[torch.optim.Optimizer], schedule: Schedule, step: int) -> None:
    """Set the rates of weights and gates to those of a step."""
    rates = (schedule.weight_rate(step), schedule.gate_rate_at(step))
    for optimiser, rate in zip(optimisers, rates, strict=False):
        for group in optimiser.param_groups:
            group["lr"] = rate
