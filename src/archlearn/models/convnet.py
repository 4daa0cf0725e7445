"""A small convolutional network with BatchNorm for colour images of 32 x 32 and above."""

import itertools

import torch.nn.functional as F
from torch import Tensor, nn


class ConvNet(nn.Module):
    """Six convolutions of 3 x 3 in three stages, 32-32-64-64-128-128, mean over the image."""

    def __init__(self, n_channels: int = 3, n_outputs: int = 10) -> None:
        super().__init__()
        sizes = [n_channels, 32, 32, 64, 64, 128, 128]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, 3, padding=1, bias=False)
            for before, after in itertools.pairwise(sizes)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(size) for size in sizes[1:])
        self.last = nn.Linear(sizes[-1], n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return one score for each class."""
        for place, (convolution, norm) in enumerate(
            zip(self.convolutions, self.norms, strict=True)
        ):
            x = F.relu(norm(convolution(x)))
            if place in (1, 3):
                x = F.max_pool2d(x, 2)
        return self.last(x.mean((2, 3)))
