"""Learn which neurons stay, given how many (FFW, fixed final width).

Gates learn as ever. After each epoch the gates of a layer are projected onto the nearest values
of which exactly so many are open: the largest ones are raised to one half where they are below,
and the others lowered below one half. The number falls from all to the given one over the first
half of the time in which gates move, so that there is time to find out which are useful.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archlearn.gating.parameters import depth_gates, width_gates
from archlearn.nn.functional import THRESHOLD
from archlearn.training.settings import RunSettings

_JUST_BELOW = THRESHOLD - 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """The architecture that is given.

    Attributes:
        widths: Neurons or channels that stay, by layer; a layer not named is left to learning.
        linear: Layers whose activation is taken away.
    """

    widths: Mapping[str, int]
    linear: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Holds the gates of a run to given numbers; called after each epoch.

    Attributes:
        first: Epoch from which the numbers fall.
        last: Epoch from which they are the given ones.
    """

    given: Given
    first: float
    last: float

    def __call__(self, model: nn.Module, epoch: int) -> None:
        """Change the gates in place."""
        done = min(1.0, max(0.0, (epoch - self.first) / max(1.0, self.last - self.first)))
        for name, gate in width_gates(model).items():
            if name in self.given.widths:
                n_kept = count_kept(gate.numel(), self.given.widths[name], done)
                gate.copy_(project(gate, n_kept))
        for name, gate in depth_gates(model).items():
            if name in self.given.linear and done > 0:
                gate.fill_(1.0)


def fix_width(given: Given, settings: RunSettings) -> Holder:
    """Return what holds the gates of a run with these settings to the given numbers."""
    assert settings.epochs is not None
    first = settings.gates.start_after * settings.epochs
    stop = (1.0 - settings.gates.freeze_for) * settings.epochs
    return Holder(given=given, first=first, last=(first + stop) / 2)


def count_kept(n_all: int, n_final: int, done: float) -> int:
    """Return how many gates stay open when a part of the way from all to the final is done."""
    return n_final + round((n_all - n_final) * (1.0 - done))


def project(gate: Tensor, n_kept: int) -> Tensor:
    """Return the nearest gates of which exactly `n_kept` are open.

    Of equal gates the first ones stay. Nothing is read back from the device.
    """
    order = torch.argsort(gate.detach(), descending=True, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=gate.device)
    opened = gate.detach().clamp_min(THRESHOLD)
    closed = gate.detach().clamp_max(_JUST_BELOW)
    return torch.where(rank < n_kept, opened, closed)
