"""Networks by name, fitted to the data: `lenet`, or a user's `mypackage.net:build`."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from archlearn.errors import InputError
from archlearn_cli.models import alexnet, cifar_networks, transformers
from archlearn_cli.models.lenet import LENET_SMALLEST_SIDE, MLP, ConvNet, DeepLeNet, LeNet
from archlearn_cli.models.user_code import call_users_code

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NetworkRequest:
    """A network by its name, with widths, layers or a factor behind a colon, and data to fit."""

    name: str
    input_shape: Shape
    n_outputs: int

    @property
    def chosen(self) -> str:
        """Return what stands behind the colon."""
        return self.name.partition(":")[2]

    def scale(self, width: int) -> int:
        """Return a width times the factor that was chosen, one at least."""
        return max(1, round(width * self.factor))

    @property
    def factor(self) -> float:
        """Return what every hidden width is multiplied by; 1 is the whole network."""
        try:
            factor = float(self.chosen or "1")
        except ValueError:
            factor = 0.0
        if not 0 < factor <= 4:
            kind = self.name.partition(":")[0]
            raise InputError(f"{self.name!r}: give the factor of the widths, as in {kind}:0.5")
        return factor

    def numbers(self, default: str) -> list[int]:
        """Return the numbers that were chosen, with dashes between them."""
        parts = (self.chosen or default).split("-")
        if not all(part.isdigit() and int(part) > 0 for part in parts):
            raise InputError(
                f"{self.name!r}: give widths as numbers with dashes, as in mlp:300-100"
            )
        return [int(part) for part in parts]

    def images(self, smallest: int) -> tuple[int, int]:
        """Return channels and side of square images, or refuse."""
        shape = self.input_shape
        if len(shape) != 3 or shape[1] != shape[2] or shape[1] < smallest:
            raise InputError(
                f"the model {self.name!r} takes square images of at least {smallest} x {smallest} "
                f"pixels, but one example has shape {shape}; take the model mlp, or examples that "
                "fit: the data digits:28 are enlarged digits, and archlearn learn --resize 227 "
                "enlarges any images"
            )
        return shape[0], shape[1]

    def length(self) -> int:
        """Return the number of tokens of an example, or refuse."""
        if len(self.input_shape) != 1:
            raise InputError(
                f"the model {self.name!r} reads rows of tokens, but one example has shape "
                f"{self.input_shape}; take the data tiny-shakespeare:FILE, or the model vit for "
                "images"
            )
        return self.input_shape[0]


def _lenet(asked: NetworkRequest) -> nn.Module:
    widths = asked.numbers("20-50-500")
    if len(widths) != 3:
        raise InputError(f"{asked.name!r}: a LeNet has three widths to choose, as in lenet:8-12-20")
    first, second, third = widths
    return LeNet(*asked.images(LENET_SMALLEST_SIDE), asked.n_outputs, (first, second, third))


def _deep_lenet(asked: NetworkRequest) -> nn.Module:
    images = asked.images(LENET_SMALLEST_SIDE)
    return DeepLeNet(asked.numbers("6")[0], *images, asked.n_outputs)


def _residual(
    kind: type[cifar_networks.ResNet] | type[cifar_networks.PreActivationResNet], n_blocks: int
) -> Callable[[NetworkRequest], nn.Module]:
    def build(asked: NetworkRequest) -> nn.Module:
        channels, _ = asked.images(cifar_networks.CIFAR_SMALLEST_SIDE)
        first, second, third = map(asked.scale, cifar_networks.RESNET_WIDTHS)
        return kind(n_blocks, channels, asked.n_outputs, (first, second, third))

    return build


def _vgg(asked: NetworkRequest) -> nn.Module:
    channels, _ = asked.images(cifar_networks.VGG_SMALLEST_SIDE)
    stages = [[asked.scale(width) for width in stage] for stage in cifar_networks.VGG_STAGES]
    return cifar_networks.VGG(channels, asked.n_outputs, stages)


def _mobilenet(asked: NetworkRequest) -> nn.Module:
    stages = cifar_networks.MOBILENET_STAGES
    return cifar_networks.MobileNetV2(
        asked.images(cifar_networks.CIFAR_SMALLEST_SIDE)[0],
        asked.n_outputs,
        [(t, asked.scale(width), n, s) for t, width, n, s in stages],
        asked.scale(cifar_networks.MOBILENET_FIRST),
        asked.scale(cifar_networks.MOBILENET_LAST),
    )


def _densenet(asked: NetworkRequest) -> nn.Module:
    return cifar_networks.DenseNet(
        12,
        asked.images(cifar_networks.CIFAR_SMALLEST_SIDE)[0],
        asked.n_outputs,
        asked.scale(cifar_networks.DENSENET_GROWTH),
        asked.scale(cifar_networks.DENSENET_FIRST),
    )


def _vit(asked: NetworkRequest) -> nn.Module:
    dim = transformers.N_HEADS * asked.scale(transformers.DIM // transformers.N_HEADS)
    return transformers.ViT(*asked.images(transformers.PATCH), asked.n_outputs, dim)


def _mixer(asked: NetworkRequest) -> nn.Module:
    dim = 2 * asked.scale(transformers.DIM // 2)
    return transformers.Mixer(*asked.images(transformers.PATCH), asked.n_outputs, dim)


def _gpt(asked: NetworkRequest) -> nn.Module:
    dim = transformers.GPT_HEADS * asked.scale(transformers.DIM // transformers.GPT_HEADS)
    return transformers.GPT(asked.n_outputs, asked.length(), dim)


_BUILT_IN: dict[str, tuple[str, Callable[[NetworkRequest], nn.Module]]] = {
    "lenet": (
        "20-50-500-10, the paper's network for MNIST; lenet:8-12-20 chooses widths",
        _lenet,
    ),
    "deep-lenet": ("20-50-(75 x 6)-10; deep-lenet:12 chooses how many", _deep_lenet),
    "mlp": (
        "300-100 hidden; mlp:500-200-100 chooses others",
        lambda asked: MLP(math.prod(asked.input_shape), asked.n_outputs, asked.numbers("300-100")),
    ),
    "convnet": (
        "32-32-64-64-128-128 convolutions with BatchNorm",
        lambda asked: ConvNet(asked.images(8)[0], asked.n_outputs),
    ),
    "alexnet": (
        "torchvision's AlexNet: one tower, no normalisation",
        lambda asked: alexnet.AlexNet(
            asked.images(alexnet.ALEXNET_SMALLEST_SIDE)[0], asked.n_outputs
        ),
    ),
    "resnet20": (
        "CIFAR's ResNet-20; resnet20:0.5 has half of each width",
        _residual(cifar_networks.ResNet, 3),
    ),
    "resnet56": ("CIFAR's ResNet-56", _residual(cifar_networks.ResNet, 9)),
    "preresnet20": (
        "pre-activation ResNet-20 with projections",
        _residual(cifar_networks.PreActivationResNet, 3),
    ),
    "vgg16-bn": ("VGG-16 with BatchNorm and one fully connected layer", _vgg),
    "mobilenetv2": ("MobileNetV2 with the strides for 32 x 32", _mobilenet),
    "densenet40": ("DenseNet-40, growth 12", _densenet),
    "vit": ("vision transformer: patches of 4 x 4, 6 blocks of 192, 3 heads", _vit),
    "mixer": ("MLP-Mixer: patches of 4 x 4, 6 blocks of 192", _mixer),
    "gpt": ("6 causal transformer blocks of 192 on tokens; gpt:0.5 has half of each width", _gpt),
}
_NOTHING_TO_CHOOSE = ("convnet", "alexnet")
MODELS = {
    **{name: text for name, (text, _) in _BUILT_IN.items()},
    "package.module:function": "your own function or class",
}


def build_network(name: str, input_shape: Shape, n_outputs: int) -> nn.Module:
    """Return a fresh network for inputs of a shape and so many outputs.

    A user's function is called with `input_shape` and `n_outputs` if it has parameters of those
    names, else with what it has.

    Raises:
        InputError: If there is no such network, or it does not fit the data.
    """
    kind, _, chosen = name.partition(":")
    if kind in _BUILT_IN and not (chosen and kind in _NOTHING_TO_CHOOSE):
        return _BUILT_IN[kind][1](NetworkRequest(name, input_shape, n_outputs))
    network = call_users_code(name, "model", MODELS, input_shape=input_shape, n_outputs=n_outputs)
    if not isinstance(network, nn.Module):
        raise InputError(f"{name} returned {type(network).__name__}; it must return an nn.Module")
    return network
