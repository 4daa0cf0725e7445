"""ResNet-20, -56, ... for CIFAR, plain (shortcuts without parameters, option A) and pre-activation.

He, Zhang, Ren, Sun: Deep residual learning for image recognition, CVPR 2016, section 4.2, and
Identity mappings in deep residual networks, ECCV 2016. The `state_dict` of the plain ones has the
names of github akamaster/pytorch_resnet_cifar10, whose files fit as they are.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from archlearn.models.initialization import draw_weights_

SMALLEST_SIDE = 8
WIDTHS = (16, 32, 64)


class BasicBlock(nn.Module):
    """Two convolutions of 3 x 3; the shortcut takes every other pixel and pads channels with 0."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.stride = stride
        self.padding = ((n_out - n_in) // 2, (n_out - n_in + 1) // 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, after its last ReLU."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.stride != 1 or any(self.padding):
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, *self.padding))
        return F.relu(y + x)


class ResNet(nn.Module):
    """Three stages of `n_blocks` blocks, 16-32-64 wide: 6 n + 2 layers.

    With three blocks a stage it is ResNet-20 (269,722 parameters), with nine ResNet-56 (853,018).
    """

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
        self.bn1 = nn.BatchNorm2d(first)
        self.layer1 = _stage(BasicBlock, n_blocks, first, first, 1)
        self.layer2 = _stage(BasicBlock, n_blocks, first, second, 2)
        self.layer3 = _stage(BasicBlock, n_blocks, second, third, 2)
        self.linear = nn.Linear(third, n_outputs)
        draw_weights_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return one score for each class."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


def _stage(
    block: Callable[[int, int, int], nn.Module], n_blocks: int, n_in: int, n_out: int, stride: int
) -> nn.Sequential:
    rest = (block(n_out, n_out, 1) for _ in range(n_blocks - 1))
    return nn.Sequential(block(n_in, n_out, stride), *rest)


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
        self.layer1 = _stage(PreActivationBlock, n_blocks, first, first, 1)
        self.layer2 = _stage(PreActivationBlock, n_blocks, first, second, 2)
        self.layer3 = _stage(PreActivationBlock, n_blocks, second, third, 2)
        self.bn = nn.BatchNorm2d(third)
        self.linear = nn.Linear(third, n_outputs)
        draw_weights_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return one score for each class."""
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        return self.linear(F.relu(self.bn(x)).mean((2, 3)))
