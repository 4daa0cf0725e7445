"""A plain network of fully connected layers, for vectors or flattened images."""

import itertools
from collections.abc import Sequence

from torch import Tensor, nn

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
