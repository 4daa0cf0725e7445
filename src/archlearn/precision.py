"""A model runs in double precision for a while, and gets its own numbers back.

Only the numbers are exchanged: no module is copied, and whoever holds a parameter still does.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def tensors_of(net: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the parameters and buffers of a model, each once."""
    return [*net.named_parameters(), *net.named_buffers()]


def widen(net: nn.Module) -> dict[Tensor, Tensor]:
    """Return the numbers of each floating parameter and buffer that is not double yet."""
    return {
        tensor: tensor.detach().double()
        for _, tensor in tensors_of(net)
        if tensor.is_floating_point() and tensor.dtype is not torch.float64
    }


_DEPTH = [0]  # how many exchanges are under way


def is_exchanged() -> bool:
    """Return whether models run in another precision than their own now."""
    return _DEPTH[0] > 0


@contextmanager
def exchanging(numbers: Mapping[Tensor, Tensor]) -> Generator[None]:
    """Let tensors hold other numbers for a while."""
    own = {tensor: tensor.data for tensor in numbers}
    _DEPTH[0] += 1
    try:
        for tensor, other in numbers.items():
            tensor.data = other
        yield
    finally:
        _DEPTH[0] -= 1
        for tensor, data in own.items():
            tensor.data = data
