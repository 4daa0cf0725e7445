"""Operations behind a gate that would make a careless analysis wrong."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.kinds import Kind, Net, batch, kind, parts
from tests.zoo.layers import conv

IMAGE = batch(3, 8, 8)


class Trap(Net):
    """Does something to the five channels of the first site; the second has seven."""

    def __init__(self, spring: Callable[[Tensor], Tensor], n_read: int = 5) -> None:
        super().__init__(
            first=conv(3, 5)(), second=nn.Conv2d(n_read, 7, 3, padding=1), head=conv(7, 4)()
        )
        self.spring = spring

    def forward(self, x: Tensor) -> Tensor:
        x = self.spring(F.relu(self.first(x)))
        return self.head(F.relu(self.second(x)))


class NoiseInTraining(Net):
    """A dropped channel is zero in evaluation only."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        if self.training:
            x = x + 0.1 * torch.randn_like(x)
        return self.head(F.relu(self.second(x)))


class FrozenMask(Net):
    """A buffer of zeros and ones, one for each channel."""

    def __init__(self, **factories: nn.Module) -> None:
        super().__init__(**factories)
        self.register_buffer("mask", torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0]).view(5, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x)) * self.mask
        return self.head(F.relu(self.second(x)))


class MixedPaths(Net):
    """The shares of two paths are learnt."""

    def forward(self, x: Tensor) -> Tensor:
        share = F.softmax(self.share, dim=0)
        x = share[0] * F.relu(self.first(x)) + share[1] * F.relu(self.second(x))
        return self.head(F.relu(self.third(x)))


class FramesAsBatch(Net):
    """Frames are folded into the batch and unfolded again, as in video models."""

    def forward(self, x: Tensor) -> Tensor:
        n, frames = x.shape[:2]
        x = F.relu(self.first(x.flatten(0, 1)))
        x = x.mean((2, 3)).view(n, frames, -1)
        return self.head(F.relu(self.second(x.mean(1))))


class FoldedChannels(Net):
    """Channels and rows share a dimension for a while."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = x.flatten(1, 2).unflatten(1, (-1, 8))
        return self.head(F.relu(self.second(x)))


class WidthFromLayer(Net):
    """The number of features is read from the layer that makes them."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = x.view(-1, self.first.out_channels * 64)
        return self.head(F.relu(self.second(x)))


