"""What stands between a gate and its reader: means, padding, slices, permutations."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.kinds import Kind, Net, batch, kind, parts
from tests.zoo.layers import conv, linear

IMAGE, VECTOR = batch(3, 8, 8), batch(6)


class SpatialMean(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x)).mean(dim=[2, 3])
        y = F.relu(self.second(x))
        return self.head(y)


class SpatialStatistics(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        return self.head(x.amax((2, 3)) + x.sum((-1, -2)))


class ChannelMean(Net):
    """The mean over channels counts the dropped ones, which are zero."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        return self.head(F.relu(self.second(x.mean(1, keepdim=True))))


class Neighbours(Net):
    """Each row is summed with another one, as nodes of a graph are."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        index = torch.arange(x.size(0), device=x.device).flip(0)
        summed = x.new_zeros(x.size()).scatter_add_(0, index.view(-1, 1).expand_as(x), x)
        return self.head(F.relu(self.second(summed + x.index_select(0, index))))


class Pad(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(F.relu(self.first(x)), (1, 1, 1, 1))
        x = F.relu(self.second(x))
        x = F.pad(x, (1, 0, 0, 1), mode="reflect")
        return self.head(x)


class PadAndCrop(Net):
    """Each row moves down by one, and the last falls out (the token shift of RWKV)."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = F.relu(self.second(x + F.pad(x, (0, 0, 1, -1))))
        return self.head(self.shift(x))


class PadConstant(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(F.relu(self.first(x)), (1, 1, 1, 1), value=0.7)
        return self.head(F.relu(self.second(x)))


class PadChannels(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(F.relu(self.first(x)), (0, 0, 0, 0, 1, 2))
        return self.head(F.relu(self.second(x)))


class Dropouts(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.drop2d(F.relu(self.first(x)))
        x = F.dropout(F.relu(self.second(x)), 0.3, training=self.training)
        return self.head(self.drop(x.mean((2, 3))))


class Interpolate(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(F.relu(self.first(x)), scale_factor=2)
        x = F.relu(self.second(x))
        x = F.interpolate(x, size=(5, 5), mode="bilinear", align_corners=False)
        return self.head(x)


class SliceChannels(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        return self.head(F.relu(self.second(x[:, :3]) + self.side(x[:, 2:])))


class SizeInArithmetic(Net):
    """A literal channel count in the arithmetic: it must stay the old one."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        return self.head(F.relu(self.second(x / x.size(1))))


class Permuted(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x)).permute(0, 2, 3, 1)
        x = F.relu(self.second(x))
        return self.head(x.transpose(1, 3).contiguous())


class Tokens(Net):
    """Patches as tokens, as in a vision transformer's stem."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x)).flatten(2).transpose(1, 2)
        return self.head(F.relu(self.second(x)).mean(dim=1))


class SqueezeLast(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(F.relu(self.first(x)), 1)
        x = x.squeeze(-1).squeeze(-1)
        y = F.relu(self.second(x)).unsqueeze(2)[:, :, 0]
        return self.head(y)


KINDS: tuple[Kind, ...] = (
    kind(
        "spatial_mean",
        parts(SpatialMean, first=conv(3, 5), second=linear(5, 7), head=linear(7, 4)),
        IMAGE,
        (5, 7),
        (7,),
    ),
    kind(
        "spatial_statistics",
        parts(SpatialStatistics, first=conv(3, 5), head=linear(5, 4)),
        IMAGE,
        (5,),
    ),
    kind(
        "channel_mean",
        parts(ChannelMean, first=conv(3, 5), second=conv(1, 7), head=conv(7, 4)),
        IMAGE,
        (5, 7),
        note="a mean over channels divides by their old number, as the compact network's does",
    ),
    kind(
        "neighbours",
        parts(Neighbours, first=linear(6, 5), second=linear(5, 7), head=linear(7, 3)),
        VECTOR,
        (5, 7),
        (7,),
    ),
    kind(
        "pad_spatial",
        parts(
            Pad,
            first=conv(3, 5),
            second=lambda: nn.Conv2d(5, 7, 3),
            head=lambda: nn.Conv2d(7, 4, 3),
        ),
        IMAGE,
        (5, 7),
    ),
    kind(
        "pad_and_crop",
        parts(
            PadAndCrop,
            first=conv(3, 5),
            second=conv(5, 7),
            shift=lambda: nn.ZeroPad2d((0, 0, 1, -1)),
            head=conv(7, 4),
        ),
        IMAGE,
        (5, 7),
    ),
    kind(
        "pad_constant",
        parts(PadConstant, first=conv(3, 5), second=lambda: nn.Conv2d(5, 7, 3), head=conv(7, 4)),
        IMAGE,
        (5, 7),
        note="the border of a dropped channel is not zero: it is gated where it is read",
    ),
    kind(
        "pad_channels",
        parts(PadChannels, first=conv(3, 5), second=conv(8, 7), head=conv(7, 4)),
        IMAGE,
        (5, 7),
    ),
    kind(
        "dropouts",
        parts(
            Dropouts,
            first=conv(3, 5),
            second=conv(5, 7),
            head=linear(7, 4),
            drop2d=lambda: nn.Dropout2d(0.3),
            drop=nn.Dropout,
        ),
        IMAGE,
        (5, 7),
    ),
    kind(
        "interpolate",
        parts(Interpolate, first=conv(3, 5), second=conv(5, 7), head=conv(7, 4)),
        IMAGE,
        (5, 7),
    ),
    kind(
        "slice_channels",
        parts(SliceChannels, first=conv(3, 5), second=conv(3, 7), side=conv(3, 7), head=conv(7, 4)),
        IMAGE,
        (5, 7),
        note="the slices overlap in one channel",
    ),
    kind(
        "size_in_arithmetic",
        parts(SizeInArithmetic, first=conv(3, 5), second=conv(5, 7), head=conv(7, 4)),
        IMAGE,
        (5, 7),
        note="x.size(1) must go on meaning the old number of channels",
    ),
    kind(
        "permuted",
        parts(Permuted, first=conv(3, 5), second=linear(5, 7), head=conv(7, 4)),
        IMAGE,
        (5, 7),
    ),
    kind(
        "tokens",
        parts(Tokens, first=lambda: nn.Conv2d(3, 5, 4, 4), second=linear(5, 7), head=linear(7, 4)),
        IMAGE,
        (5, 7),
    ),
    kind(
        "squeeze_and_index",
        parts(SqueezeLast, first=conv(3, 5), second=linear(5, 7), head=linear(7, 4)),
        IMAGE,
        (5, 7),
    ),
)
