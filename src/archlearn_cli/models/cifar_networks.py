"""Networks for images of 32 x 32: ResNet, pre-activation ResNet, VGG, DenseNet, MobileNetV2.

ResNet (shortcuts without parameters, option A): He, Zhang, Ren, Sun: Deep residual learning for
image recognition, CVPR 2016, section 4.2. Its `state_dict` has the names of github
akamaster/pytorch_resnet_cifar10, whose files fit as they are. Pre-activation: Identity mappings in
deep residual networks, ECCV 2016.

VGG-16 with BatchNorm and one fully connected layer: Simonyan, Zisserman: Very deep convolutional
networks for large-scale image recognition, ICLR 2015.

DenseNet-40, growth 12: Huang, Liu, van der Maaten, Weinberger: Densely connected convolutional
networks, CVPR 2017, section 3, the form without bottlenecks and without compression.

MobileNetV2, whose first two strides are 1: Sandler et al.: MobileNetV2: inverted residuals and
linear bottlenecks, CVPR 2018, table 2.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CIFAR_SMALLEST_SIDE = 8
VGG_SMALLEST_SIDE = 16


@torch.no_grad()
def draw_weights_(net: nn.Module) -> None:
    """Draw every weight so that a ReLU layer keeps the size of what it reads; biases are zero."""
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                layer.bias.zero_()


RESNET_WIDTHS = (16, 32, 64)


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
        widths: tuple[int, int, int] = RESNET_WIDTHS,
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
        widths: tuple[int, int, int] = RESNET_WIDTHS,
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


VGG_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG(nn.Module):
    """Convolutions of 3 x 3 in stages, max-pooling between them, mean over the image at the end.

    VGG-16 with ten classes has 14,724,042 parameters and, on 32 x 32 images, 313 million
    multiply-adds.
    """

    def __init__(
        self,
        n_channels: int = 3,
        n_outputs: int = 10,
        stages: Sequence[Sequence[int]] = VGG_STAGES,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = n_channels
        for stage in stages:
            if layers:
                layers.append(nn.MaxPool2d(2))
            for width in stage:
                layers.append(nn.Conv2d(before, width, 3, padding=1, bias=False))
                layers += [nn.BatchNorm2d(width), nn.ReLU()]
                before = width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(before, n_outputs)
        draw_weights_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return one score for each class."""
        return self.classifier(self.features(x).mean((2, 3)))


DENSENET_GROWTH, DENSENET_FIRST = 12, 16
_DENSENET_STAGES = 3


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
        growth: int = DENSENET_GROWTH,
        first: int = DENSENET_FIRST,
    ) -> None:
        super().__init__()
        width = first
        layers: list[nn.Module] = [nn.Conv2d(n_channels, width, 3, padding=1, bias=False)]
        for stage in range(_DENSENET_STAGES):
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


MobileNetStage = tuple[int, int, int, int]
"""Expansion, width and number of inverted residual blocks, and the stride of the first one."""
MOBILENET_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
MOBILENET_FIRST, MOBILENET_LAST = 32, 1280


class InvertedResidual(nn.Module):
    """Expand by 1 x 1, filter each channel by 3 x 3, and project back without an activation."""

    def __init__(self, n_in: int, n_out: int, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = n_in * expansion
        expand = [] if expansion == 1 else _conv_norm_relu6(n_in, hidden, 1)
        self.layers = nn.Sequential(
            *expand,
            *_conv_norm_relu6(hidden, hidden, 3, stride=stride, groups=hidden),
            nn.Conv2d(hidden, n_out, 1, bias=False),
            nn.BatchNorm2d(n_out),
        )
        self.has_shortcut = stride == 1 and n_in == n_out

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output; it is added to its input where both have one shape."""
        y = self.layers(x)
        return x + y if self.has_shortcut else y


class MobileNetV2(nn.Module):
    """A convolution, seven stages of inverted residuals, a convolution to 1280, and a classifier.

    With ten classes it has 2,236,682 parameters.
    """

    def __init__(
        self,
        n_channels: int = 3,
        n_outputs: int = 10,
        stages: Sequence[MobileNetStage] = MOBILENET_STAGES,
        first: int = MOBILENET_FIRST,
        last: int = MOBILENET_LAST,
    ) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        before = first
        for expansion, width, n_blocks, stride in stages:
            for index in range(n_blocks):
                block = InvertedResidual(before, width, expansion, 1 if index else stride)
                blocks.append(block)
                before = width
        self.features = nn.Sequential(
            *_conv_norm_relu6(n_channels, first, 3), *blocks, *_conv_norm_relu6(before, last, 1)
        )
        self.classifier = nn.Linear(last, n_outputs)
        draw_weights_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return one score for each class."""
        return self.classifier(self.features(x).mean((2, 3)))


def _conv_norm_relu6(
    n_in: int, n_out: int, kernel: int, *, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    padding = kernel // 2
    convolution = nn.Conv2d(n_in, n_out, kernel, stride, padding, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(n_out), nn.ReLU6()]