SPRINGS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "plus_one": (lambda x: x + 1, (5, 7)),
    "one_minus": (lambda x: 1 - x, (5, 7)),
    "square": (lambda x: x**2, (5, 7)),
    "exponential": (lambda x: torch.exp(-x), (5, 7)),
    "logarithm": (lambda x: torch.log1p(x), (5, 7)),
    "masked_fill": (lambda x: x.masked_fill(x < 0.1, 0.7), (7,)),
    "where": (lambda x: torch.where(x > 0.1, x, torch.full_like(x, 0.3)), (7,)),
    "threshold": (lambda x: F.threshold(x, 0.1, 0.5), (5, 7)),
    "softplus_behind": (lambda x: F.softplus(x), (5, 7)),
    "channel_norm": (lambda x: x / (x.norm(dim=1, keepdim=True) + 1), (5, 7)),
    "channel_deviation": (lambda x: x / (x.std(dim=1, keepdim=True) + 1), (7,)),
    "channel_maximum": (lambda x: x - x.amax(1, keepdim=True), (7,)),
    "cumulative": (lambda x: x.cumsum(1), (7,)),
    "sorted": (lambda x: x.sort(dim=1)[0], (7,)),
    "flipped": (lambda x: x.flip(1), (5, 7)),
    "rolled": (lambda x: torch.roll(x, 2, dims=1), (5, 7)),
    "rows_rolled": (lambda x: torch.roll(x, 2, dims=2), (5, 7)),
    "picked": (lambda x: x[:, [4, 2, 0, 1, 3]], (5, 7)),
    "divided_by_itself": (lambda x: x / (x + 0.5), (5, 7)),
    "global_scale": (lambda x: x / (x.mean() + 1), (7,)),
    "lerp": (lambda x: torch.lerp(x, 2 * x, 0.3), (5, 7)),
    "lerp_by_name": (lambda x: x.lerp(end=2 * x, weight=0.3), (5, 7)),
    "lerp_in_place": (lambda x: x.clone().lerp_(2 * x, 0.3), (5, 7)),
    "lerp_by_a_share": (lambda x: torch.lerp(x, x**2, x.mean((0, 1, 2, 3))), (5, 7)),
    "lerp_by_channel": (lambda x: torch.lerp(x, x**2, x.mean((2, 3), keepdim=True)), (5, 7)),
    "lerp_to_one": (lambda x: torch.lerp(x, torch.ones_like(x), 0.5), (5, 7)),
    "addcmul": (lambda x: torch.addcmul(x, x, x + 1, value=0.5), (5, 7)),
    "addcmul_in_place": (lambda x: x.clone().addcmul_(x, x), (5, 7)),
    "addcmul_of_one": (lambda x: torch.addcmul(x, torch.ones_like(x), x + 1), (5, 7)),
    "addcdiv": (lambda x: torch.addcdiv(x, x, x + 1), (5, 7)),
    "vector_norm": (
        lambda x: x * torch.linalg.vector_norm(x, 2, (2, 3), keepdim=True),
        (5, 7),
    ),
    "share_of_sum": (lambda x: x / (x.sum(dim=(2, 3), keepdim=True) + 1), (5, 7)),
}


def _trap(spring: Callable[[Tensor], Tensor], n_read: int = 5) -> Callable[[], nn.Module]:
    return lambda: Trap(spring, n_read)


KINDS: tuple[Kind, ...] = (
    *(kind(f"trap_{n}", _trap(spring), IMAGE, widths) for n, (spring, widths) in SPRINGS.items()),
    kind("trap_repeated", _trap(lambda x: x.repeat(1, 2, 1, 1), 10), IMAGE, (5, 7)),
    kind("trap_interleaved", _trap(lambda x: x.repeat_interleave(2, 1), 10), IMAGE, (5, 7)),
    kind("trap_doubled", _trap(lambda x: torch.cat([x, -x], 1), 10), IMAGE, (5, 7)),
    kind(
        "noise_in_training",
        parts(NoiseInTraining, first=conv(3, 5), second=conv(5, 7), head=conv(7, 4)),
        IMAGE,
        (5, 7),
    ),
    kind(
        "buffer_as_mask",
        parts(FrozenMask, first=conv(3, 5), second=conv(5, 7), head=conv(7, 4)),
        IMAGE,
        (5, 7),
    ),
    kind(
        "mixed_paths",
        parts(
            MixedPaths,
            share=lambda: nn.Parameter(torch.rand(2)),
            first=conv(3, 5),
            second=conv(3, 5),
            third=conv(5, 7),
            head=conv(7, 4),
        ),
        IMAGE,
        (5, 7),
    ),
    kind(
        "frames_as_batch",
        parts(
            FramesAsBatch,
            first=conv(3, 5),
            second=lambda: nn.Linear(5, 7),
            head=lambda: nn.Linear(7, 4),
        ),
        batch(2, 3, 8, 8),
        (5, 7),
        (7,),
    ),
    kind(
        "folded_channels",
        parts(FoldedChannels, first=conv(3, 5), second=conv(5, 7), head=conv(7, 4)),
        IMAGE,
        (5, 7),
    ),
    kind(
        "width_from_layer",
        parts(
            WidthFromLayer,
            first=conv(3, 5),
            second=lambda: nn.Linear(320, 7),
            head=lambda: nn.Linear(7, 4),
        ),
        IMAGE,
        (5, 7),
        (7,),
    ),
)
