"""Norms over the channels that are left: LayerNorm, RMSNorm, GroupNorm, means, local response.

A closed channel gives nothing, and has no part in mean or variance: what is left is what a plain
norm of the open channels computes. With all gates open that is the norm as it was, to rounding.
Statistics are in float32 at least.

Local response normalisation sums over neighbours by their original numbers, so that a channel keeps
its distance from others when those between them are gone. It is a product with a band matrix: torch
pads and averages in three dimensions, which costs more than the convolutions around it on a GPU.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class OpenChannels(NamedTuple):
    """What norms over the open channels need of the gates; norms of the same channels share it.

    Channels are scaled so that the variance over all of them, closed ones being zero, is that over
    the open ones: torch's own norms do the rest.

    Attributes:
        gate: The gates, in single precision at least.
        scale: What each channel is multiplied by.
        share: What of the sum of all scaled channels each of them is to lose.
        weight: What undoes the scale.
        is_closed: 1 for closed channels.
    """

    gate: Float[Tensor, " channels"]
    scale: Float[Tensor, " channels"]
    share: Float[Tensor, " channels"]
    weight: Float[Tensor, " channels"]
    is_closed: Float[Tensor, " channels"]


def weigh_channels(gate: Float[Tensor, " channels"], n_groups: int = 1) -> OpenChannels:
    """Return what norms need of gates, for so many groups of channels with a norm each."""
    gate = gate.to(torch.promote_types(gate.dtype, torch.float32))
    grouped = gate.view(n_groups, -1)
    n_open = grouped.sum(-1, keepdim=True)
    root = (n_open / grouped.shape[1]).sqrt()
    return OpenChannels(
        gate,
        (grouped / root).view(-1),
        (grouped / -n_open).view(-1),
        root.expand_as(grouped).reshape(-1),
        (gate.detach() == 0).to(gate.dtype),
    )


def masked_layer_norm(
    x: Float[Tensor, "*shape channels"],
    opened: OpenChannels,
    weight: Float[Tensor, " channels"] | None = None,
    bias: Float[Tensor, " channels"] | None = None,
    eps: float = 1e-5,
) -> Float[Tensor, "*shape channels"]:
    """Normalise the last dimension over the channels whose gates are 1."""
    scaled = x * opened.scale
    centred = torch.addcmul(scaled, scaled.sum(-1, keepdim=True), opened.share)
    affine = _affine(opened, weight, bias, centred.dtype)
    out = F.layer_norm(centred, centred.shape[-1:], *affine, eps)
    return _without_rests(out, opened.is_closed).to(x.dtype)


def masked_group_norm(
    x: Float[Tensor, "batch channels *space"],
    opened: OpenChannels,
    weight: Float[Tensor, " channels"] | None = None,
    bias: Float[Tensor, " channels"] | None = None,
    eps: float = 1e-5,
    n_groups: int = 1,
) -> Float[Tensor, "batch channels *space"]:
    """Normalise each group of channels over those whose gates are 1."""
    grouped = x.reshape(len(x), n_groups, x.shape[1] // n_groups, -1)
    scale, share = (numbers.view(n_groups, -1, 1) for numbers in (opened.scale, opened.share))
    scaled = grouped * scale
    sums = scaled.sum((-2, -1), keepdim=True)
    centred = torch.addcmul(scaled, sums, share, value=1 / grouped.shape[-1])
    affine = _affine(opened, weight, bias, centred.dtype)
    out = F.group_norm(centred.reshape(x.shape), n_groups, *affine, eps)
    is_closed = opened.is_closed.view(-1, *[1] * (x.dim() - 2))
    return _without_rests(out, is_closed).to(x.dtype)


def masked_rms_norm(
    x: Float[Tensor, "*shape channels"],
    opened: OpenChannels,
    weight: Float[Tensor, " channels"] | None = None,
    eps: float | None = None,
) -> Float[Tensor, "*shape channels"]:
    """Divide the last dimension by the root mean square of the channels whose gates are 1."""
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    scaled = x * opened.scale
    factor, _ = _affine(opened, weight, None, scaled.dtype)
    return F.rms_norm(scaled, scaled.shape[-1:], factor, eps).to(x.dtype)


def _affine(
    opened: OpenChannels, weight: Tensor | None, bias: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias of a norm of scaled channels."""
    weight = opened.weight if weight is None else opened.weight * weight
    return weight.to(dtype), None if bias is None else (opened.gate * bias).to(dtype)


