"""Gradients are bounded, so that one odd batch neither throws the weights off nor flips a gate.

The paper's supplement assumes such a bound, the "maximum step size (due to gradient clipping)".
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

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
    weights, *gates = (_gradients(optimiser) for optimiser in optimisers)
    if limits.norm is not None and weights:
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(weights)))
        torch._foreach_mul_(weights, (limits.norm / (norm + 1e-6)).clamp(max=1.0))
    for gradients in gates:
        if limits.gate is not None and gradients:
            torch._foreach_clamp_min_(gradients, -limits.gate)
            torch._foreach_clamp_max_(gradients, limits.gate)


def _gradients(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    parameters = (p for group in optimiser.param_groups for p in group["params"])
    return [cast("Tensor", p.grad) for p in parameters if p.grad is not None]
