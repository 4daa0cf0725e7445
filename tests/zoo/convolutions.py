"""Convolutions of every kind, and the pairs of layers that merge."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.kinds import Kind, Net, batch, kind, parts
from tests.zoo.layers import chain, conv, linear, norm

IMAGE, SIGNAL, VOLUME = batch(3, 8, 8), batch(3, 9), batch(3, 4, 5, 4)


class InvertedResidual(Net):
    """MobileNetV2's block: expand, depthwise, project without activation, add."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.stem_norm(self.stem(x)))
        y = F.relu6(self.norm1(self.expand(x)))
        y = F.relu6(self.norm2(self.depthwise(y)))
        x = x + self.norm3(self.project(y))
        return self.head(F.relu6(self.last(x)))


class Separable(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = F.relu(self.point(self.depth(x)))
        return self.head(x)


_inverted = parts(
    InvertedResidual,
    stem=conv(3, 5),
    stem_norm=norm(5),
    expand=lambda: nn.Conv2d(5, 11, 1, bias=False),
    norm1=norm(11),
    depthwise=lambda: nn.Conv2d(11, 11, 3, padding=1, groups=11, bias=False),
    norm2=norm(11),
    project=lambda: nn.Conv2d(11, 5, 1, bias=False),
    norm3=norm(5),
    last=lambda: nn.Conv2d(5, 7, 1),
    head=conv(7, 4),
)


def _three(middle: Callable[[], nn.Module], n_in: int, n_out: int) -> Callable[[], nn.Module]:
    """A convolution, the one in question, and a last one, with activations between."""
    return chain(conv(3, n_in), nn.ReLU, middle, nn.ReLU, lambda: nn.Conv2d(n_out, 4, 3, padding=1))


_mlp = chain(linear(6, 9), nn.ReLU, linear(9, 7), nn.ReLU, linear(7, 3))

CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "grouped": (lambda: nn.Conv2d(6, 9, 3, padding=1, groups=3), 6, 9),
    "of_many_groups": (lambda: nn.Conv2d(16, 20, 3, padding=1, groups=4), 16, 20),
    "depthwise": (lambda: nn.Conv2d(5, 5, 3, padding=1, groups=5), 5, 5),
    "depthwise_multiplied": (lambda: nn.Conv2d(5, 10, 3, padding=1, groups=5), 5, 10),
    "strided": (lambda: nn.Conv2d(5, 7, 3, stride=2, padding=1), 5, 7),
    "dilated": (lambda: nn.Conv2d(5, 7, 3, dilation=2, padding=2), 5, 7),
    "same_padding": (lambda: nn.Conv2d(5, 7, 3, padding="same"), 5, 7),
    "reflecting": (lambda: nn.Conv2d(5, 7, 3, padding=1, padding_mode="reflect"), 5, 7),
    "circular": (lambda: nn.Conv2d(5, 7, 3, padding=1, padding_mode="circular"), 5, 7),
    "transposed": (lambda: nn.ConvTranspose2d(5, 7, 3, stride=2, output_padding=1), 5, 7),
    "grouped_transposed": (lambda: nn.ConvTranspose2d(6, 9, 2, stride=2, groups=3), 6, 9),
    "transposed_of_many_groups": (lambda: nn.ConvTranspose2d(16, 20, 2, groups=4), 16, 20),
    "depthwise_transposed": (lambda: nn.ConvTranspose2d(5, 5, 2, stride=2, groups=5), 5, 5),
}

# A pair of layers round one activation, and the channels there if the pair merges.
PAIRS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv_then_pointwise": (chain(conv(3, 5), nn.ReLU, conv(5, 4, 1)), (5,)),
    "conv_batchnorm_then_pointwise": (
        chain(conv(3, 5), norm(5), nn.ReLU, conv(5, 4, 1)),
        (5,),
    ),
    "conv_then_unpadded": (
        chain(conv(3, 5), nn.ReLU, lambda: nn.Conv2d(5, 4, 3)),
        (5,),
    ),
    "unpadded_then_unpadded": (
        chain(lambda: nn.Conv2d(3, 5, 3), nn.ReLU, lambda: nn.Conv2d(5, 4, 3)),
        (5,),
    ),
    "strided_dilated_then_unpadded": (
        chain(lambda: nn.Conv2d(3, 5, 2, 2, dilation=2), nn.ReLU, lambda: nn.Conv2d(5, 4, 2)),
        (5,),
    ),
    "pointwise_then_padded": (
        chain(lambda: nn.Conv2d(3, 5, 1, bias=False), nn.ReLU, conv(5, 4)),
        (5,),
    ),
    "biased_pointwise_then_padded": (
        chain(lambda: nn.Conv2d(3, 5, 1), nn.ReLU, conv(5, 4)),
        (),
    ),
    "padded_then_padded": (chain(conv(3, 5), nn.ReLU, conv(5, 4)), ()),
    "across_max_pooling": (
        chain(conv(3, 5), nn.ReLU, lambda: nn.MaxPool2d(2), conv(5, 4, 1)),
        (),
    ),
}

KINDS: tuple[Kind, ...] = (
    *(kind(f"conv_{n}", _three(c, i, o), IMAGE, (i, o)) for n, (c, i, o) in CONVOLUTIONS.items()),
    *(kind(f"pair_{n}", build, IMAGE, (5,), depth) for n, (build, depth) in PAIRS.items()),
    kind("mlp", _mlp, batch(6), (9, 7), (9, 7)),
    kind("mlp_on_sequences", _mlp, batch(5, 6), (9, 7), (9, 7)),
    kind(
        "conv1d",
        chain(
            lambda: nn.Conv1d(3, 5, 3),
            nn.ReLU,
            lambda: nn.Conv1d(5, 7, 3),
            nn.GELU,
            lambda: nn.Conv1d(7, 4, 1),
        ),
        SIGNAL,
        (5, 7),
        (5, 7),
    ),
    kind(
        "conv3d",
        chain(
            lambda: nn.Conv3d(3, 5, 3, padding=1),
            nn.ReLU,
            lambda: nn.Conv3d(5, 7, 2),
            nn.ReLU,
            nn.Flatten,
            lambda: nn.Linear(7 * 36, 4),
        ),
        VOLUME,
        (5, 7),
        (5,),
    ),
    kind("inverted_residual", _inverted, IMAGE, (5, 7, 11)),
    kind(
        "depthwise_without_activation",
        parts(
            Separable,
            first=conv(3, 5),
            depth=lambda: nn.Conv2d(5, 5, 3, padding=1, groups=5),
            point=lambda: nn.Conv2d(5, 7, 1),
            head=conv(7, 4),
        ),
        IMAGE,
        (5, 7),
        note="the bias of the depthwise layer makes a dropped channel a constant",
    ),
)
