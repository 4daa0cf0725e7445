"""A layer that has fewer connections needs less dropout.

As in Han et al. (2015), "Learning both weights and connections for efficient neural networks": the
rate behind a layer is the original one times the square root of the share of its connections that
is left.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from archlearn.gating.parameters import width_gates
from archlearn.nn.functional import is_open
from archlearn_paper.parameter_budget import Window


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
