"""CaffeNet, the paper's network for ImageNet."""

import torch
from torch import Tensor, nn

from archlearn.errors import InputError
from archlearn.nn.norms import LocalResponse
from archlearn_cli.models.cifar_networks import draw_weights_

INPUT_SIDE = 227
SMALLEST_SIDE = 67
WIDTHS = (96, 256, 384, 384, 256, 4096, 4096)


class CaffeNet(nn.Module):
    """96-256-384-384-256-4096-4096-1000; layers 2, 4 and 5 are convolutions of two groups.

    Layers have Caffe's names. The whole network on 227 x 227 images and 1000 classes has
    60,965,224 parameters. Fresh weights are drawn so that the activations keep their size, which
    lets the network learn at higher rates than Caffe's own start; Caffe's weights are read by
    `archlearn_paper.caffe_import`. A factor multiplies every hidden width.
    """

    def __init__(
        self,
        n_channels: int = 3,
        side: int = INPUT_SIDE,
        n_outputs: int = 1000,
        factor: float = 1.0,
    ) -> None:
        super().__init__()
        # Even widths, for the convolutions of two groups.
        widths = (max(2, 2 * round(width * factor / 2)) for width in WIDTHS)
        first, second, third, fourth, fifth, sixth, seventh = widths
        reduced = (side - 11) // 4 + 1
        for _ in range(3):
            reduced = (reduced - 3) // 2 + 1
        self.conv1 = nn.Conv2d(n_channels, first, 11, stride=4)
        self.pool1 = nn.MaxPool2d(3, 2)
        self.norm1 = LocalResponse(5, alpha=1e-4, beta=0.75)
        self.conv2 = nn.Conv2d(first, second, 5, padding=2, groups=2)
        self.pool2 = nn.MaxPool2d(3, 2)
        self.norm2 = LocalResponse(5, alpha=1e-4, beta=0.75)
        self.conv3 = nn.Conv2d(second, third, 3, padding=1)
        self.conv4 = nn.Conv2d(third, fourth, 3, padding=1, groups=2)
        self.conv5 = nn.Conv2d(fourth, fifth, 3, padding=1, groups=2)
        self.pool5 = nn.MaxPool2d(3, 2)
        self.fc6 = nn.Linear(fifth * reduced**2, sixth)
        self.drop6 = nn.Dropout()
        self.fc7 = nn.Linear(sixth, seventh)
        self.drop7 = nn.Dropout()
        self.fc8 = nn.Linear(seventh, n_outputs)
        draw_weights_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return one score for each class."""
        x = self.norm1(self.pool1(torch.relu(self.conv1(x))))
        x = self.norm2(self.pool2(torch.relu(self.conv2(x))))
        x = torch.relu(self.conv3(x))
        x = torch.relu(self.conv4(x))
        x = self.pool5(torch.relu(self.conv5(x))).flatten(1)
        x = self.drop6(torch.relu(self.fc6(x)))
        x = self.drop7(torch.relu(self.fc7(x)))
        return self.fc8(x)


def build(input_shape: tuple[int, ...], n_outputs: int, *, factor: float = 1.0) -> CaffeNet:
    """Return a fresh CaffeNet: `archlearn learn --model archlearn_paper.caffenet:build`."""
    if len(input_shape) != 3 or not input_shape[1] == input_shape[2] >= SMALLEST_SIDE:
        raise InputError(
            f"CaffeNet takes square images of at least {SMALLEST_SIDE} x {SMALLEST_SIDE} pixels, "
            f"but one example has shape {input_shape}; archlearn learn --resize 227 enlarges any"
        )
    return CaffeNet(input_shape[0], input_shape[1], n_outputs, factor)


def build_eighth(input_shape: tuple[int, ...], n_outputs: int) -> CaffeNet:
    """Return a CaffeNet with an eighth of each width."""
    return build(input_shape, n_outputs, factor=1 / 8)
