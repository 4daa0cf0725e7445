"""Local response normalisation by one product: squares times the matrix of who neighbours whom.

Torch pads and averages in three dimensions, which costs more than the convolutions around it on
a GPU. The product computes the same sums. It also lets a channel keep its distance from others
when those between them are gone: neighbours are looked up by original number.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LocalResponse(nn.LocalResponseNorm):
    """`nn.LocalResponseNorm`, computed faster."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return every channel divided by a power of the squares around it."""
        numbers = torch.arange(input.shape[1], device=input.device)
        return respond(input, numbers, self)


def respond(x: Tensor, numbers: Tensor, norm: nn.LocalResponseNorm) -> Tensor:
    """Return channels normalised by those whose numbers are near their own.

    Args:
        x: Examples x channels x any space.
        numbers: The original number of each channel.
        norm: The size of the window, and the constants.
    """
    size = int(norm.size)
    distance = numbers[None, :] - numbers[:, None]
    is_near = (distance >= -(size // 2)) & (distance <= (size - 1) // 2)
    squares = x * x
    sums = _multiply(is_near.to(squares.dtype), squares)
    return x * (norm.k + norm.alpha / size * sums).pow(-norm.beta)


def _multiply(matrix: Tensor, x: Tensor) -> Tensor:
    """Return the product along the channels, whatever the space behind them."""
    if x.dim() == 4:
        return F.conv2d(x, matrix[:, :, None, None])
    return F.conv1d(x.flatten(2), matrix[:, :, None]).reshape(x.shape)
