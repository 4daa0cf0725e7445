"""Networks by name, fitted to the data: `lenet`, or a user's `mypackage.net:build`."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

from archlearn.errors import InputError, did_you_mean
from archlearn.models import caffenet, cifar_networks, transformers
from archlearn.models.lenet import MLP, SMALLEST_SIDE, ConvNet, DeepLeNet, LeNet
from archlearn.models.transformers import build_gpt
from archlearn.models.user_code import (
    explaining_users_code,
    import_callable,
    is_reference,
    refuse_file,
)


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
    return lambda sizes: cifar_networks.ResNet(
        n_blocks, sizes.n_channels, sizes.n_outputs, _stage_widths(sizes)
    )


def _preresnet(n_blocks: int) -> Callable[[ImageSizes], nn.Module]:
    return lambda sizes: cifar_networks.PreActivationResNet(
        n_blocks, sizes.n_channels, sizes.n_outputs, _stage_widths(sizes)
    )


def _stage_widths(sizes: ImageSizes) -> tuple[int, int, int]:
    first, second, third = cifar_networks.RESNET_WIDTHS
    return sizes.scale(first), sizes.scale(second), sizes.scale(third)


def _vgg(sizes: ImageSizes) -> nn.Module:
    stages = [[sizes.scale(width) for width in stage] for stage in cifar_networks.VGG_STAGES]
    return cifar_networks.VGG(sizes.n_channels, sizes.n_outputs, stages)


def _mobilenet(sizes: ImageSizes) -> nn.Module:
    return cifar_networks.MobileNetV2(
        sizes.n_channels,
        sizes.n_outputs,
        [
            replace(stage, width=sizes.scale(stage.width))
            for stage in cifar_networks.MOBILENET_STAGES
        ],
        sizes.scale(cifar_networks.MOBILENET_FIRST),
        sizes.scale(cifar_networks.MOBILENET_LAST),
    )


def _densenet(sizes: ImageSizes) -> nn.Module:
    return cifar_networks.DenseNet(
        12,
        sizes.n_channels,
        sizes.n_outputs,
        sizes.scale(cifar_networks.DENSENET_GROWTH),
        sizes.scale(cifar_networks.DENSENET_FIRST),
    )


def _vit(sizes: ImageSizes) -> nn.Module:
    dim = transformers.N_HEADS * sizes.scale(transformers.DIM // transformers.N_HEADS)
    return transformers.ViT(sizes.n_channels, sizes.side, sizes.n_outputs, dim)


def _mixer(sizes: ImageSizes) -> nn.Module:
    dim = 2 * sizes.scale(transformers.DIM // 2)
    return transformers.Mixer(sizes.n_channels, sizes.side, sizes.n_outputs, dim)


IMAGE_NETWORKS = {
    "resnet20": ImageNetwork(
        "CIFAR's ResNet-20; resnet20:0.5 has half of each width",
        cifar_networks.SMALLEST_SIDE,
        _resnet(3),
    ),
    "resnet56": ImageNetwork("CIFAR's ResNet-56", cifar_networks.SMALLEST_SIDE, _resnet(9)),
    "preresnet20": ImageNetwork(
        "pre-activation ResNet-20 with projections", cifar_networks.SMALLEST_SIDE, _preresnet(3)
    ),
    "vgg16-bn": ImageNetwork(
        "VGG-16 with BatchNorm and one fully connected layer",
        cifar_networks.VGG_SMALLEST_SIDE,
        _vgg,
    ),
    "mobilenetv2": ImageNetwork(
        "MobileNetV2 with the strides for 32 x 32", cifar_networks.SMALLEST_SIDE, _mobilenet
    ),
    "densenet40": ImageNetwork("DenseNet-40, growth 12", cifar_networks.SMALLEST_SIDE, _densenet),
    "vit": ImageNetwork(
        "vision transformer: patches of 4 x 4, 6 blocks of 192, 3 heads", transformers.PATCH, _vit
    ),
    "mixer": ImageNetwork(
        "MLP-Mixer: patches of 4 x 4, 6 blocks of 192", transformers.PATCH, _mixer
    ),
}
Shape = tuple[int, ...]
MODELS = {
    "lenet": "20-50-500-10, the paper's network for MNIST; lenet:8-12-20 chooses widths",
    "deep-lenet": "20-50-(75 x 6)-10; deep-lenet:12 chooses how many",
    "mlp": "300-100 hidden; mlp:500-200-100 chooses others",
    "convnet": "32-32-64-64-128-128 convolutions with BatchNorm",
    "caffenet": "the paper's network for ImageNet; caffenet:0.5 has half of each width",
    "alexnet": "torchvision's AlexNet: one tower, no normalisation",
    **{name: network.text for name, network in IMAGE_NETWORKS.items()},
    "gpt": "6 causal transformer blocks of 192 on tokens; gpt:0.5 has half of each width",
    "package.module:function": "your own function or class",
}


def build_network(name: str, input_shape: Shape, n_outputs: int) -> nn.Module:
    """Return a fresh network for inputs of a shape and so many outputs.

    A user's function is called with `input_shape` and `n_outputs` if it has parameters of those
    names, else with what it has.

    Raises:
        InputError: If there is no such network, or it does not fit the data.
    """
    kind, _, rest = name.partition(":")
    if kind == "lenet":
        channels, side = _square(name, input_shape, SMALLEST_SIDE)
        return LeNet(channels, side, n_outputs, _three(rest or "20-50-500", name))
    if kind == "deep-lenet":
        channels, side = _square(name, input_shape, SMALLEST_SIDE)
        return DeepLeNet(_numbers(rest or "6", name)[0], channels, side, n_outputs)
    if kind == "mlp":
        n_in = 1
        for size in input_shape:
            n_in *= size
        return MLP(n_in, n_outputs, _numbers(rest or "300-100", name))
    if kind == "convnet" and not rest:
        return ConvNet(_square(name, input_shape, 8)[0], n_outputs)
    if kind == "caffenet":
        channels, side = _square(name, input_shape, caffenet.SMALLEST_SIDE)
        sizes = caffenet.CaffeNetSizes(
            n_channels=channels, side=side, n_outputs=n_outputs, factor=_factor(rest or "1", name)
        )
        return caffenet.CaffeNet(sizes)
    if kind in IMAGE_NETWORKS:
        network = IMAGE_NETWORKS[kind]
        channels, side = _square(name, input_shape, network.smallest_side)
        return network.build(ImageSizes(channels, side, n_outputs, _factor(rest or "1", name)))
    if kind == "gpt":
        return build_gpt(_length(name, input_shape), n_outputs, _factor(rest or "1", name))
    if kind == "alexnet" and not rest:
        channels, _ = _square(name, input_shape, caffenet.SMALLEST_SIDE_OF_ALEXNET)
        return caffenet.AlexNet(channels, n_outputs)
    refuse_file(name)
    if is_reference(name):
        return _from_user(name, input_shape, n_outputs)
    raise _unknown(name)


def reads_tokens(name: str) -> bool:
    """Return whether a built-in network reads tokens, whole numbers, and not numbers."""
    return name.partition(":")[0] == "gpt"


def _square(name: str, shape: Shape, smallest: int) -> tuple[int, int]:
    """Return channels and side of square images, or refuse."""
    if len(shape) != 3 or shape[1] != shape[2] or shape[1] < smallest:
        raise InputError(
            f"the model {name!r} takes square images of at least {smallest} x {smallest} pixels, "
            f"but one example has shape {shape}; use --model mlp, or data that fit "
            "(digits:28 enlarges the digits), or enlarge them batch by batch (--resize 227)"
        )
    return shape[0], shape[1]


def _length(name: str, shape: Shape) -> int:
    """Return the number of tokens of an example, or refuse."""
    if len(shape) != 1:
        raise InputError(
            f"the model {name!r} reads rows of tokens, but one example has shape {shape}; use text "
            "(--data tiny-shakespeare:FILE), or a model for images (--model vit)"
        )
    return shape[0]


def _numbers(text: str, name: str) -> list[int]:
    parts = text.split("-")
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise InputError(f"{name!r}: give widths as numbers with dashes, as in mlp:300-100")
    return [int(part) for part in parts]


def _factor(text: str, name: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    kind = name.partition(":")[0]
    if not 0 < factor <= 4:
        raise InputError(f"{name!r}: give the factor of the widths, as in {kind}:0.5")
    return factor


def _three(text: str, name: str) -> tuple[int, int, int]:
    numbers = _numbers(text, name)
    if len(numbers) != 3:
        raise InputError(f"{name!r}: a LeNet has three widths to choose, as in lenet:8-12-20")
    return numbers[0], numbers[1], numbers[2]


def _from_user(name: str, input_shape: Shape, n_outputs: int) -> nn.Module:
    function = import_callable(name)
    with explaining_users_code(name):
        made = function(**_wanted(function, input_shape=input_shape, n_outputs=n_outputs))
    if not isinstance(made, nn.Module):
        raise InputError(f"{name} returned {type(made).__name__}; it must return an nn.Module")
    return made


def _wanted(function: Callable[..., object], **offered: object) -> dict[str, object]:
    """Return those of the offered arguments that a function has parameters for."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in offered.items() if name in names}


def _unknown(name: str) -> InputError:
    hint = did_you_mean(name.partition(":")[0], [kind.partition(":")[0] for kind in MODELS])
    return InputError(f"there is no model {name!r}; {hint}choose one of {', '.join(MODELS)}")
