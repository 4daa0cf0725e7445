"""A learnt factor for every neuron, in front of each activation: L1 and L0 penalties.

L1: a layer computes `act(D (W x + b))`; the penalty `strength * sum |D|` draws entries of D to
zero, and neurons below a threshold go (Kulkarni, Zepeda, Jurie, Perez and Chevallier 2015,
"Learning the structure of deep architectures using L1 regularization"): the paper's closest
relative, with real numbers where the paper has binary ones.

L0: a factor is drawn anew in every step, often exactly 0 or 1, and the penalty is the expected
number of those that are not 0 (Louizos, Welling and Kingma 2018, "Learning sparse neural networks
through L0 regularization"; log alpha stays within ±log 100, as in its authors' code).

What is left of the factors goes into W and b, and the rows that go are taken out exactly.
"""

import copy
import math
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from archlearn.errors import InputError
from archlearn.gating.parameters import width_gates
from archlearn_paper.baselines import parameter_budget

Penalty = Literal["l1", "l0"]
LOWEST, HIGHEST, TEMPERATURE = -0.1, 1.1, 2 / 3
"""Draws are stretched to this interval before they are clipped to [0, 1]."""
MOST_LOG_ODDS = math.log(100.0)
LOG_ODDS_OF_A_UNIT = 5.0
"""Log odds that a unit of the learnt number stands for: with the rate of the weights they move as
fast as gates of a rate of their own did."""


class _AddPenaltyGradient(torch.autograd.Function):
    """The identity on outputs; the penalty's gradient is one, whatever theirs is.

    Just as if it had been added to the loss, so such a method needs no loop of its own.
    """

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, penalty: Tensor) -> Tensor:
        ctx.save_for_backward(penalty)
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (penalty,) = ctx.saved_tensors
        return grads[0], torch.ones_like(penalty)


class Penalised(nn.Module):
    """A network whose penalty is added to the loss in training mode; take it out at the end."""

    def __init__(self, network: nn.Module, penalty: nn.Module) -> None:
        """Take a network, and what returns a number when it is called with the network."""
        super().__init__()
        self.network = network
        # No submodule: a penalty is no part of the model, and is not saved with it.
        self._penalty = (penalty,)

    @property
    def penalty(self) -> nn.Module:
        """What returns the penalty of a network, on the network's device."""
        reference = next(self.network.parameters())
        return self._penalty[0].to(reference.device)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the network returns."""
        outputs = self.network(x)
        # While the model is traced, outputs are no tensors, and the penalty is no part of it.
        is_traced = isinstance(outputs, fx.Proxy)
        if is_traced or not (self.training and torch.is_grad_enabled()):
            return outputs  # pyright: ignore[reportReturnType]
        return _AddPenaltyGradient.apply(outputs, self.penalty(self.network))


class Scaled(nn.Module):
    """A linear layer, convolution or BatchNorm with its outputs multiplied by learnt factors.

    The diagonal is one number a channel: the factor itself, or what stands for the odds of it.
    """

    def __init__(self, layer: nn.Module, penalty: Penalty = "l1") -> None:
        super().__init__()
        self.layer = layer
        self.is_drawn = penalty == "l0"
        weight: Tensor = layer.get_parameter("weight")
        start = torch.ones_like(weight[(slice(None), *[0] * (weight.dim() - 1))])
        self.diagonal = nn.Parameter(torch.zeros_like(start) if self.is_drawn else start)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled outputs."""
        n_space = _SPACE.get(type(self.layer), 0)
        return self.layer(x) * self.factors().reshape(-1, *[1] * n_space)

    def factors(self) -> Tensor:
        """Return what outputs are multiplied by: drawn while an L0 network trains, else settled."""
        if not self.is_drawn:
            return self.diagonal
        odds = self.log_odds()
        if self.training:
            tiny = torch.finfo(odds.dtype).eps
            noise = torch.rand_like(odds).clamp(tiny, 1 - tiny)
            odds = (torch.logit(noise) + odds) / TEMPERATURE
        return (torch.sigmoid(odds) * (HIGHEST - LOWEST) + LOWEST).clamp(0.0, 1.0)

    def log_odds(self) -> Tensor:
        """Return log alpha within its bounds; the gradient is that of the unbounded one."""
        odds = LOG_ODDS_OF_A_UNIT * self.diagonal
        return odds + (odds.clamp(-MOST_LOG_ODDS, MOST_LOG_ODDS) - odds).detach()

    def cost(self) -> Tensor:
        """Return the sum of magnitudes, or the number of factors expected not to be 0."""
        if not self.is_drawn:
            return self.diagonal.abs().sum()
        shift = TEMPERATURE * math.log(-LOWEST / HIGHEST)
        return torch.sigmoid(self.log_odds() - shift).sum()

    def importance(self) -> Tensor:
        """Return what neurons are ranked by."""
        return self.diagonal if self.is_drawn else self.diagonal.abs()


