"""Weights that are not where a layer keeps them: raw, shared, reparametrised."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.zoo.kinds import Kind, Net, batch, kind, parts
from tests.zoo.layers import conv, linear

IMAGE, VECTOR = batch(3, 8, 8), batch(6)


class LearntScale(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x)) * self.scale
        x = F.relu(self.second(x) * self.early_scale)
        return self.head(x)


class LearntBias(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x) + self.bias)
        return self.head(F.relu(self.second(x)))


class BiasBehind(Net):
    """A bias behind the gate makes a dropped channel a constant."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x)) + self.bias
        return self.head(F.relu(self.second(x)))


class ScalarBias(Net):
    """One bias for all channels behind the gate makes a dropped channel a constant."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.scale * F.relu(self.first(x)) ** 2 + self.bias
        return self.head(F.relu(self.second(x)) - self.bias)


def scalar_bias(size: int) -> Callable[[], nn.Module]:
    """Return a factory of networks whose second layer has a kernel of the given size."""
    layers = {"first": conv(3, 5), "second": conv(5, 7, size), "head": conv(7, 4, 1)}
    return parts(ScalarBias, **layers, scale=_parameter(1), bias=_parameter(1))


class ScalarScale(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.scale * F.relu(self.first(x)) / 3
        return self.head(-F.relu(self.second(x)))


class RawWeights(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.conv2d(x, self.kernel, self.kernel_bias, padding=1))
        x = x.mean((2, 3))
        x = F.relu(F.linear(x, self.matrix, self.matrix_bias))
        return self.head(x)


class Repeated(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        for _ in range(3):
            x = F.relu(self.again(x))
        return self.head(x)


class TwoPaths(Net):
    """One layer, two inputs: a Siamese network."""

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        left, right = F.relu(self.body(first)), F.relu(self.body(second))
        return self.head(F.relu(self.top(left)) - F.relu(self.top(right)))


class FunctionOfAWeight(Net):
    """A weight is also read on its own, so its shape matters to more than its layer."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.first(x))
        return self.head(F.relu(self.second(x))), self.first.weight.square().sum()


class Buffered(Net):
    """A buffer with one entry for each channel."""

    def __init__(self, **factories: nn.Module) -> None:
        super().__init__(**factories)
        self.register_buffer("mean", torch.arange(5.0))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x) - self.mean)
        return self.head(F.relu(self.second(x)))


class OwnProducts(Net):
    """Products with matrices of the model's own, in the ways of graphs and tables."""

    def __init__(self, **factories: nn.Module | nn.Parameter | int) -> None:
        super().__init__(**factories)
        self.register_buffer("basis", torch.rand(5, 5) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(torch.mm(x, self.first).mm(self.basis))
        x = torch.relu(x.mm(self.second.T))
        return torch.tensordot(x, self.head, dims=([-1], [0]))


def tied() -> nn.Module:
    """Return two layers of one shape that hold the same weight."""
    first, second = nn.Linear(5, 5), nn.Linear(5, 5)
    second.weight = first.weight
    return nn.Sequential(
        nn.Linear(6, 5), nn.ReLU(), first, nn.ReLU(), second, nn.ReLU(), nn.Linear(5, 3)
    )


def autoencoder() -> nn.Module:
    """Return an encoder and a decoder whose weight is the encoder's, transposed."""
    return parts(
        TransposedTie,
        encode=linear(6, 5),
        shift=_parameter(6),
        second=linear(6, 7),
        head=linear(7, 3),
    )()


class TransposedTie(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.encode(x))
        x = F.linear(x, self.encode.weight.t(), self.shift)
        return self.head(F.relu(self.second(x)))


def _reparametrised(wrap: Callable[[nn.Module], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(
        wrap(nn.Conv2d(3, 5, 3, padding=1)),
        nn.ReLU(),
        wrap(nn.Conv2d(5, 7, 3, padding=1)),
        nn.ReLU(),
        nn.Conv2d(7, 4, 3, padding=1),
    )


def _parameter(*shape: int) -> Callable[[], nn.Parameter]:
    return lambda: nn.Parameter(torch.rand(shape) + 0.5)


KINDS: tuple[Kind, ...] = (
    kind(
        "learnt_scale",
        parts(
            LearntScale,
            first=conv(3, 5),
            scale=_parameter(1, 5, 1, 1),
            second=conv(5, 7),
            early_scale=_parameter(7, 1, 1),
            head=conv(7, 4),
        ),
        IMAGE,
        (5, 7),
    ),
    kind(
        "learnt_bias",
        parts(
            LearntBias,
            first=lambda: nn.Linear(6, 5, bias=False),
            bias=_parameter(5),
            second=linear(5, 7),
            head=linear(7, 3),
        ),
        VECTOR,
        (5, 7),
        (7,),
    ),
    kind(
        "learnt_bias_behind",
        parts(
            BiasBehind,
            first=linear(6, 5),
            bias=_parameter(5),
            second=linear(5, 7),
            head=linear(7, 3),
        ),
        VECTOR,
        (5, 7),
        (7,),
    ),
    kind("scalar_bias_behind", scalar_bias(1), IMAGE, (5, 7)),
    kind("scalar_bias_padded", scalar_bias(3), IMAGE, (5, 7), note="gated where padding reads it"),
    kind(
        "scalar_scale",
        parts(
            ScalarScale, first=conv(3, 5), scale=_parameter(), second=conv(5, 7), head=conv(7, 4)
        ),
        IMAGE,
        (5, 7),
    ),
    kind(
        "raw_weights",
        parts(
            RawWeights,
            kernel=_parameter(5, 3, 3, 3),
            kernel_bias=_parameter(5),
            matrix=_parameter(7, 5),
            matrix_bias=_parameter(7),
            head=linear(7, 3),
        ),
        IMAGE,
        (5, 7),
    ),
    kind("weight_norm", _reparametrised(parametrizations.weight_norm), IMAGE, (5, 7)),
    kind(
        "spectral_norm",
        _reparametrised(parametrizations.spectral_norm),
        IMAGE,
        (5, 7),
        note="the whole weight is divided by one number: refuse, or write the weight down",
    ),
    kind(
        "layer_repeated",
        parts(Repeated, first=linear(6, 5), again=linear(5, 5), head=linear(5, 3)),
        VECTOR,
        (5,),
    ),
    kind("weights_tied", tied, VECTOR, (5,)),
    kind(
        "products_of_ones_own",
        parts(
            OwnProducts,
            first=_parameter(6, 5),
            second=_parameter(7, 5),
            head=_parameter(7, 3),
        ),
        VECTOR,
        (5, 7),
    ),
    kind("weights_tied_transposed", autoencoder, VECTOR, (5, 7), (7,)),
    kind(
        "siamese",
        parts(TwoPaths, body=linear(6, 5), top=linear(5, 7), head=linear(7, 3)),
        lambda: (torch.randn(4, 6), torch.randn(4, 6)),
        (5, 7),
    ),
    kind(
        "weight_read_twice",
        parts(FunctionOfAWeight, first=linear(6, 5), second=linear(5, 7), head=linear(7, 3)),
        VECTOR,
        (7,),
        (7,),
    ),
    kind(
        "buffer_by_channel",
        parts(Buffered, first=linear(6, 5), second=linear(5, 7), head=linear(7, 3)),
        VECTOR,
        (5, 7),
        (7,),
    ),
)
