"""`TriState`: an activation with a width gate (zero) and a depth gate (identity)."""

import math
from enum import Enum

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archlearn.errors import GateError, InputError, check_kind, lies_in
from archlearn.nn.functional import binarise

WIDTH_START = 0.55
DEPTH_START = 0.45
_FEW_PLACES, _MANY_NUMBERS = 16, 1 << 18


class Gate(Enum):
    """Whether a gate is learnt, held where it is, or not there at all."""

    LEARNT = "learnt"
    FIXED = "fixed"
    ABSENT = "absent"


def gate_channels(x: Tensor, width: Tensor, dim: int = 1) -> Tensor:
    """Return `x` with each channel multiplied by its binary width gate."""
    dim %= x.dim()
    inner = x.shape[dim + 1 :]
    width = width.to(x.dtype)
    if _sums_by_place(x, math.prod(inner)):
        by_place = width.view(-1, *[1] * len(inner)).expand(-1, *inner)
        if x.dim() == 4 and dim == 1 and x.is_contiguous(memory_format=torch.channels_last):
            return x * by_place[None].contiguous(memory_format=torch.channels_last)
        return x * by_place.contiguous()
    return x * width.view(-1, *[1] * len(inner))


def gate_heads(x: Tensor, width: Tensor, dims: tuple[int, int]) -> Tensor:
    """Return `x` with each channel of each head multiplied by its gate; heads come first."""
    heads, within = (dim % x.dim() for dim in dims)
    shape = [1] * x.dim()
    shape[heads], shape[within] = x.shape[heads], x.shape[within]
    if width.numel() != shape[heads] * shape[within]:
        raise InputError(
            f"heads and the batch lie in one dimension of {x.shape[heads]} in attention, which an "
            "example of a single row cannot show; call add_gates with an example of two rows"
        )
    table = width.to(x.dtype).view(x.shape[heads], x.shape[within])
    return x * (table if heads < within else table.T).reshape(shape)


def _sums_by_place(x: Tensor, places: int) -> bool:
    """Return whether there is to be a number for each place of a channel.

    The gradient of a gate sums over examples and places. A GPU is slow at few long sums, and a
    CPU at many short ones, so that examples are summed first; a compiler knows better. Weights have
    few places, and on a GPU a kernel more takes longer than their sums.
    """
    if places == 1 or torch.compiler.is_compiling():
        return False
    if x.is_cuda:
        return places >= _FEW_PLACES
    return places < _FEW_PLACES and x.numel() > _MANY_NUMBERS and x.is_contiguous()


def mix_linear(x: Tensor, activated: Tensor, depth: Tensor) -> Tensor:
    """Return `d·x + (1−d)·act(x)` for one binary depth gate."""
    return torch.lerp(activated, x.to(activated.dtype), depth.to(activated.dtype))


def gate_branch(branch: Tensor, gate: Tensor) -> Tensor:
    """Return what a residual branch adds, multiplied by its binary gate."""
    return branch * gate.to(branch.dtype)


class TriState(nn.Module):
    """Computes `w·(d·x + (1−d)·act(x))` with binary gates (the paper's equation 2).

    One width gate a channel, one depth gate for the layer. For ReLU this is `wx` for `x ≥ 0`
    and `wdx` below. Gates are ordinary parameters; a fixed gate takes no gradient.

    Attributes:
        width: The width gates before they are binarised, or None.
        depth: The depth gate before it is binarised, or None.
    """

    def __init__(
        self,
        n_channels: int,
        activation: nn.Module | None = None,
        *,
        width: Gate = Gate.LEARNT,
        depth: Gate = Gate.LEARNT,
        dim: int = 1,
    ) -> None:
        """Make gates for `n_channels` channels along dimension `dim` of the input."""
        super().__init__()
        if not lies_in(n_channels, 1, math.inf) or n_channels != int(n_channels):
            raise InputError(f"n_channels is {n_channels!r}; a layer has at least one channel")
        if activation is not None:
            check_kind("activation", activation, nn.Module, "give a module, such as nn.ReLU()")
        self.n_channels = n_channels
        self.dim = dim
        self.activation = nn.ReLU() if activation is None else activation
        self.width = _make_gate("width", torch.full((n_channels,), WIDTH_START), width)
        self.depth = _make_gate("depth", torch.tensor(DEPTH_START), depth)

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the gated activation of `x`."""
        if not -x.dim() <= self.dim < x.dim() or x.shape[self.dim] != self.n_channels:
            raise InputError(
                f"TriState has {self.n_channels} channels along dimension {self.dim}, "
                f"but its input has shape {tuple(x.shape)}"
            )
        if self.depth is None:
            y = self.activation(x)
        else:
            kept = x.clone() if getattr(self.activation, "inplace", False) else x
            y = mix_linear(kept, self.activation(x), binarise(self.depth))
        return y if self.width is None else gate_channels(y, binarise(self.width), self.dim)

    def gates(self) -> list[Tensor]:
        """Return the gates there are, width before depth."""
        return [gate for gate in (self.width, self.depth) if gate is not None]

    def extra_repr(self) -> str:
        """Show what the gates are."""
        states = {"width": self.width, "depth": self.depth}
        words = [f"{name}={state_of(gate).value}" for name, gate in states.items()]
        return ", ".join([str(self.n_channels), *words])


def check_gate(name: str, gate: Tensor) -> None:
    """Raise if a gate is not a number in [0, 1]."""
    values = gate.detach()
    if bool(values.isnan().any()):
        raise GateError(
            f"gate {name!r} holds NaN; the loss has diverged: lower the learning rate, or "
            "reload the last checkpoint"
        )
    if bool((values < 0).any()) or bool((values > 1).any()):
        raise GateError(
            f"gate {name!r} lies between {values.min():g} and {values.max():g}, outside [0, 1]; "
            "call archlearn.clip_gates_(model) after each optimiser step"
        )


def _make_gate(name: str, start: Tensor, gate: Gate) -> nn.Parameter | None:
    if not isinstance(gate, Gate):  # pyright: ignore[reportUnnecessaryIsInstance]
        choices = "Gate.LEARNT, Gate.FIXED or Gate.ABSENT"
        raise InputError(f"{name} is {gate!r}; give {choices} of archlearn.nn.tristate_activation")
    if gate is Gate.ABSENT:
        return None
    return nn.Parameter(start, requires_grad=gate is Gate.LEARNT)


def state_of(gate: nn.Parameter | None) -> Gate:
    """Return whether a gate is learnt, fixed or absent."""
    if gate is None:
        return Gate.ABSENT
    return Gate.LEARNT if gate.requires_grad else Gate.FIXED
