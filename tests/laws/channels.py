"""Blocks that move, split, gate or normalise channels."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.laws.layers import Maker, Shape
from tests.laws.pieces import Calls, activation, keeping
from tests.laws.programs import Chooser


class Halves(nn.Module):
    """Two halves of the channels, made one again."""

    def __init__(self, cut: str, kind: str, work: nn.Module) -> None:
        super().__init__()
        self.cut, self.kind, self.work = cut, kind, work

    def forward(self, x: Tensor) -> Tensor:
        if self.cut == "chunk":
            left, right = x.chunk(2, dim=1)
        elif self.cut == "split":
            left, right = torch.split(x, x.shape[1] // 2, dim=1)
        else:
            left, right = x[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :]
        if self.kind == "gate":
            return left * torch.sigmoid(right)
        if self.kind == "sum":
            return self.work(left) + right
        return torch.cat((right, self.work(left)), dim=1)


def halves(shape: Shape, width: int, pick: Chooser) -> nn.Module:
    """A layer whose halves gate, join or pass each other."""
    width = min(width, 4)
    first = keeping(shape[0], 2 * width, len(shape) - 1, pick)
    work = nn.Sequential(keeping(width, width, len(shape) - 1, pick), activation(width, pick))
    act = [activation(2 * width, pick)] if pick((True, False)) else []
    halved = Halves(pick(("chunk", "split", "slice")), pick(("gate", "sum", "swap")), work)
    return nn.Sequential(first, *act, halved)


def uneven(shape: Shape, width: int, pick: Chooser) -> nn.Module:
    """A layer, cut at any channel, both parts worked on and joined."""
    n_space = len(shape) - 1
    first = nn.Sequential(keeping(shape[0], width + 2, n_space, pick), activation(width + 2, pick))
    left, right = keeping(width, 2, n_space, pick), keeping(2, 2, n_space, pick)
    return nn.Sequential(first, Parts(left, right, (width, 2)))


class Parts(nn.Module):
    """Two parts of the channels, of different size."""

    def __init__(self, left: nn.Module, right: nn.Module, sizes: tuple[int, int]) -> None:
        super().__init__()
        self.left, self.right, self.sizes = left, right, sizes

    def forward(self, x: Tensor) -> Tensor:
        left, right = torch.split(x, list(self.sizes), dim=1)
        return F.relu(self.left(left) + self.right(right))


def glu(shape: Shape, width: int, pick: Chooser) -> nn.Module:
    """A gated linear unit over the channels."""
    first = keeping(shape[0], 2 * width, len(shape) - 1, pick)
    return nn.Sequential(first, pick((lambda: nn.GLU(1), lambda: Calls(_glu)))())


def _glu(x: Tensor) -> Tensor:
    return F.glu(x, dim=1)


def shuffle(shape: Shape, width: int, pick: Chooser) -> nn.Module | None:
    """Channels in another order."""
    n = shape[0]
    groups = next((g for g in (2, 3) if n % g == 0), 1)
    made: list[Callable[[], nn.Module]] = [
        lambda: Calls(pick((_view_shuffle, _sized_shuffle))(groups, len(shape) - 1)),
        lambda: Calls(lambda x: x.flip(1)),
        lambda: Calls(lambda x: torch.roll(x, 1, 1)),
        lambda: Calls(lambda x: torch.cat((x[:, 1:], x[:, :1]), 1)),
    ]
    if len(shape) == 3:
        made.append(lambda: nn.ChannelShuffle(groups))
    return pick(made)()


def _view_shuffle(groups: int, n_space: int) -> Callable[[Tensor], Tensor]:
    """Shuffle as people write it, with sizes read from the tensor."""

    def call(x: Tensor) -> Tensor:
        n, c = x.size(0), x.size(1)
        space = [x.size(2 + dim) for dim in range(n_space)]
        x = x.view(n, groups, c // groups, *space)
        return torch.transpose(x, 1, 2).contiguous().view(n, -1, *space)

    return call


def _sized_shuffle(groups: int, n_space: int) -> Callable[[Tensor], Tensor]:
    """Shuffle by `unflatten`."""
    return lambda x: x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)


def selected(shape: Shape, width: int, pick: Chooser) -> nn.Module | None:
    """Some of the channels, or some of them twice."""
    n = shape[0]
    if n < 2 or n > 6:
        return None
    forms = [
        lambda x: x[:, 1:],
        lambda x: x[:, ::2],
        lambda x: x[:, :-1],
        lambda x: x.narrow(1, 0, n - 1),
        lambda x: torch.cat((x, x), 1),
        lambda x: torch.cat((x, -x), 1),
        lambda x: torch.stack((x, 2 * x), 1).flatten(1, 2),
        lambda x: torch.stack(torch.unbind(x, 1)[1:], 1),
        lambda x: x.repeat_interleave(2, dim=1),
        lambda x: x[:, :1] + x,
        lambda x: x - x.mean(1, keepdim=True),
        lambda x: x.softmax(1),
    ]
    return Calls(pick(forms))


def pixels(shape: Shape, width: int, pick: Chooser) -> nn.Module | None:
    """Channels to places, or places to channels."""
    if len(shape) != 3:
        return None
    n, height, breadth = shape
    if n % 4 == 0 and max(height, breadth) <= 4:
        return nn.PixelShuffle(2)
    if n <= 2 and height % 2 == 0 and breadth % 2 == 0:
        return nn.PixelUnshuffle(2)
    return None


def across_norm(shape: Shape, width: int, pick: Chooser) -> nn.Module:
    """A norm that mixes channels, or one that does not."""
    n, n_space = shape[0], len(shape) - 1
    groups = next((g for g in (2, 3) if n % g == 0), 1)
    made: list[Callable[[], nn.Module]] = [
        lambda: nn.GroupNorm(groups, n),
        lambda: nn.GroupNorm(1, n),
        lambda: nn.LayerNorm(shape[-1]) if n_space == 0 else nn.LayerNorm(list(shape)),
    ]
    if not n_space:
        made.append(lambda: nn.RMSNorm(n))
    elif torch.Size(shape[1:]).numel() > 1:
        instance = getattr(nn, f"InstanceNorm{n_space}d")
        made += [lambda: instance(n, affine=True), lambda: instance(n)]
    return pick(made)()


def local_response(shape: Shape, width: int, pick: Chooser) -> nn.Module | None:
    """AlexNet's normalisation over neighbouring channels."""
    if len(shape) == 1:
        return None
    size, alpha, beta, k = pick((2, 3, 5)), 0.5, 0.75, 1.0
    if pick((True, False)):
        return nn.LocalResponseNorm(size, alpha, beta, k)
    return Calls(lambda x: F.local_response_norm(x, size, alpha, beta, k))