def _without_rests(x: Tensor, is_closed: Tensor) -> Tensor:
    """Clear what rounding leaves in closed channels, with the gradient of the identity."""
    return torch.addcmul(x, x.detach(), is_closed, value=-1)


def masked_variance(
    x: Float[Tensor, "*shape"],
    gate: Float[Tensor, " channels"],
    dim: int,
    correction: int | None = 1,
    keepdim: bool = False,
) -> Float[Tensor, "*rest"]:
    """Return the variance along a dimension, counted from behind, of the channels that are open."""
    wide, opened = _widen(x, gate)
    opened = opened.view(-1, *[1] * (-dim - 1))
    n_open = opened.sum()
    centred = (wide - (wide * opened).sum(dim, keepdim=True) / n_open) * opened
    rest = n_open - (1 if correction is None else int(correction))
    return (centred.square().sum(dim, keepdim=keepdim) / rest).to(x.dtype)


def masked_unit_length(
    x: Float[Tensor, "*shape"],
    gate: Float[Tensor, " channels"],
    dim: int,
    order: float = 2.0,
    eps: float = 1e-12,
) -> Float[Tensor, "*shape"]:
    """Divide by the length along a dimension, counted from behind, of the channels that are open.

    What is closed is divided, too: whoever reads it has a gate that can bring it back.
    """
    wide, opened = _widen(x, gate)
    opened = wide * opened.view(-1, *[1] * (-dim - 1))
    length = torch.linalg.vector_norm(opened, order, dim, keepdim=True)
    return (wide / length.clamp_min(eps)).to(x.dtype)


def rescale_mean(
    mean: Float[Tensor, "*shape"], gate: Float[Tensor, " channels"]
) -> Float[Tensor, "*shape"]:
    """Turn a mean over all channels, closed ones being zero, into that over the open ones."""
    wide, gate = _widen(mean, gate)
    return (wide * (len(gate) / gate.sum())).to(mean.dtype)


def _widen(x: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(x.dtype, torch.float32)
    return x.to(dtype), gate.to(dtype)


class LocalResponse(nn.LocalResponseNorm):
    """`nn.LocalResponseNorm`, computed faster."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return every channel divided by a power of the squares around it."""
        numbers = torch.arange(input.shape[1], device=input.device)
        return respond(input, numbers, self)


class NarrowedLocalResponseNorm(nn.Module):
    """Local response normalisation among channels at their original distances.

    Channels that are gone were zero, so that those near by their original numbers are all there
    is to sum.
    """

    kept: Tensor

    def __init__(
        self, size: int, alpha: float, beta: float, k: float, *, n_original: int, kept: list[int]
    ) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k
        self.n_original = n_original
        self.register_buffer("kept", torch.tensor(kept, device="cpu"))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised channels."""
        return respond(x, self.kept, self)

    def extra_repr(self) -> str:
        """Show the window and the channels."""
        return f"{self.size}, {len(self.kept)} of {self.n_original} channels"


def respond(
    x: Tensor, numbers: Tensor, window: nn.LocalResponseNorm | NarrowedLocalResponseNorm
) -> Tensor:
    """Return channels normalised by those whose original numbers are near their own.

    `x` is examples x channels x any space.
    """
    size = window.size
    distance = numbers[None, :] - numbers[:, None]
    is_near = (distance >= -(size // 2)) & (distance <= (size - 1) // 2)
    squares = x * x
    sums = _multiply(is_near.to(squares.dtype), squares)
    # In half precision, one and a little would round to one.
    sums = sums.to(torch.promote_types(sums.dtype, torch.float32))
    factor = (window.k + window.alpha / size * sums).pow(-window.beta)
    return (x * factor).to(x.dtype)


def _multiply(matrix: Tensor, x: Tensor) -> Tensor:
    """Return the product along the channels, whatever the space behind them."""
    if x.dim() == 4:
        return F.conv2d(x, matrix[:, :, None, None])
    return F.conv1d(x.flatten(2), matrix[:, :, None]).reshape(x.shape)
