"""Pre-activation ResNet for CIFAR: BatchNorm and ReLU stand before each convolution.

He, Zhang, Ren, Sun: Identity mappings in deep residual networks, ECCV 2016.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from archlearn.models.initialization import draw_weights_
from archlearn.models.resnet import WIDTHS


class PreActivationBlock(nn.Module):
    """BatchNorm, ReLU, convolution, twice; where the shape changes the shortcut is a projection."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(n_in)
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        same = stride == 1 and n_in == n_out
        self.shortcut = None if same else nn.Conv2d(n_in, n_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream behind the block; nothing acts on the sum."""
        y = F.relu(self.bn1(x))
        if self.shortcut is not None:
            x = self.shortcut(y)
        return x + self.conv2(F.relu(self.bn2(self.conv1(y))))


class PreActivationResNet(nn.Module):
    """Three stages of `n_blocks` blocks, 16-32-64 wide, and a last BatchNorm and ReLU."""

    def __init__(
        self,
        n_blocks: int = 3,
        n_channels: int = 3,
        n_outputs: int = 10,
        widths: tuple[int, int, int] = WIDTHS,
    ) -> None:
        super().__init__()
        first, second, third = widths
        self.conv1 = nn.Conv2d(n_channels, first, 3, padding=1, bias=False)
        self.layer1 = _stage(n_blocks, first, first, 1)
        self.layer2 = _stage(n_blocks, first, second, 2)
        self.layer3 = _stage(n_blocks, second, third, 2)
        self.bn = nn.BatchNorm2d(third)
        self.linear = nn.Linear(third, n_outputs)
        draw_weights_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return one score for each class."""
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        return self.linear(F.relu(self.bn(x)).mean((2, 3)))


def _stage(n_blocks: int, n_in: int, n_out: int, stride: int) -> nn.Sequential:
    rest = (PreActivationBlock(n_out, n_out, 1) for _ in range(n_blocks - 1))
    return nn.Sequential(PreActivationBlock(n_in, n_out, stride), *rest)