def dropout(shape: Shape, width: int, pick: Chooser) -> nn.Module:
    """Dropout, which does nothing when a network is used."""
    made = [nn.Dropout, nn.Identity, lambda: Calls(lambda x: F.dropout(x, 0.5, False))]
    if len(shape) > 1:
        made.append(getattr(nn, f"Dropout{len(shape) - 1}d"))
    return pick(made)()


def arithmetic(shape: Shape, width: int, pick: Chooser) -> nn.Module:
    """A function of each number."""
    forms = [
        lambda x: x * 0.5,
        lambda x: 1 - x,
        lambda x: x + 1,
        lambda x: x.abs(),
        lambda x: x * x,
        lambda x: torch.exp(-x.square()),
        lambda x: x / 2,
        lambda x: x.clamp(-1, 1),
        lambda x: (x + 3).clamp(0, 6) / 6,
        lambda x: -x,
        lambda x: x.sin(),
    ]
    return Calls(pick(forms))


MAKERS: dict[str, Maker] = {
    "halves": halves,
    "uneven": uneven,
    "glu": glu,
    "shuffle": shuffle,
    "selected": selected,
    "pixels": pixels,
    "across_norm": across_norm,
    "local_response": local_response,
    "dropout": dropout,
    "arithmetic": arithmetic,
}
