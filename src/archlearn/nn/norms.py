"""Norms over the channels that are left: LayerNorm, RMSNorm, GroupNorm, means, local response.

A closed channel gives nothing, and has no part in mean or variance: what is left is what a plain
norm of the open channels computes. With all gates open that is the norm as it was, to rounding.
Statistics are in float32 at least.

Local response normalisation sums over neighbours by their original numbers, so that a channel keeps
its distance from others when those between them are gone. It is a product with a band matrix: torch
pads and averages in three dimensions, which costs more than the convolutions around it on a GPU.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


def masked_layer_norm(
    x: Float[Tensor, "*shape channels"],
    gate: Float[Tensor, " channels"],
    weight: Float[Tensor, " channels"] | None = None,
    bias: Float[Tensor, " channels"] | None = None,
    eps: float = 1e-5,
) -> Float[Tensor, "*shape channels"]:
    """Normalise the last dimension over the channels whose gates are 1."""
    wide, gate = _widen(x, gate)
    out = _normalise(wide, gate, gate.sum(), eps)
    if weight is not None:
        out = out * weight
    if bias is not None:
        out = torch.addcmul(out, gate, bias.to(gate.dtype))
    return out.to(x.dtype)


def masked_group_norm(
    x: Float[Tensor, "batch channels *space"],
    gate: Float[Tensor, " channels"],
    weight: Float[Tensor, " channels"] | None = None,
    bias: Float[Tensor, " channels"] | None = None,
    eps: float = 1e-5,
    n_groups: int = 1,
) -> Float[Tensor, "batch channels *space"]:
    """Normalise each group of channels over those whose gates are 1."""
    wide, gate = _widen(x, gate)
    along_channels = (-1, *[1] * (x.dim() - 2))
    opened = gate.view(along_channels).expand(x.shape[1:]).reshape(n_groups, -1)
    grouped = wide.reshape(len(x), n_groups, -1)
    out = _normalise(grouped, opened, opened.sum(-1, keepdim=True), eps).reshape(x.shape)
    if weight is not None:
        out = out * weight.view(along_channels)
    if bias is not None:
        out = out + (gate * bias).view(along_channels)
    return out.to(x.dtype)


def masked_rms_norm(
    x: Float[Tensor, "*shape channels"],
    gate: Float[Tensor, " channels"],
    weight: Float[Tensor, " channels"] | None = None,
    eps: float | None = None,
) -> Float[Tensor, "*shape channels"]:
    """Divide the last dimension by the root mean square of the channels whose gates are 1."""
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    wide, gate = _widen(x, gate)
    opened = wide * gate
    square = opened.square().sum(-1, keepdim=True) / gate.sum()
    out = opened * torch.rsqrt(square + eps)
    return (out if weight is None else out * weight).to(x.dtype)


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


def _normalise(x: Tensor, opened: Tensor, n_open: Tensor, eps: float) -> Tensor:
    """Give what is open along the last dimension a mean of 0 and a variance of 1."""
    centred = (x - (x * opened).sum(-1, keepdim=True) / n_open) * opened
    variance = centred.square().sum(-1, keepdim=True) / n_open
    return centred * torch.rsqrt(variance + eps)


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
        self.register_buffer("kept", torch.tensor(kept))

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
