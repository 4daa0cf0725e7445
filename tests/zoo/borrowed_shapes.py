"""A tensor takes the shape of another one, which has lost channels since."""

import torch
from torch import Tensor

from tests.zoo.kinds import Kind, Net, batch, kind, parts
from tests.zoo.layers import conv

IMAGE = batch(3, 4, 4)


class Borrowing(Net):
    """Channels are mixed, flattened and put back into the shape of what came in."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        mixed = torch.relu(self.second(x)).flatten(2).softmax(1)
        return self.head(self.back(mixed, x))

    def back(self, y: Tensor, x: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        return y.reshape(n, channels, height, width)


class WholeShape(Borrowing):
    def back(self, y: Tensor, x: Tensor) -> Tensor:
        return y.reshape(x.shape)


class WholeSize(Borrowing):
    def back(self, y: Tensor, x: Tensor) -> Tensor:
        return y.view(x.size())


class Spread(Borrowing):
    def back(self, y: Tensor, x: Tensor) -> Tensor:
        return torch.reshape(y, (*x.shape[:2], *x.shape[-2:]))


class Joined(Borrowing):
    def back(self, y: Tensor, x: Tensor) -> Tensor:
        return y.reshape(x.shape[:2] + x.shape[2:])


class AsAnother(Borrowing):
    def back(self, y: Tensor, x: Tensor) -> Tensor:
        return y.reshape_as(x)


class Counted(Borrowing):
    def back(self, y: Tensor, x: Tensor) -> Tensor:
        n, _, height, width = x.shape
        return y.reshape(-1, x.numel() // (n * height * width), height, width)


class Sliced(Borrowing):
    def back(self, y: Tensor, x: Tensor) -> Tensor:
        return y.unflatten(2, x.shape[2:])[:, : x.shape[1]]


def _kind(cls: type[Net]) -> Kind:
    made = parts(cls, first=conv(3, 5), second=conv(5, 5, 1), head=conv(5, 4, 1))
    return kind(f"borrowed_shape_{cls.__name__.lower()}", made, IMAGE, (5,))


KINDS: tuple[Kind, ...] = tuple(
    _kind(cls)
    for cls in (
        Borrowing, WholeShape, WholeSize, Spread, Joined, AsAnother, Counted, Sliced,
    )
)  # fmt: skip