_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_SPACE: dict[type[nn.Module], int] = {
    nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3, nn.BatchNorm2d: 2, nn.BatchNorm3d: 3,
}  # fmt: skip
"""Dimensions of a layer's outputs that stand behind the channels; 0 for all others."""


def _largest(importance: Tensor, gate: Tensor, n_gates: int) -> Tensor:
    """Return the largest importance for each gate, of rows that belong to these gates."""
    return importance.new_full((n_gates,), -torch.inf).scatter_reduce(0, gate, importance, "amax")


class _FactorPenalty(nn.Module):
    """The cost of all factors, times a strength."""

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.strength = strength

    def forward(self, network: nn.Module) -> Tensor:
        costs = [scaled.cost() for scaled in scaled_layers(network).values()]
        return self.strength * torch.stack(costs).sum()


def add_diagonals(
    model: nn.Module, example: Tensor, strength: float, penalty: Penalty = "l1"
) -> Penalised:
    """Return a copy with a factor behind every layer that can be narrowed, and its penalty.

    Each unit of a diagonal, or each factor that is not 0, adds `strength` to the loss.
    """
    network = copy.deepcopy(model)
    for layer, _ in writers(model, example).values():
        network.set_submodule(layer, Scaled(network.get_submodule(layer), penalty))
    return Penalised(network, _FactorPenalty(strength))


def scaled_layers(network: nn.Module) -> dict[str, Scaled]:
    """Return the layers with factors, by name."""
    return {n: m for n, m in network.named_modules() if isinstance(m, Scaled)}


@torch.no_grad()
def fold_diagonals(network: nn.Module) -> nn.Module:
    """Return the network without factors that computes the same when nothing is drawn."""
    folded = copy.deepcopy(network).eval()
    for name, scaled in scaled_layers(folded).items():
        factors = scaled.factors()
        for parameter in scaled.layer.parameters(recurse=False):
            parameter.mul_(factors.reshape(-1, *[1] * (parameter.dim() - 1)))
        folded.set_submodule(name, scaled.layer)
    return folded


@torch.no_grad()
def reduce_by_diagonals(network: nn.Module, example: Tensor, budget: int) -> nn.Module:
    """Return the plain network whose neurons are those above the threshold that fits a budget.

    `network` is that of what `add_diagonals` returned, trained.
    """
    scaled = scaled_layers(network)
    plain = fold_diagonals(network)
    gated = parameter_budget.gate_widths(plain, example)
    gates = width_gates(gated)
    harms = {
        group: _largest(scaled[layer].importance(), gate, len(gates[group]))
        for group, (layer, gate) in writers(plain, example).items()
    }
    return parameter_budget.prune_to_budget(gated, harms, budget)


@torch.no_grad()
def count_left(network: nn.Module, example: Tensor) -> int:
    """Return the parameters that a network with diagonals has without the neurons at factor 0."""
    settled = copy.deepcopy(network).eval()
    scaled, plain = scaled_layers(settled), fold_diagonals(settled)
    gated = parameter_budget.gate_widths(plain, example)
    gates, kept = width_gates(gated), list[int]()
    for group, (layer, gate) in writers(plain, example).items():
        factors = _largest(scaled[layer].factors().abs(), gate, len(gates[group]))
        kept.append(max(1, int((factors > 0).sum())))
    return parameter_budget.ParameterCounts(gated).parameters(kept)


def writers(model: nn.Module, example: Tensor) -> dict[str, tuple[str, Tensor]]:
    """Return what writes each group of channels last, and the gate of each of its rows."""
    gated = parameter_budget.gate_widths(model, example)
    layers: dict[str, tuple[str, Tensor]] = {}
    for group in width_gates(gated):
        rows = {
            part.name.removesuffix(".weight"): part.channel
            for part in parameter_budget.find_slices(gated, group)
            if part.dim == 0 and part.name.endswith(".weight")
        }
        norms = [n for n in rows if isinstance(model.get_submodule(n), _NORMS)]
        last = norms or list(rows)
        if len(last) != 1:
            raise InputError(
                f"the channels of {group!r} are written by {', '.join(rows) or 'nothing'}; a "
                "diagonal needs one layer that writes them: use a network without sums of layers"
            )
        layers[group] = last[0], rows[last[0]]
    return layers
