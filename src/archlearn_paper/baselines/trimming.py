"""A model a little above its budget loses the channels that the loss notices least.

A gate that stands open is pulled by the loss: its gradient is, to first order, what closing it
would change. The mean square of that over batches is the channel's worth (Molchanov et al. 2019,
"Importance estimation for neural network pruning").
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from archlearn.gating.attach import add_gates
from archlearn.gating.learn import Learn
from archlearn.gating.parameters import width_gates
from archlearn.surgery.compaction import compact
from archlearn_paper.baselines.budget import Ranked, Sizes, close_to_budget

Losses = Callable[[nn.Module], Iterable[Tensor]]
"""Gives the losses of a model on batches, one after the other."""


def trim(model: nn.Module, example: Tensor, budget: int, losses: Losses) -> nn.Module:
    """Return a model narrowed to a budget; where it is small enough, a copy that computes the same.

    Args:
        model: A plain model, in whose evaluation mode worth is measured; it is left alone.
        example: Inputs of one call.
        budget: The number of parameters wanted.
        losses: Gives the losses on batches of train data.

    Raises:
        BudgetError: If the model cannot be brought to the budget.
    """
    gated = add_gates(model, example, learn={"*": Learn.WIDTH}, width_start=1.0).eval()
    candidates = {name: Ranked(worth) for name, worth in measure_worth(gated, losses).items()}
    # By the channel, not by the parameter: that took most of a layer whose channels are dear, and
    # lost more on validation data.
    close_to_budget(Sizes(gated), list(candidates.values()), budget, per_parameter=False)
    with torch.no_grad():
        for name, gate in width_gates(gated).items():
            gate[candidates[name].closed()] = 0.0
    return compact(gated).train(model.training)


def measure_worth(gated: nn.Module, losses: Losses) -> dict[str, Tensor]:
    """Return the mean square of every gate's gradient over batches, by group."""
    gates = width_gates(gated)
    worth = {name: torch.zeros_like(gate) for name, gate in gates.items()}
    n_batches = 0
    for loss in losses(gated):
        gradients = torch.autograd.grad(loss, list(gates.values()))
        for name, gradient in zip(gates, gradients, strict=True):
            worth[name] += gradient.detach().square()
        n_batches += 1
    return {name: total / max(1, n_batches) for name, total in worth.items()}
