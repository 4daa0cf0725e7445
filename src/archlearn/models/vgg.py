"""VGG-16 with BatchNorm, in the form used on CIFAR: one fully connected layer.

Simonyan, Zisserman: Very deep convolutional networks for large-scale image recognition, ICLR 2015.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from archlearn.models.initialization import draw_weights_

SMALLEST_SIDE = 16
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG(nn.Module):
    """Convolutions of 3 x 3 in stages, max-pooling between them, mean over the image at the end.

    VGG-16 with ten classes has 14,724,042 parameters and, on 32 x 32 images, 313 million
    multiply-adds.
    """

    def __init__(
        self,
        n_channels: int = 3,
        n_outputs: int = 10,
        stages: Sequence[Sequence[int]] = STAGES,
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
