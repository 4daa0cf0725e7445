"""Straight-through binarisation of gates: real while they learn, 0 or 1 when they act."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

THRESHOLD = 0.5
_core: Any = torch._C  # has names that it does not declare


def is_open(gate: Tensor) -> Tensor:
    """Return whether each gate has reached one half."""
    return gate.detach() >= THRESHOLD


def binarise(gate: Float[Tensor, "*gates"]) -> Float[Tensor, "*gates"]:
    """Return 1 where a gate has reached one half, and 0 elsewhere.

    The gradient is that of the identity, so a gate keeps moving between the rare steps at
    which its binary value flips. For gates in [0, 1] the result is exactly 0 or 1.
    """
    return _set(gate, is_open(gate))


def open_gates(gate: Float[Tensor, " gates"], least: int = 1) -> Float[Tensor, " gates"]:
    """Return binarised gates of which at least one is open, whatever they say.

    If none has reached one half, the largest is open (the first of several): a layer that
    lost all its channels would end the network. With `least` of 2 the two largest are.
    """
    is_kept = is_open(gate)
    largest = gate.argmax(0, keepdim=True)
    is_kept = is_kept.scatter(0, largest, 1)
    if least > 1:
        others = gate.detach().scatter(0, largest, -1.0)
        is_kept = is_kept.scatter(0, others.argmax(0, keepdim=True), 1)
    return _set(gate, is_kept)


def binarised_gates(
    gates: Sequence[Tensor], rows: Tensor, pairs: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Return all gates of a model as they act, in the shapes they have.

    In a few operations, however many there are. The gates of each group come first; `rows` and
    `pairs` are those of `open_flat`.
    """
    flat = join_gates(gates)
    return tuple(split_gates(_set(flat, open_flat(flat, rows, pairs)), gates))


def gates_of_heads(
    acting: Float[Tensor, " size"], order: Tensor, probe: Float[Tensor, "heads size"]
) -> Float[Tensor, " heads_times_size"]:
    """Return a gate for each channel of each head, head by head, from one for each rank.

    Args:
        acting: The gates of the ranks, as they act.
        order: For each head and rank the number of the channel that has it: `(heads, size)`.
        probe: Adds nothing, and gets the gradient of each head's own channel, by rank.
    """
    rank = order.argsort(dim=1, stable=True)
    return (acting[rank] + (probe - probe.detach()).gather(1, rank)).flatten()


def _set(gate: Tensor, is_kept: Tensor) -> Tensor:
    """Return 0 or 1 for each gate, with the gradient of the identity."""
    # As a sum, since torch does not subtract from a bool.
    return gate + torch.add(is_kept, gate.detach(), alpha=-1)


def open_flat(
    flat: Float[Tensor, " gates"], rows: Tensor, pairs: Tensor | None = None
) -> Bool[Tensor, " gates"]:
    """Return which of all gates act.

    Args:
        flat: All gates, one behind the other.
        rows: A row for each group of which one gate at least is open, as in `open_gates`: where
            its gates stand among all, without a gap. Short rows repeat their first place at the
            end.
        pairs: Those rows whose groups keep two gates open.
    """
    flat = flat.detach()
    is_kept = flat >= THRESHOLD
    if not len(rows):
        return is_kept
    largest = flat.take(rows).argmax(1).add_(rows.select(1, 0))
    is_kept = is_kept.scatter_(0, largest, 1)
    if pairs is None or not len(pairs):
        return is_kept
    pairs_open = flat.take(pairs)
    first = pairs.gather(1, pairs_open.argmax(1, keepdim=True))
    second = pairs_open.masked_fill(pairs == first, -1.0).argmax(1, keepdim=True)
    return is_kept.scatter_(0, pairs.gather(1, second).flatten(), 1)


def join_gates(gates: Sequence[Tensor]) -> Float[Tensor, " gates"]:
    """Return gates of any shape one behind the other."""
    return torch.cat([gate if gate.dim() == 1 else gate.view(-1) for gate in gates])


def split_gates(flat: Float[Tensor, " gates"], like: Sequence[Tensor]) -> list[Tensor]:
    """Return what `join_gates` has joined in the shapes of these."""
    pieces = flat.split_with_sizes([gate.numel() for gate in like])
    pairs = zip(pieces, like, strict=True)
    return [piece if gate.dim() == 1 else piece.view(gate.shape) for piece, gate in pairs]


def linear_by_columns(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply a linear layer whose weight has a column for each output (transformers' `Conv1D`)."""
    return F.linear(x, weight.t(), bias)


def with_items(x: Tensor, index: Any, value: Any) -> Tensor:
    """Return a copy in which `x[index] = value`, as a traced `forward` has it."""
    x = x.clone()
    x[index] = value
    return x
