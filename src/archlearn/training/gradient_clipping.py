"""Gradients are bounded, so that one odd batch neither throws the weights off nor flips a gate.

The paper's supplement assumes such a bound, the "maximum step size (due to gradient clipping)".
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from archlearn.training.optimizers import Optimisers
from archlearn.training.weight_updates import cut_evenly


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
    """Bring gradients within their limits: weights by a common factor, gates one by one.

    An optimiser whose update is fused divides by the factor itself, on the way.
    """
    weights, *gates = optimisers
    gradients = _gradients(weights)
    if limits.norm is not None and gradients:
        excess = _excess(gradients, limits.norm)
        if weights.defaults.get("fused"):
            vars(weights)["grad_scale"] = excess
        else:
            torch._foreach_div_(gradients, excess)
    for optimiser in gates:
        if limits.gate is not None:
            gradients = _gradients(optimiser)
            torch._foreach_clamp_min_(gradients, -limits.gate)
            torch._foreach_clamp_max_(gradients, limits.gate)


def _excess(gradients: list[Tensor], norm: float) -> Tensor:
    """Return by how much the norm of all gradients is too large, 1 if it is not."""
    if gradients[0].is_cuda:
        (gradients,) = cut_evenly(gradients)
    norms = torch.stack(torch._foreach_norm(gradients))
    return (torch.linalg.vector_norm(norms) / norm).clamp_(min=1.0)


def _gradients(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
