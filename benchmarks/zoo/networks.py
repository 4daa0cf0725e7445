"""Networks of the zoo that no package ships: published ones that people copy, and small cases.

The small cases have the layers of the networks in Torch-Pruning's own tests (named in models.toml).
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import weight_norm as hooked_weight_norm
from torch.nn.utils.parametrizations import weight_norm


class TemporalConvNet(nn.Module):
    """Causal dilated convolutions with weight norm and residuals (Bai et al. 2018)."""

    def __init__(self, *, old_weight_norm: bool = False) -> None:
        super().__init__()
        normed = hooked_weight_norm if old_weight_norm else weight_norm
        widths = (4, 16, 16, 24)
        self.first = nn.ModuleList()
        self.second = nn.ModuleList()
        self.shortcut = nn.ModuleList()
        for level, (n_in, n_out) in enumerate(pairwise(widths)):
            options = {"kernel_size": 3, "dilation": 2**level, "padding": 2 * 2**level}
            self.first.append(normed(nn.Conv1d(n_in, n_out, **options)))
            self.second.append(normed(nn.Conv1d(n_out, n_out, **options)))
            self.shortcut.append(nn.Identity() if n_in == n_out else nn.Conv1d(n_in, n_out, 1))
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(widths[-1], 5)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[-1]
        for first, second, shortcut in zip(self.first, self.second, self.shortcut, strict=True):
            y = self.dropout(F.relu(first(x)[:, :, :length]))
            y = self.dropout(F.relu(second(y)[:, :, :length]))
            x = F.relu(y + shortcut(x))
        return self.classifier(x[:, :, -1])


class WaveNet(nn.Module):
    """Gated dilated convolutions with skip connections (van den Oord et al. 2016)."""

    def __init__(self, width: int = 16, skip: int = 32, n_layers: int = 4) -> None:
        super().__init__()
        self.start = nn.Conv1d(1, width, 1)
        dilated = [nn.Conv1d(width, width, 2, dilation=2**n) for n in range(n_layers)]
        self.filters = nn.ModuleList(dilated)
        self.gates = nn.ModuleList(
            nn.Conv1d(width, width, 2, dilation=2**n) for n in range(n_layers)
        )
        self.residuals = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(n_layers))
        self.skips = nn.ModuleList(nn.Conv1d(width, skip, 1) for _ in range(n_layers))
        self.end = nn.Sequential(
            nn.ReLU(), nn.Conv1d(skip, skip, 1), nn.ReLU(), nn.Conv1d(skip, 8, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        total: Tensor | float = 0.0
        for level, (filters, gates, residual, skip) in enumerate(
            zip(self.filters, self.gates, self.residuals, self.skips, strict=True)
        ):
            padded = F.pad(x, (2**level, 0))
            y = torch.tanh(filters(padded)) * torch.sigmoid(gates(padded))
            total = total + skip(y)
            x = x + residual(y)
        return self.end(total)


def _conv_norm(n_in: int, n_out: int) -> list[nn.Module]:
    return [nn.Conv2d(n_in, n_out, 1), nn.BatchNorm2d(n_out)]


def _two_convs(n_in: int, n_hidden: int, n_out: int) -> nn.Sequential:
    return nn.Sequential(*_conv_norm(n_in, n_hidden), nn.GELU(), *_conv_norm(n_hidden, n_out))


class CascadedConcat(nn.Module):
    """Four branches joined one after another."""

    def __init__(self, width: int = 10) -> None:
        super().__init__()
        self.one = _two_convs(width, width, width)
        self.two = _two_convs(width, 2 * width, 2 * width)
        self.three = nn.Sequential(*_conv_norm(width, 3 * width))
        self.six = nn.Sequential(*_conv_norm(width, 6 * width))
        self.output = nn.Conv2d(12 * width, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        joined = torch.cat([self.one(x), self.two(x)], dim=1)
        joined = torch.cat([joined, self.three(x)], dim=1)
        return self.output(torch.cat([joined, self.six(x)], dim=1))


class Concat(nn.Module):
    """Wide and deep: a linear branch beside an MLP."""

    def __init__(self, n_in: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = n_in
        for n_out in (32, 16):
            layers += [nn.Linear(width, n_out), nn.BatchNorm1d(n_out), nn.ReLU(), nn.Dropout(0.2)]
            width = n_out
        self.deep = nn.Sequential(*layers, nn.Linear(width, 1))
        self.wide = nn.Linear(n_in, 3)
        self.output = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(x.shape[0], -1)
        return torch.sigmoid(self.output(torch.concat([self.wide(x), self.deep(x)], dim=-1)))


class ConcatSplit(nn.Module):
    """A split at sizes read from the layers, then a join with another branch."""

    def __init__(self, width: int = 10) -> None:
        super().__init__()
        self.main = _two_convs(width, width, 2 * width)
        self.side = _two_convs(width, width, width)
        self.output = nn.Sequential(*_conv_norm(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        side, x = self.side(x), self.main(x)
        n_first = self.output[0].in_channels - self.side[-1].num_features
        first, second = torch.split(x, (n_first, self.main[-1].num_features - n_first), 1)
        return self.output(torch.cat([first, side], dim=1)) + second


class _ScaledNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(width))
        self.bias = nn.Parameter(torch.randn(width))
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        norm = x.pow(2).sum(dim=1, keepdim=True).sqrt()
        return self.linear(torch.div(x, norm) * self.scale + self.bias)


class CustomizedLayer(nn.Module):
    """A norm over the channels, written by hand."""

    def __init__(self, n_unused: int = 0) -> None:
        super().__init__()
        self.first = nn.Linear(128, 256)
        self.norm = _ScaledNorm(256)
        self.output = nn.Linear(256, 10)
        if n_unused:
            self.unused = nn.Parameter(torch.randn(n_unused))

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.norm(F.relu(self.first(x))))


class LeNet(nn.Module):
    """Two convolutions and three linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
            nn.Linear(84, 10), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        return self.classifier(x.view(x.shape[0], -1))


