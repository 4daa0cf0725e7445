"""Local response normalisation that keeps the original distances between channels.

Torch pads and averages in three dimensions, which costs more than the convolutions around it on
a GPU. The product computes the same sums. It also lets a channel keep its distance from others
when those between them are gone: neighbours are looked up by original number.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Window(Protocol):
    """The constants of a normalisation, as `nn.LocalResponseNorm` names them."""

    size: int
    alpha: float
    beta: float
    k: float


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


def respond(x: Tensor, numbers: Tensor, window: Window) -> Tensor:
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
