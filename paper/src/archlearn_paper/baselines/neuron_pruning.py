"""Data-free neuron merging (Srinivas and Babu 2015).

Neuron i computes `a_i act(W_i x + b_i)` towards each neuron behind it. If `W_i` is near `W_j`,
then j can go, and `a_j` is added to `a_i`. What that changes is bounded by the saliency
`||a_j||^2 (||W_i - W_j||^2 + (b_i - b_j)^2)`, which needs no data (Srinivas and Babu 2015,
"Data-free parameter pruning for deep neural networks").

The weights are rewritten on a copy, the gates of the neurons that went are closed, and `compact`
takes them out. Convolutions are merged by whole channels.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from archlearn.errors import InputError
from archlearn.gating.parameters import width_gates
from archlearn.surgery.compaction import compact
from archlearn_paper.baselines import parameter_budget


class Neurons:
    """The neurons of one layer, merged pair by pair; a merged one tells those behind it nothing."""

    def __init__(self, incoming: Tensor, outgoing: Tensor) -> None:
        """Take one row a neuron: its weights and bias, and the weights by which it is read."""
        self.outgoing = outgoing.detach().double().clone()
        self.is_kept = torch.ones(len(incoming), dtype=torch.bool)
        rows = incoming.detach().double()
        self._distances = torch.cdist(rows, rows).square().fill_diagonal_(torch.inf)
        self._distance, self._partner = self._distances.min(1)
        self._weight = self.outgoing.square().sum(1)
        self._energy = (self._weight * rows.square().sum(1)).sum().clamp_min(1e-300).item()

    def __len__(self) -> int:
        """Return how many neurons are left."""
        return int(self.is_kept.sum())

    def saliency(self) -> float:
        """Return the saliency of the next merge."""
        return self._saliencies().min().item()

    def harm(self) -> float:
        """Return the saliency of the next merge as a part of what the whole layer says."""
        return self.saliency() / self._energy

    def close(self) -> None:
        """Merge the two neurons that are most alike."""
        gone = int(self._saliencies().argmin())
        heir = int(self._partner[gone])
        self.outgoing[heir] += self.outgoing[gone]
        self.outgoing[gone] = 0.0
        self._weight[heir] = self.outgoing[heir].square().sum()
        self.is_kept[gone] = False
        self._distances[:, gone] = torch.inf
        self._distance[gone] = torch.inf
        for orphan in torch.nonzero(self.is_kept & (self._partner == gone)).flatten().tolist():
            self._distance[orphan], self._partner[orphan] = self._distances[orphan].min(0)

    def _saliencies(self) -> Tensor:
        """Return what it costs to merge each neuron into the one nearest to it."""
        costs = self._weight * self._distance
        return torch.where(self.is_kept, costs, torch.inf).nan_to_num(nan=torch.inf)


def reduce_by_merging(model: nn.Module, example: Tensor, budget: int) -> nn.Module:
    """Return the model with like neurons merged, down to a number of parameters.

    Over all layers, the next merge is the one whose saliency, as a part of what its layer says to
    the next, is least.
    """
    gated = parameter_budget.gate_widths(model, example)
    layers = {name: _neurons(gated, name) for name in width_gates(gated)}
    parameter_budget.prune_until_budget(
        parameter_budget.ParameterCounts(gated), list(layers.values()), budget
    )
    return _carry_out(gated, layers)


def _neurons(gated: nn.Module, group: str) -> Neurons:
    slices = parameter_budget.find_slices(gated, group)
    rows, columns = ([_by_neuron(part) for part in slices if part.dim == dim] for dim in (0, 1))
    if not rows or not columns:
        raise InputError(
            f"the neurons of {group!r} cannot be merged: no plain layer writes them, or none reads "
            "them; leave that layer alone"
        )
    return Neurons(torch.cat(rows, 1), torch.cat(columns, 1))


def _by_neuron(part: parameter_budget.GroupSlice) -> Tensor:
    """Return one row a neuron: all that a tensor holds for it along a dimension."""
    lines = part.tensor.detach().movedim(part.dim, 0)
    n_neurons = int(part.channel.max()) + 1
    return lines[torch.argsort(part.channel, stable=True)].reshape(n_neurons, -1)


@torch.no_grad()
def _carry_out(gated: nn.Module, layers: Mapping[str, Neurons]) -> nn.Module:
    gates = width_gates(gated)
    for name, neurons in layers.items():
        start = 0
        for column in (part for part in parameter_budget.find_slices(gated, name) if part.dim == 1):
            size = column.tensor.numel() // len(neurons.outgoing)
            _write(column, neurons.outgoing[:, start : start + size])
            start += size
        gates[name].copy_(neurons.is_kept)
    return compact(gated)


def _write(column: parameter_budget.GroupSlice, outgoing: Tensor) -> None:
    order = torch.argsort(column.channel, stable=True)
    moved = column.tensor.data.movedim(1, 0)
    lines = outgoing.reshape(len(order), *moved.shape[1:]).to(moved)
    moved[order] = lines
