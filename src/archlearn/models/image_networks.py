"""Built-in networks for small images such as CIFAR's, by name, each made to fit the images."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

from archlearn.models import densenet, mobilenet, resnet, transformers, vgg


@dataclass(frozen=True, slots=True)
class ImageSizes:
    """What a network for images is fitted to.

    Attributes:
        side: Height and width of the images.
        factor: What every hidden width is multiplied by; 1 is the whole network.
    """

    n_channels: int
    side: int
    n_outputs: int
    factor: float

    def scale(self, width: int) -> int:
        """Return a width times the factor, one at least."""
        return max(1, round(width * self.factor))


@dataclass(frozen=True, slots=True)
class ImageNetwork:
    """A network for images: a line of help, the smallest image it takes, and how it is built."""

    text: str
    smallest_side: int
    build: Callable[[ImageSizes], nn.Module]


def _resnet(n_blocks: int) -> Callable[[ImageSizes], nn.Module]:
    return lambda sizes: resnet.ResNet(
        n_blocks, sizes.n_channels, sizes.n_outputs, _stage_widths(sizes)
    )


def _preresnet(n_blocks: int) -> Callable[[ImageSizes], nn.Module]:
    return lambda sizes: resnet.PreActivationResNet(
        n_blocks, sizes.n_channels, sizes.n_outputs, _stage_widths(sizes)
    )


def _stage_widths(sizes: ImageSizes) -> tuple[int, int, int]:
    first, second, third = resnet.WIDTHS
    return sizes.scale(first), sizes.scale(second), sizes.scale(third)


def _vgg(sizes: ImageSizes) -> nn.Module:
    stages = [[sizes.scale(width) for width in stage] for stage in vgg.STAGES]
    return vgg.VGG(sizes.n_channels, sizes.n_outputs, stages)


def _mobilenet(sizes: ImageSizes) -> nn.Module:
    return mobilenet.MobileNetV2(
        sizes.n_channels,
        sizes.n_outputs,
        [replace(stage, width=sizes.scale(stage.width)) for stage in mobilenet.STAGES],
        sizes.scale(mobilenet.FIRST),
        sizes.scale(mobilenet.LAST),
    )


def _densenet(sizes: ImageSizes) -> nn.Module:
    return densenet.DenseNet(
        12,
        sizes.n_channels,
        sizes.n_outputs,
        sizes.scale(densenet.GROWTH),
        sizes.scale(densenet.FIRST),
    )


def _vit(sizes: ImageSizes) -> nn.Module:
    dim = transformers.N_HEADS * sizes.scale(transformers.DIM // transformers.N_HEADS)
    return transformers.ViT(sizes.n_channels, sizes.side, sizes.n_outputs, dim)


def _mixer(sizes: ImageSizes) -> nn.Module:
    dim = 2 * sizes.scale(transformers.DIM // 2)
    return transformers.Mixer(sizes.n_channels, sizes.side, sizes.n_outputs, dim)


IMAGE_NETWORKS = {
    "resnet20": ImageNetwork(
        "CIFAR's ResNet-20; resnet20:0.5 has half of each width", resnet.SMALLEST_SIDE, _resnet(3)
    ),
    "resnet56": ImageNetwork("CIFAR's ResNet-56", resnet.SMALLEST_SIDE, _resnet(9)),
    "preresnet20": ImageNetwork(
        "pre-activation ResNet-20 with projections", resnet.SMALLEST_SIDE, _preresnet(3)
    ),
    "vgg16-bn": ImageNetwork(
        "VGG-16 with BatchNorm and one fully connected layer", vgg.SMALLEST_SIDE, _vgg
    ),
    "mobilenetv2": ImageNetwork(
        "MobileNetV2 with the strides for 32 x 32", mobilenet.SMALLEST_SIDE, _mobilenet
    ),
    "densenet40": ImageNetwork("DenseNet-40, growth 12", densenet.SMALLEST_SIDE, _densenet),
    "vit": ImageNetwork(
        "vision transformer: patches of 4 x 4, 6 blocks of 192, 3 heads", transformers.PATCH, _vit
    ),
    "mixer": ImageNetwork(
        "MLP-Mixer: patches of 4 x 4, 6 blocks of 192", transformers.PATCH, _mixer
    ),
}
