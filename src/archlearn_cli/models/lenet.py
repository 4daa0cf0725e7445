"""LeNet as the paper uses it (20-50-500-10), and the plain MLP and ConvNet beside it."""

import itertools
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

LENET_SMALLEST_SIDE = 16


class LeNet(nn.Module):
    """Two convolutions of 5 x 5 and two fully connected layers.

    On 28 x 28 images of one channel it has 431,080 parameters.
    """

    def __init__(
        self,
        n_channels: int = 1,
        side: int = 28,
        n_outputs: int = 10,
        widths: tuple[int, int, int] = (20, 50, 500),
    ) -> None:
        super().__init__()
        reduced = ((side - 4) // 2 - 4) // 2
        first, second, third = widths
        self.conv1 = nn.Conv2d(n_channels, first, 5)
        self.conv2 = nn.Conv2d(first, second, 5)
        self.fc1 = nn.Linear(second * reduced * reduced, third)
        self.fc2 = nn.Linear(third, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return one score for each class."""
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


class DeepLeNet(nn.Module):
    """20-50-(75 x n)-10, the network of the paper's depth experiment."""

    def __init__(
        self, n_hidden: int = 6, n_channels: int = 1, side: int = 28, n_outputs: int = 10
    ) -> None:
        super().__init__()
        reduced = ((side - 4) // 2 - 4) // 2
        self.conv1 = nn.Conv2d(n_channels, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        sizes = [50 * reduced * reduced] + [75] * n_hidden
        self.hidden = nn.ModuleList(_hidden(*ends) for ends in itertools.pairwise(sizes))
        self.last = nn.Linear(75, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return one score for each class."""
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2)).flatten(1)
        for layer in self.hidden:
            x = F.relu(layer(x))
        return self.last(x)


def _hidden(n_in: int, n_out: int) -> nn.Linear:
    """Return a layer that keeps the size of signals, as long as it is linear.

    torch's own start halves them at each layer, and fifteen layers then never begin.
    """
    layer = nn.Linear(n_in, n_out)
    nn.init.kaiming_uniform_(layer.weight, nonlinearity="linear")
    nn.init.zeros_(layer.bias)
    return layer


HIDDEN = (300, 100)


class MLP(nn.Module):
    """Fully connected layers with ReLU between them; 300-100 hidden unless told otherwise."""

    def __init__(self, n_in: int, n_outputs: int, hidden: Sequence[int] = HIDDEN) -> None:
        super().__init__()
        sizes = [n_in, *hidden]
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.flatten = nn.Flatten()
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], n_outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return one number for each output."""
        return self.layers(self.flatten(x))


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
        for index, (convolution, norm) in enumerate(
            zip(self.convolutions, self.norms, strict=True)
        ):
            x = F.relu(norm(convolution(x)))
            if index in (1, 3):
                x = F.max_pool2d(x, 2)
        return self.last(x.mean((2, 3)))
