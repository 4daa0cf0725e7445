"""Hard concrete gates (L0 regularisation): in [0, 1], often exactly 0 or 1.

The other known way of learning widths: a gate is drawn anew in each training step, with a gradient
towards the odds of its being open, and the penalty is the expected number of open gates (Louizos,
Welling and Kingma 2018, "Learning sparse neural networks through L0 regularization").

The learnt number lies in [0, 1] like that of our own gates, and one half means the same: a gate
below it is closed for good once training is over. It stands for the logarithm of the odds,
`log alpha = -log 11 + 10 (gate - 1/2)`.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from archlearn.nn.functional import THRESHOLD, join_gates, open_flat

TEMPERATURE = 2 / 3
LOWEST, HIGHEST = -0.1, 1.1
"""Draws are stretched to this interval before they are clipped to [0, 1]."""
CLOSING_ODDS = -math.log(-HIGHEST / LOWEST)
"""The log odds at and below which a gate is closed when nothing is drawn."""
SPAN = 10.0
"""How far the log odds go while a gate goes from 0 to 1."""
START = THRESHOLD - CLOSING_ODDS / SPAN
"""Where gates start: even odds."""


def log_odds(gate: Float[Tensor, "*gates"]) -> Float[Tensor, "*gates"]:
    """Return log alpha of gates in [0, 1]."""
    return CLOSING_ODDS + SPAN * (gate - THRESHOLD)


def draw_gates(gate: Float[Tensor, " gates"]) -> Float[Tensor, " gates"]:
    """Return one draw of every gate, with a gradient towards its odds."""
    tiny = torch.finfo(gate.dtype).eps
    noise = torch.rand_like(gate).clamp(tiny, 1 - tiny)
    draw = torch.sigmoid((torch.logit(noise) + log_odds(gate)) / TEMPERATURE)
    return _stretch(draw)


def settle_gates(
    gate: Float[Tensor, " gates"], opened: Bool[Tensor, " gates"]
) -> Float[Tensor, " gates"]:
    """Return the gates as they act when nothing is drawn: 0 below one half.

    One below that is `opened` nevertheless, lest its layer be lost, is 1.
    """
    settled = _stretch(torch.sigmoid(log_odds(gate)))
    return torch.where(gate < THRESHOLD, opened, settled)


def count_expected(gate: Float[Tensor, "*gates"]) -> Float[Tensor, "*gates"]:
    """Return the probability that each gate is not 0 in a draw."""
    return torch.sigmoid(log_odds(gate) - TEMPERATURE * math.log(-LOWEST / HIGHEST))


def act_concrete(gates: Sequence[Tensor], rows: Tensor, *, training: bool) -> tuple[Tensor, ...]:
    """Return all gates of a model as they act: drawn while training, else settled.

    `rows` are those of `open_flat`.
    """
    flat = join_gates(gates)
    acting = draw_gates(flat) if training else settle_gates(flat, open_flat(flat, rows))
    return acting.split([gate.numel() for gate in gates])


def _stretch(draw: Tensor) -> Tensor:
    return (draw * (HIGHEST - LOWEST) + LOWEST).clamp(0.0, 1.0)
