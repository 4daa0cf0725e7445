"""Torchvision's AlexNet."""

import torch
from torch import Tensor, nn

ALEXNET_SMALLEST_SIDE = 63


class AlexNet(nn.Module):
    """64-192-384-256-256-4096-4096-1000, without groups; 61,100,840 parameters.

    A `state_dict` of torchvision's `alexnet` fits as it is.
    """

    def __init__(self, n_channels: int = 3, n_outputs: int = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(n_channels, 64, 11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Linear(4096, n_outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return one score for each class."""
        x = self.avgpool(self.features(x))
        return self.classifier(torch.flatten(x, 1))
