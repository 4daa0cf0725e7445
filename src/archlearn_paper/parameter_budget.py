"""Bring a network within a number of parameters after an epoch; relax its dropout.

At one half, where gates act, a network has the size that its price led to. Where that lies outside
of a window of sizes, the cut goes to the nearest gate at which it lies inside: those that were
about to close are closed, or those that closed last are opened again.

As in Han et al. (2015), "Learning both weights and connections for efficient neural networks": the
rate behind a layer is the original one times the square root of the share of its connections that
is left.
"""

import bisect
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archlearn.gating.parameters import width_gates
from archlearn.nn.functional import THRESHOLD, is_open
from archlearn_paper.baselines.budget import ParameterCounts

logger = logging.getLogger(__name__)


_JUST_CLOSED = 0.499


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Brings a network between two numbers of parameters, as `Run.after_epoch`.

    Attributes:
        epoch: After which it is done; gates must stand still from there on.
    """

    epoch: int
    least: int
    most: int

    def __call__(self, model: nn.Module, n_done: int) -> None:
        """Cut at another place than one half, if that is needed and it is time."""
        if n_done == self.epoch:
            fit_to_window_(model, self.least, self.most)


@torch.no_grad()
def fit_to_window_(model: nn.Module, least: int, most: int) -> None:
    """Close or open gates, in the order of their values, until the size lies in the window.

    Every layer keeps its best neuron. A window that cannot be reached so leaves the gates as they
    are, with a warning.
    """
    gates = list(width_gates(model).values())
    order = _Order(model, gates)
    n_open = sum(int((gate >= THRESHOLD).sum()) for gate in gates)
    found = order.size(n_open)
    if least <= found <= most:
        return
    places = range(len(order) + 1)
    if found > most:
        n_open = bisect.bisect_right(places, most, key=order.size) - 1
    else:
        n_open = bisect.bisect_left(places, least, key=order.size)
    if not 0 <= n_open <= len(order) or not least <= order.size(n_open) <= most:
        logger.warning(
            "%d to %d parameters cannot be reached by closing neurons; %d stay", least, most, found
        )
        return
    for gate, is_kept in zip(gates, order.kept(n_open), strict=True):
        is_kept = is_kept.to(gate.device)
        gate.masked_fill_(is_kept & (gate < THRESHOLD), THRESHOLD)
        gate.masked_fill_(~is_kept & (gate >= THRESHOLD), _JUST_CLOSED)
    logger.info("brought from %d to %d parameters", found, order.size(n_open))


class _Order:
    """All neurons of a model, the one whose gate is highest first."""

    def __init__(self, model: nn.Module, gates: Sequence[Tensor]) -> None:
        self._sizes = ParameterCounts(model)
        self._lengths = [len(gate) for gate in gates]
        values = torch.cat([gate.detach().cpu() for gate in gates])
        self._group = torch.repeat_interleave(torch.tensor(self._lengths))
        self._places = values.argsort(descending=True, stable=True)
        self._best = [int(gate.argmax()) for gate in gates]

    def __len__(self) -> int:
        """Return how many neurons there are."""
        return len(self._places)

    def size(self, n_open: int) -> int:
        """Return the parameters of the model with so many neurons, the best ones."""
        groups = self._group[self._places[:n_open]]
        counts = groups.bincount(minlength=len(self._lengths)).clamp_min(1)
        return self._sizes.parameters(counts.tolist())

    def kept(self, n_open: int) -> list[Tensor]:
        """Return for each layer whether its neurons are among so many best ones."""
        is_kept = torch.zeros(len(self), dtype=torch.bool)
        is_kept[self._places[:n_open]] = True
        layers = list(is_kept.split(self._lengths))
        for layer, best in zip(layers, self._best, strict=True):
            layer[best] = True
        return layers


@dataclass(frozen=True, slots=True)
class Dropped:
    """A dropout, the layer it stands behind, and the layer in front of that."""

    dropout: str
    layer: str
    before: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Relaxing:
    """Brings a network into a window of sizes and relaxes its dropout, as `Run.after_epoch`."""

    window: Window
    layers: tuple[Dropped, ...]

    def __call__(self, model: nn.Module, n_done: int) -> None:
        """Do both, if it is time."""
        self.window(model, n_done)
        if n_done == self.window.epoch:
            relax_dropout_(model, self.layers)


def relax_dropout_(model: nn.Module, layers: Sequence[Dropped]) -> None:
    """Set the rates of a gated model's dropouts by the connections that its gates leave."""
    gates = width_gates(model)
    shares = {name: is_open(gate).float().mean().item() for name, gate in gates.items()}
    for each in layers:
        dropout = model.get_submodule(each.dropout)
        assert isinstance(dropout, nn.Dropout)
        left = shares.get(each.layer, 1.0) * shares.get(each.before, 1.0)
        dropout.p *= math.sqrt(left)
