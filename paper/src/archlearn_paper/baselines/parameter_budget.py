"""Prune to a number of parameters: by a ranking, or by the size of weights.

A gate that stands open is pulled by the loss: its gradient is, to first order, what closing it
would change. The mean square of that over batches is the channel's worth (Molchanov et al. 2019,
"Importance estimation for neural network pruning").
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from archlearn.analysis.cost_model import marginal_costs
from archlearn.errors import InputError
from archlearn.gating.attach import add_gates
from archlearn.gating.gate_container import find_container
from archlearn.gating.learn import Learn
from archlearn.gating.parameters import width_gates
from archlearn.surgery.compaction import compact

if TYPE_CHECKING:
    from archlearn_paper.baselines.neuron_pruning import Neurons

BUDGET_TOLERANCE = 0.05
"""How far from the budget a model may be, as a share of it."""


class BudgetError(InputError):
    """A method cannot bring a model to a number of parameters."""


def is_within(parameters: int, budget: int) -> bool:
    """Return whether a number of parameters is near enough to a budget."""
    return abs(parameters - budget) <= BUDGET_TOLERANCE * budget


class Ranked:
    """Channels of one group, in the order in which they are best closed; harms do not change."""

    def __init__(self, harms: Tensor) -> None:
        self._harms, order = harms.detach().double().cpu().sort(stable=True)
        self._order: list[int] = order.tolist()
        self._n_closed = 0

    def __len__(self) -> int:
        """Return how many channels are open."""
        return len(self._order) - self._n_closed

    def harm(self) -> float:
        """Return how much is lost with the next channel."""
        return self._harms[self._n_closed].item()

    def close(self) -> None:
        """Close the next channel."""
        self._n_closed += 1

    def closed(self) -> list[int]:
        """Return the channels that are closed."""
        return self._order[: self._n_closed]


class ParameterCounts:
    """The parameters of a gated model as a function of how many channels each group keeps."""

    def __init__(self, gated: nn.Module) -> None:
        container = find_container(gated)
        assert container is not None
        self._table = container.cost_table()
        self.groups = tuple(container.width_gates())

    def parameters(self, kept: Sequence[int]) -> int:
        """Return the parameters of the model with so many channels in each group."""
        counts = torch.tensor(kept, dtype=torch.float64)
        table = self._table
        sizes = table.counts.double().cpu() @ counts + table.fixed.cpu()
        return round((sizes.prod(0) * table.parameters.cpu()).sum().item())

    def savings(self, kept: Sequence[int]) -> list[float]:
        """Return how many parameters go with one channel of each group."""
        counts = torch.tensor(kept).to(self._table.parameters)
        return marginal_costs(self._table, counts, self._table.parameters).tolist()


def prune_until_budget(
    sizes: ParameterCounts, candidates: "Sequence[Ranked | Neurons]", budget: int
) -> int:
    """Close channels until a budget is met, and return the number of parameters.

    At every step the channel goes whose harm is least: not per parameter, which took most of a
    layer whose channels are dear, and lost more on validation data. One that would bring the model
    below the tolerance is passed over, and each group keeps a channel.
    """
    kept = [len(group) for group in candidates]
    parameters = sizes.parameters(kept)
    while parameters > budget:
        savings = sizes.savings(kept)
        least = (1 - BUDGET_TOLERANCE) * budget
        open_to_us = [
            index
            for index, count in enumerate(kept)
            if count > 1 and savings[index] > 0 and parameters - savings[index] >= least
        ]
        if not open_to_us:
            break
        chosen = min(open_to_us, key=lambda index: candidates[index].harm())
        candidates[chosen].close()
        kept[chosen] -= 1
        parameters = sizes.parameters(kept)
    if parameters > (1 + BUDGET_TOLERANCE) * budget:
        raise BudgetError(
            f"{budget:,} parameters were asked for, but with channels closed one by one the model "
            f"still has {parameters:,}; ask for more, or learn more of its layers"
        )
    return parameters


@torch.no_grad()
def prune_to_budget(gated: nn.Module, harms: Mapping[str, Tensor], budget: int) -> nn.Module:
    """Return a gated model without the channels that matter least, down to a budget.

    Its width gates are closed where channels go; `harms` is how much is lost with each, by group.
    """
    gates = width_gates(gated)
    ranked = {name: Ranked(harms[name]) for name in gates}
    prune_until_budget(ParameterCounts(gated), list(ranked.values()), budget)
    for name, gate in gates.items():
        gate[ranked[name].closed()] = 0.0
    return compact(gated)


def gate_widths(model: nn.Module, example: Tensor) -> nn.Module:
    """Return a copy in evaluation mode with a gate, all open, for every channel that can go."""
    return add_gates(model, example, learn={"*": Learn.WIDTH}, width_start=1.0).eval()


@dataclass(frozen=True, slots=True)
class GroupSlice:
    """A dimension of a parameter that holds a group's channels alone, and which at each index."""

    name: str
    tensor: nn.Parameter
    dim: int
    channel: Tensor


def find_slices(gated: nn.Module, group: str) -> list[GroupSlice]:
    """Return the dimensions of parameters that hold a group's channels and no others."""
    container = find_container(gated)
    assert container is not None
    graph, parameters = container.channel_graph, dict(gated.named_parameters())
    channels = next(item.channels for item in graph.groups if item.name == group)
    order = torch.argsort(channels)
    return [
        GroupSlice(name, parameters[name], dim, order[torch.searchsorted(channels[order], held)])
        for (name, dim), held in graph.dims.items()
        if name in parameters and bool(torch.isin(held, channels).all())
    ]


Losses = Callable[[nn.Module], Iterable[Tensor]]
"""Gives the losses of a model on batches, one after the other."""


def prune_by_taylor(model: nn.Module, example: Tensor, budget: int, losses: Losses) -> nn.Module:
    """Return a model narrowed to a budget; where it is small enough, a copy that computes the same.

    Worth is measured in evaluation mode, by losses on train data.
    """
    gated = gate_widths(model, example)
    return prune_to_budget(gated, taylor_importance(gated, losses), budget).train(model.training)


def taylor_importance(gated: nn.Module, losses: Losses) -> dict[str, Tensor]:
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
