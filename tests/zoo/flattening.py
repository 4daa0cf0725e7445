"""Every way of making an image a vector."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.kinds import Kind, Net, batch, kind, parts
from tests.zoo.layers import conv, linear

IMAGE = batch(3, 8, 8)


class _Body(Net):
    """Two convolutions; subclasses say how the image becomes a vector."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = F.max_pool2d(F.relu(self.second(x)), 4)
        return self.head(F.relu(self.hidden(self.flat(x))))

    def flat(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class Flatten(_Body):
    def flat(self, x: Tensor) -> Tensor:
        return torch.flatten(x, 1)


class ViewBatch(_Body):
    def flat(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1)


class ViewLiteral(_Body):
    def flat(self, x: Tensor) -> Tensor:
        return x.view(-1, 28)


class ViewSizeLiteral(_Body):
    def flat(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), 28)


class ViewAllSizes(_Body):
    def flat(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        return x.view(n, c * h * w)


class Reshape(_Body):
    def flat(self, x: Tensor) -> Tensor:
        return torch.reshape(x, (x.shape[0], -1))


class CountsFeatures(_Body):
    """A loop over a shape, from the oldest of the tutorials."""

    def flat(self, x: Tensor) -> Tensor:
        n_features = 1
        for size in x.size()[1:]:
            n_features *= size
        return x.view(-1, n_features)


class ByRank(_Body):
    """Asks whether there is anything to flatten."""

    def flat(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            raise ValueError("a batch of images is needed")
        return x.flatten(x.ndim - 3) if len(x.shape) > 2 else x


def _flat(cls: type[_Body]) -> Callable[[], nn.Module]:
    return parts(cls, first=conv(3, 5), second=conv(5, 7), hidden=linear(28, 9), head=linear(9, 4))


FLATTENERS = (
    Flatten,
    ViewBatch,
    ViewLiteral,
    ViewSizeLiteral,
    ViewAllSizes,
    Reshape,
    CountsFeatures,
    ByRank,
)

KINDS: tuple[Kind, ...] = tuple(
    kind(f"flat_{c.__name__.lower()}", _flat(c), IMAGE, (5, 7, 9), (9,)) for c in FLATTENERS
)