class FullyConnected(nn.Module):
    """A residual around one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(128, 256)
        self.second = nn.Linear(256, 256)
        self.output = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        return self.output(F.relu(self.second(x)) + x)


class MultipleInputsAndOutputs(nn.Module):
    """Two inputs; everything hidden is an output as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(128, 32)
        self.second = nn.Linear(64, 32)
        self.output = nn.Linear(64, 100)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, y = F.relu(self.first(x)), F.relu(self.second(y))
        return x, y, F.relu(self.output(torch.cat([x, y], dim=1)))


class NonFeatureConcat(nn.Module):
    """A join and a split along the height."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.one = _two_convs(width, width, width)
        self.two = _two_convs(width, width, width)
        self.joined = nn.Conv2d(width, width, 1)
        self.output = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        one, two = self.one(x), self.two(x)
        x = self.joined(torch.cat([one, two], dim=2))
        first, _ = torch.split(x, [one.shape[2], two.shape[2]], dim=2)
        return self.output(first)


class Reshape(nn.Module):
    """A linear layer whose outputs become the channels of a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 512)
        self.up_1 = nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1)
        self.up_2 = nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1)
        self.output = nn.Linear(2048, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.linear(x)).view(-1, self.up_1.in_channels, 4, 4)
        return self.output(torch.flatten(F.relu(self.up_2(F.relu(self.up_1(x)))), 1))


class SingleChannelOutput(nn.Module):
    """Convolutions that end in one channel."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 64, 2, stride=2), nn.BatchNorm2d(64), nn.ReLU(),
            nn.Conv2d(64, 1, 3, padding=1), nn.BatchNorm2d(1), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Split(nn.Module):
    """A split in three, two parts of which share a layer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.main = _two_convs(width, width, 4 * width)
        self.shared = nn.Sequential(*_conv_norm(width, width))
        self.wide = nn.Sequential(*_conv_norm(2 * width, width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        narrow, wide = self.shared[0].in_channels, self.wide[0].in_channels
        first, second, third = torch.split(self.main(x), [narrow, narrow, wide], dim=1)
        return self.shared(first), self.shared(second), self.wide(third)
