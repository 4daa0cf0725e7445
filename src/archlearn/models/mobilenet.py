"""MobileNetV2 for images of 32 x 32: the first two strides of the ImageNet form are 1.

Sandler et al.: MobileNetV2: inverted residuals and linear bottlenecks, CVPR 2018, table 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from archlearn.models.initialization import draw_weights_

SMALLEST_SIDE = 8


@dataclass(frozen=True, slots=True)
class MobileNetStage:
    """Inverted residual blocks of one width; the stride is that of the first one."""

    expansion: int
    width: int
    n_blocks: int
    stride: int


STAGES = (
    MobileNetStage(1, 16, 1, 1),
    MobileNetStage(6, 24, 2, 1),
    MobileNetStage(6, 32, 3, 2),
    MobileNetStage(6, 64, 4, 2),
    MobileNetStage(6, 96, 3, 1),
    MobileNetStage(6, 160, 3, 2),
    MobileNetStage(6, 320, 1, 1),
)
FIRST, LAST = 32, 1280


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
        stages: Sequence[MobileNetStage] = STAGES,
        first: int = FIRST,
        last: int = LAST,
    ) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        before = first
        for stage in stages:
            for place in range(stage.n_blocks):
                stride = stage.stride if place == 0 else 1
                blocks.append(InvertedResidual(before, stage.width, stage.expansion, stride))
                before = stage.width
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
