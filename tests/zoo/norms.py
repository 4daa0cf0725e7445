"""Normalisation before and after the activation, by channel and across channels."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.kinds import Kind, Net, batch, kind, parts
from tests.zoo.layers import chain, conv, linear

IMAGE, VECTOR = batch(3, 8, 8), batch(6)


class LocalResponse(Net):
    """CaffeNet's order: activation, normalisation over neighbouring channels, pooling."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.norm(F.relu(self.first(x))), 2)
        x = F.local_response_norm(F.relu(self.second(x)), 3, alpha=0.5, k=2.0)
        return self.head(x)


class LayerNormThenMLP(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(F.relu(self.first(x)))
        return self.head(F.relu(self.second(x)))


class FunctionalLayerNorm(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(F.relu(self.first(x)), (5,))
        return self.head(F.relu(self.second(x)))


class RMSNormByHand(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain
        return self.head(F.relu(self.second(x)))


class Normalise(Net):
    """`F.normalize` divides by a sum of squares, to which a dropped channel adds nothing."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.normalize(F.relu(self.first(x)), dim=1)
        return self.head(F.relu(self.second(x)))


def _normed(norm: Callable[[], nn.Module], n: int = 6) -> Callable[[], nn.Module]:
    """A norm between the first convolution and its activation; the second has none."""
    return chain(conv(3, n), norm, nn.ReLU, conv(n, 7), nn.ReLU, conv(7, 4))


def _after(norm: Callable[[], nn.Module], padding: int, n: int = 5) -> Callable[[], nn.Module]:
    """A norm behind the activation, whose reader pads or does not."""
    return chain(
        conv(3, n), nn.ReLU, norm, lambda: nn.Conv2d(n, 7, 3, padding=padding), nn.ReLU, conv(7, 4)
    )


def _mlp(*middle: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return chain(linear(6, 5), *middle, linear(5, 7), nn.ReLU, linear(7, 3))


def _norm1d() -> nn.Module:
    return nn.BatchNorm1d(5)


KINDS: tuple[Kind, ...] = (
    kind("batchnorm_before", _normed(lambda: nn.BatchNorm2d(6)), IMAGE, (6, 7)),
    kind("batchnorm_plain", _normed(lambda: nn.BatchNorm2d(6, affine=False)), IMAGE, (6, 7)),
    kind(
        "batchnorm_of_the_batch",
        _normed(lambda: nn.BatchNorm2d(6, track_running_stats=False)),
        IMAGE,
        (6, 7),
        note="by channel still, but it cannot be folded",
    ),
    kind(
        "batchnorm_after_unpadded",
        _after(lambda: nn.BatchNorm2d(5), 0),
        IMAGE,
        (5, 7),
        (5,),
        note="a dropped channel is a constant, which moves into the next bias",
    ),
    kind(
        "batchnorm_after_padded",
        _after(lambda: nn.BatchNorm2d(5), 1),
        IMAGE,
        (5, 7),
        note="the constant of a dropped channel stops at the zero border: gated where it is read",
    ),
    kind("batchnorm1d_before", _mlp(_norm1d, nn.ReLU), VECTOR, (5, 7), (5, 7)),
    kind("batchnorm1d_after", _mlp(nn.ReLU, _norm1d), VECTOR, (5, 7), (5, 7)),
    kind(
        "batchnorm_both_sides",
        _mlp(_norm1d, nn.ReLU, _norm1d),
        VECTOR,
        (5, 7),
        (5, 7),
    ),
    kind(
        "groupnorm_before",
        _normed(lambda: nn.GroupNorm(2, 6)),
        IMAGE,
        (6, 7),
        note="the norm has read what the activation closes: whole groups go",
    ),
    kind(
        "groupnorm_after",
        _after(lambda: nn.GroupNorm(2, 6), 0, 6),
        IMAGE,
        (6, 7),
        note="it mixes the channels of a group by their statistics: whole groups go",
    ),
    kind("instancenorm", _normed(lambda: nn.InstanceNorm2d(6, affine=True)), IMAGE, (6, 7)),
    kind("instancenorm_after", _after(lambda: nn.InstanceNorm2d(5), 0), IMAGE, (5, 7)),
    kind(
        "no_activation",
        chain(linear(6, 5), linear(5, 3)),
        VECTOR,
        (5,),
        note="gated where the second layer reads",
    ),
    kind(
        "layernorm_and_nothing_else",
        chain(linear(6, 5), nn.ReLU, lambda: nn.LayerNorm(5), linear(5, 3)),
        VECTOR,
        (5,),
    ),
    kind(
        "layernorm",
        parts(
            LayerNormThenMLP,
            first=linear(6, 5),
            norm=lambda: nn.LayerNorm(5),
            second=linear(5, 7),
            head=linear(7, 3),
        ),
        VECTOR,
        (5, 7),
        (7,),
    ),
    kind(
        "layernorm_functional",
        parts(FunctionalLayerNorm, first=linear(6, 5), second=linear(5, 7), head=linear(7, 3)),
        VECTOR,
        (5, 7),
        (7,),
    ),
    kind(
        "rmsnorm",
        parts(
            LayerNormThenMLP,
            first=linear(6, 5),
            norm=lambda: nn.RMSNorm(5),
            second=linear(5, 7),
            head=linear(7, 3),
        ),
        VECTOR,
        (5, 7),
        (7,),
    ),
    kind(
        "rmsnorm_by_hand",
        parts(
            RMSNormByHand,
            first=linear(6, 5),
            gain=lambda: nn.Parameter(torch.rand(5) + 0.5),
            second=linear(5, 7),
            head=linear(7, 3),
        ),
        VECTOR,
        (5, 7),
        (7,),
    ),
    kind(
        "normalise",
        parts(Normalise, first=linear(6, 5), second=linear(5, 7), head=linear(7, 3)),
        VECTOR,
        (5, 7),
        (7,),
    ),
    kind(
        "local_response_norm",
        parts(
            LocalResponse,
            first=conv(3, 9),
            norm=lambda: nn.LocalResponseNorm(5, 0.3),
            second=conv(9, 7),
            head=conv(7, 4),
        ),
        IMAGE,
        (9, 7),
        note="distances between channels stay those of the full network",
    ),
)
