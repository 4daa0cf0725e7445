"""Gradients are bounded, so that one odd batch neither throws the weights off nor flips a gate.

The paper's supplement assumes such a bound, the "maximum step size (due to gradient clipping)".
"""

from dataclasses import dataclass

import torch
from torch import nn

from archlearn.training.optimising import Optimisers


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds on gradients; None sets no bound.

    Attributes:
        norm: Largest norm of the gradient of all weights together.
        gate: Largest gradient of a single gate.
    """

    norm: float | None
    gate: float | None


@torch.no_grad()
def limit_gradients_(optimisers: Optimisers, limits: Limits) -> None:
    """Bring gradients within their limits: weights by a common factor, gates one by one."""
    weights, *gates = (_parameters(optimiser) for optimiser in optimisers)
    if limits.norm is not None:
        nn.utils.clip_grad_norm_(weights, limits.norm)
    for parameters in gates:
        if limits.gate is not None:
            nn.utils.clip_grad_value_(parameters, limits.gate)


def _parameters(optimiser: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]
