"""Pooling of every kind, in one, two and three dimensions."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.kinds import Kind, Net, batch, kind, parts
from tests.zoo.layers import conv, linear

IMAGE, SIGNAL, VOLUME = batch(3, 8, 8), batch(3, 8), batch(3, 4, 4, 4)


class ThenPool(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.first(x)))
        return self.head(torch.flatten(F.relu(self.second(x)), 1))


class PoolThenReLU(Net):
    """Max-pooling in front of the activation, as in LeNet."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.first(x), 2))
        x = F.relu(self.second(x))
        return self.head(torch.flatten(x, 1))


class FunctionalPools(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(F.relu(self.first(x)), 2)
        x = F.adaptive_max_pool2d(F.relu(self.second(x)), 1)
        return self.head(x.flatten(1))


class MaxUnpooled(Net):
    def forward(self, x: Tensor) -> Tensor:
        pooled, where = self.pool(F.relu(self.first(x)))
        return self.head(F.relu(self.second(F.max_unpool2d(pooled, where, 2))))


POOLS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "max": (lambda: nn.MaxPool2d(2), 4),
    "max_padded": (lambda: nn.MaxPool2d(3, 2, padding=1), 4),
    "max_ceil": (lambda: nn.MaxPool2d(3, 2, ceil_mode=True), 4),
    "avg": (lambda: nn.AvgPool2d(2), 4),
    "avg_padded": (lambda: nn.AvgPool2d(3, 2, padding=1), 4),
    "avg_not_counting_padding": (lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False), 4),
    "adaptive_avg": (lambda: nn.AdaptiveAvgPool2d(3), 3),
    "adaptive_max": (lambda: nn.AdaptiveMaxPool2d((3, 3)), 3),
    "lp": (lambda: nn.LPPool2d(2, 2), 4),
}


def _pool(pool: Callable[[], nn.Module], size: int) -> Callable[[], nn.Module]:
    return parts(
        ThenPool,
        first=conv(3, 5),
        second=conv(5, 7),
        head=lambda: nn.Linear(7 * size * size, 4),
        pool=pool,
    )


def _two(
    convolution: type[nn.Conv1d] | type[nn.Conv3d],
    first_pool: nn.Module,
    second_pool: nn.Module,
    n_flat: int,
) -> nn.Module:
    return nn.Sequential(
        convolution(3, 5, 3, padding=1),
        nn.ReLU(),
        first_pool,
        convolution(5, 7, 3, padding=1),
        nn.ReLU(),
        second_pool,
        nn.Flatten(),
        nn.Linear(n_flat, 4),
    )


KINDS: tuple[Kind, ...] = (
    *(kind(f"pool_{n}", _pool(p, size), IMAGE, (5, 7)) for n, (p, size) in POOLS.items()),
    kind(
        "pool_1d",
        lambda: _two(nn.Conv1d, nn.MaxPool1d(2), nn.AvgPool1d(2), 14),
        SIGNAL,
        (5, 7),
    ),
    kind(
        "pool_3d",
        lambda: _two(nn.Conv3d, nn.MaxPool3d(2), nn.AvgPool3d(2), 7),
        VOLUME,
        (5, 7),
    ),
    kind(
        "pool_adaptive_1d",
        lambda: _two(nn.Conv1d, nn.AdaptiveAvgPool1d(4), nn.AdaptiveMaxPool1d(2), 14),
        SIGNAL,
        (5, 7),
    ),
    kind(
        "pool_adaptive_3d",
        lambda: _two(nn.Conv3d, nn.AdaptiveMaxPool3d(2), nn.AdaptiveAvgPool3d(1), 7),
        VOLUME,
        (5, 7),
    ),
    kind(
        "pool_before_relu",
        parts(PoolThenReLU, first=conv(3, 5), second=conv(5, 7), head=linear(112, 4)),
        IMAGE,
        (5, 7),
        note="no depth: a linear site in front of max-pooling would still not be affine",
    ),
    kind(
        "pool_functional",
        parts(FunctionalPools, first=conv(3, 5), second=conv(5, 7), head=linear(7, 4)),
        IMAGE,
        (5, 7),
    ),
    kind(
        "pool_with_indices",
        parts(
            MaxUnpooled,
            first=conv(3, 5),
            second=conv(5, 7),
            head=conv(7, 4),
            pool=lambda: nn.MaxPool2d(2, return_indices=True),
        ),
        IMAGE,
        (7,),
        note="the indices of a pooling are no activations; whatever reads them stays",
    ),
)
