"""Groups of channels as plain data: the slices of weights that read them, and that write them.

A channel is closed when nothing reads it, so a gate is a factor of the slices that read its
channel; no gate stands in `forward`, and what is closed can be read off the weights.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """Slices of one parameter along one dimension, and the gate of each.

    Attributes:
        parameter: Its dotted name, as in `named_parameters()`: the first one where it is tied.
        dim: The dimension; None for each element of the parameter, in the order of `flatten()`.
        gates: The position of each slice's gate among all gates, or -1 for none: int64, on the
            CPU, of shape (rows, size). With several rows (a head, an index within all heads) a
            slice is closed when any of its gates is.
    """

    parameter: str
    dim: int | None
    gates: Tensor


@dataclass(frozen=True, slots=True)
class GateGroup:
    """Channels of one kind, a gate each, and the weights that their gates act on.

    Attributes:
        name: Its name, as `inspect` shows it.
        kind: "width", "heads", "within heads", "stream", "branch".
        size: How many gates it has.
        start: The position of its first gate among all gates; they are start .. start + size - 1.
        readers: What its gates multiply: where all of a gate's slices are exactly zero, nobody
            reads the channel. Mostly columns of the layers behind; of channels in a product of
            queries and keys the rows of one factor; of a stream under RMSNorm, which sees zeros
            then, the rows that write it. Each has the gates of this group only.
        writers: What else belongs to its channels, and goes with them when they are cut.
        norms: Names of the norm modules that compute statistics over the channels. A LayerNorm
            or a GroupNorm must count the open ones only.
        reason: Why it is not learnt; None where it is.
    """

    name: str
    kind: str
    size: int
    start: int
    readers: tuple[Slices, ...] = ()
    writers: tuple[Slices, ...] = ()
    norms: tuple[str, ...] = ()
    reason: str | None = None
