"""L1-regularised diagonal in front of each activation.

A layer computes `act(D (W x + b))`; the penalty `strength * sum |D|` draws entries of D to zero,
and neurons below a threshold go (Kulkarni, Zepeda, Jurie, Perez and Chevallier 2015, "Learning the
structure of deep architectures using L1 regularization"): the paper's closest relative, with real
numbers where the paper has binary ones. What is left of D goes into W and b, and the zero rows are
taken out exactly.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from archlearn.errors import InputError
from archlearn.gating.attach import add_gates
from archlearn.gating.gate_container import find_store
from archlearn.gating.learn import Learn
from archlearn.gating.parameters import width_gates
from archlearn.surgery.compaction import compact
from archlearn_paper.baselines.budget import BudgetError, ParameterCounts, Ranked, close_to_budget
from archlearn_paper.baselines.penalised_module import Penalised


class Scaled(nn.Module):
    """A layer with each of its outputs multiplied by a learnt number, 1 at the start.

    Attributes:
        layer: A linear layer, a convolution or a BatchNorm.
        diagonal: One number a channel.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        weight: Tensor = layer.get_parameter("weight")
        self.diagonal = nn.Parameter(
            torch.ones_like(weight[(slice(None), *[0] * (weight.dim() - 1))])
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled outputs."""
        n_space = _SPACE.get(type(self.layer), 0)
        return self.layer(x) * self.diagonal.reshape(-1, *[1] * n_space)


_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_SPACE: dict[type[nn.Module], int] = {
    nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3, nn.BatchNorm2d: 2, nn.BatchNorm3d: 3,
}  # fmt: skip
"""Dimensions of a layer's outputs that stand behind the channels; 0 for all others."""


@dataclass(frozen=True, slots=True)
class ScaledLayer:
    """A module that writes a group of channels, and the gate that each of its rows belongs to."""

    layer: str
    gate: Tensor

    def largest(self, diagonal: Tensor, n_gates: int) -> Tensor:
        """Return the largest magnitude of a diagonal for each gate."""
        return diagonal.new_zeros(n_gates).scatter_reduce(0, self.gate, diagonal.abs(), "amax")


class _Lasso(nn.Module):
    """The sum of all diagonals' magnitudes, times a strength."""

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.strength = strength

    def forward(self, network: nn.Module) -> Tensor:
        sums = [d.abs().sum() for d in diagonals(network).values()]
        return self.strength * torch.stack(sums).sum()


def add_diagonals(model: nn.Module, example: Tensor, strength: float) -> Penalised:
    """Return a copy with a diagonal behind every layer that can be narrowed, and its penalty.

    Args:
        model: Any model; it is left alone.
        example: Inputs of one call.
        strength: What each unit of a diagonal adds to the loss.

    Raises:
        InputError: If several layers write the same channels.
    """
    made = copy.deepcopy(model)
    for writer in writers(model, example).values():
        made.set_submodule(writer.layer, Scaled(made.get_submodule(writer.layer)))
    return Penalised(made, _Lasso(strength))


def diagonals(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return the diagonals of a network by the name of their layer."""
    return {n: m.diagonal for n, m in network.named_modules() if isinstance(m, Scaled)}


@torch.no_grad()
def fold_diagonals(network: nn.Module) -> nn.Module:
    """Return the network without diagonals that computes the same."""
    made = copy.deepcopy(network)
    for name in diagonals(network):
        scaled: Any = made.get_submodule(name)
        for parameter in scaled.layer.parameters(recurse=False):
            parameter.mul_(scaled.diagonal.reshape(-1, *[1] * (parameter.dim() - 1)))
        made.set_submodule(name, scaled.layer)
    return made


@torch.no_grad()
def reduce_by_diagonals(network: nn.Module, example: Tensor, budget: int) -> nn.Module:
    """Return the plain network whose neurons are those above the threshold that fits a budget.

    Args:
        network: Trained, with diagonals (the `network` of what `add_diagonals` returned).
        example: Inputs of one call.
        budget: The number of parameters wanted.
    """
    if not diagonals(network):
        raise BudgetError("the network has no diagonals; train what add_diagonals returns")
    plain = fold_diagonals(network)
    found = diagonals(network)
    gated = add_gates(plain, example, learn={"*": Learn.WIDTH}, width_start=1.0).eval()
    written_by = writers(plain, example)
    ranked = [
        Ranked(written_by[group].largest(found[written_by[group].layer], len(gate)))
        for group, gate in width_gates(gated).items()
    ]
    close_to_budget(ParameterCounts(gated), ranked, budget, per_parameter=False)
    for gate, channels in zip(width_gates(gated).values(), ranked, strict=True):
        gate[channels.closed()] = 0.0
    return compact(gated)


def writers(model: nn.Module, example: Tensor) -> dict[str, ScaledLayer]:
    """Return the module that writes each group of channels last, by the name of the group."""
    store = find_store(add_gates(model, example, learn={"*": Learn.WIDTH}))
    assert store is not None
    blueprint = store.choice.blueprint
    found: dict[str, ScaledLayer] = {}
    for group in blueprint.groups:
        rows = {
            name.removesuffix(".weight"): channels
            for (name, dim), channels in blueprint.dims.items()
            if dim == 0
            and name.endswith(".weight")
            and bool(torch.isin(channels, group.channels).all())
        }
        norms = [n for n in rows if isinstance(model.get_submodule(n), _NORMS)]
        last = norms or list(rows)
        if len(last) != 1:
            raise InputError(
                f"the channels of {group.name!r} are written by {', '.join(rows) or 'nothing'}; a "
                "diagonal needs one layer that writes them: use a network without sums of layers"
            )
        place = {channel: index for index, channel in enumerate(group.channels.tolist())}
        gates = torch.tensor([place[channel] for channel in rows[last[0]].tolist()])
        found[group.name] = ScaledLayer(last[0], gates)
    return found
