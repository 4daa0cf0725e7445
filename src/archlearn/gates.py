"""Gates are real numbers while they learn and binary whenever they act."""

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
