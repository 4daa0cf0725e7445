"""DenseNet-40 for CIFAR: each layer reads all earlier ones of its block; growth 12.

Huang, Liu, van der Maaten, Weinberger: Densely connected convolutional networks, CVPR 2017,
section 3, the form without bottlenecks and without compression.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlearn.models.initialization import draw_weights_

SMALLEST_SIDE = 8
GROWTH = 12
FIRST = 16
N_STAGES = 3


class DenseLayer(nn.Module):
    """BatchNorm, ReLU and a convolution of 3 x 3, whose output is put behind its input."""

    def __init__(self, n_in: int, growth: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(n_in)
        self.conv = nn.Conv2d(n_in, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the input and the new channels, one behind the other."""
        return torch.cat([x, self.conv(F.relu(self.bn(x)))], 1)


class Transition(nn.Module):
    """BatchNorm, ReLU, a convolution of 1 x 1 and mean-pooling, between two dense blocks."""

    def __init__(self, n_channels: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(n_channels)
        self.conv = nn.Conv2d(n_channels, n_channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return images of half the side."""
        return F.avg_pool2d(self.conv(F.relu(self.bn(x))), 2)


class DenseNet(nn.Module):
    """Three dense blocks with transitions between them.

    With twelve layers a block it is DenseNet-40: 1,019,722 parameters with ten classes.
    """

    def __init__(
        self,
        n_layers: int = 12,
        n_channels: int = 3,
        n_outputs: int = 10,
        growth: int = GROWTH,
        first: int = FIRST,
    ) -> None:
        super().__init__()
        width = first
        layers: list[nn.Module] = [nn.Conv2d(n_channels, width, 3, padding=1, bias=False)]
        for stage in range(N_STAGES):
            if stage:
                layers.append(Transition(width))
            for _ in range(n_layers):
                layers.append(DenseLayer(width, growth))
                width += growth
        self.features = nn.Sequential(*layers)
        self.bn = nn.BatchNorm2d(width)
        self.classifier = nn.Linear(width, n_outputs)
        draw_weights_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return one score for each class."""
        return self.classifier(F.relu(self.bn(self.features(x))).mean((2, 3)))
