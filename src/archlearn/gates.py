"""Gates are real numbers while they learn and binary whenever they act."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

THRESHOLD = 0.5


def is_open(gate: Tensor) -> Tensor:
    """Return whether each gate has reached one half."""
    return gate.detach() >= THRESHOLD


def binarise(gate: Float[Tensor, "*gates"]) -> Float[Tensor, "*gates"]:
    """Return 1 where a gate has reached one half, and 0 elsewhere.

    The gradient is that of the identity, so a gate keeps moving between the rare steps at
    which its binary value flips. For gates in [0, 1] the result is exactly 0 or 1.
    """
    binary = (gate >= THRESHOLD).to(gate.dtype)
    return gate + (binary - gate).detach()


def open_gates(gate: Float[Tensor, " gates"]) -> Float[Tensor, " gates"]:
    """Return binarised gates of which at least one is open, whatever they say.

    If none has reached one half, the largest is open (the first of several): a layer that
    lost all its channels would end the network.
    """
    is_kept = (gate >= THRESHOLD).scatter(0, gate.argmax(0, keepdim=True), True)
    return gate + (is_kept.to(gate.dtype) - gate).detach()


def act_gates(gates: Sequence[Tensor], rows: Tensor) -> tuple[Tensor, ...]:
    """Return all gates of a model as they act, in the shapes they have.

    All at once is a few operations, however many gates there are. The gradient is that of the
    identity.

    Args:
        gates: The gates of each group, and whatever else is to be binarised.
        rows: As in `open_flat`.
    """
    flat = join_gates(gates)
    acting = flat + (open_flat(flat, rows) - flat).detach()
    pieces = acting.split([gate.numel() for gate in gates])
    return tuple(
        piece if gate.dim() == 1 else piece.view(gate.shape)
        for piece, gate in zip(pieces, gates, strict=True)
    )


def open_flat(flat: Float[Tensor, " gates"], rows: Tensor) -> Float[Tensor, " gates"]:
    """Return which of all gates act, as numbers without a gradient.

    Args:
        flat: All gates, one behind the other.
        rows: A row for each group of which one gate at least is open, as in `open_gates`: where
            its gates stand among all. Short rows repeat their first place at the end.
    """
    flat = flat.detach()
    binary = (flat >= THRESHOLD).to(flat.dtype)
    if not len(rows):
        return binary
    largest = rows.gather(1, flat.take(rows).argmax(1, keepdim=True))
    return binary.scatter_(0, largest.view(-1), 1.0)


def join_gates(gates: Sequence[Tensor]) -> Float[Tensor, " gates"]:
    """Return gates of any shape one behind the other."""
    return torch.cat([gate if gate.dim() == 1 else gate.view(-1) for gate in gates])
