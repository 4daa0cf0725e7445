"""Where channels are shuffled, split, or gate each other."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.kinds import Kind, Net, batch, kind, parts
from tests.zoo.layers import conv, linear, norm

IMAGE = batch(3, 8, 8)


class ShuffleByHand(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)
        return self.head(F.relu(self.second(x)))


class ThenMix(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.between(F.relu(self.first(x)))
        return self.head(F.relu(self.second(x)))


class ShuffleUnit(Net):
    """ShuffleNetV2's unit: half passes by, half is worked on, both are shuffled."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        left, right = x.chunk(2, dim=1)
        right = F.relu(self.norm1(self.first(right)))
        right = F.relu(self.norm3(self.second(self.norm2(self.depthwise(right)))))
        x = torch.cat((left, right), dim=1)
        n, c, h, w = x.size()
        x = x.view(n, 2, c // 2, h, w)
        x = torch.transpose(x, 1, 2).contiguous().view(n, c, h, w)
        return self.head(x.mean([2, 3]))


class SplitUneven(Net):
    def forward(self, x: Tensor) -> Tensor:
        left, right = torch.split(F.relu(self.stem(x)), [2, 5], dim=1)
        return self.head(F.relu(self.first(left) + self.second(right)))


class ChunkGate(Net):
    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.first(x).chunk(2, dim=1)
        return self.head(F.relu(self.second(value * torch.sigmoid(gate))))


class FunctionalGLU(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.second(F.glu(self.first(x), dim=1))))


class ActivationThenChunk(Net):
    def forward(self, x: Tensor) -> Tensor:
        value, gate = F.gelu(self.first(x)).chunk(2, dim=1)
        return self.head(F.relu(self.second(value * gate)))


class ChannelSoftmax(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.softmax(F.relu(self.first(x)), dim=1)
        return self.head(F.relu(self.second(x)))


KINDS: tuple[Kind, ...] = (
    kind(
        "shuffle_by_hand",
        parts(ShuffleByHand, first=conv(3, 6), second=conv(6, 7), head=conv(7, 4)),
        IMAGE,
        (6, 7),
    ),
    kind(
        "shuffle_module",
        parts(
            ThenMix,
            first=conv(3, 6),
            between=lambda: nn.ChannelShuffle(3),
            second=conv(6, 7),
            head=conv(7, 4),
        ),
        IMAGE,
        (6, 7),
    ),
    kind(
        "shuffle_unit",
        parts(
            ShuffleUnit,
            stem=conv(3, 10),
            first=conv(5, 7, 1),
            norm1=norm(7),
            depthwise=lambda: nn.Conv2d(7, 7, 3, padding=1, groups=7, bias=False),
            norm2=norm(7),
            second=conv(7, 5, 1),
            norm3=norm(5),
            head=linear(10, 4),
        ),
        IMAGE,
        (10, 7, 5),
    ),
    kind(
        "pixel_shuffle",
        parts(
            ThenMix,
            first=conv(3, 8),
            between=lambda: nn.PixelShuffle(2),
            second=conv(2, 7),
            head=conv(7, 4),
        ),
        IMAGE,
        (8, 7),
        note="four channels become one",
    ),
    kind(
        "pixel_unshuffle",
        parts(
            ThenMix,
            first=conv(3, 5),
            between=lambda: nn.PixelUnshuffle(2),
            second=conv(20, 7),
            head=conv(7, 4),
        ),
        IMAGE,
        (5, 7),
        note="one channel becomes four",
    ),
    kind(
        "unfold",
        parts(
            ThenMix,
            first=conv(3, 5),
            between=lambda: nn.Unfold(2, stride=2),
            second=lambda: nn.Conv1d(20, 7, 1),
            head=lambda: nn.Conv1d(7, 4, 1),
        ),
        IMAGE,
        (7,),
        (7,),
        note="an operation nobody would list: its channels stay, or it is followed exactly",
    ),
    kind(
        "split_uneven",
        parts(SplitUneven, stem=conv(3, 7), first=conv(2, 5), second=conv(5, 5), head=conv(5, 4)),
        IMAGE,
        (7, 5),
    ),
    kind(
        "chunk_gate",
        parts(ChunkGate, first=conv(3, 10), second=conv(5, 7), head=conv(7, 4)),
        IMAGE,
        (5, 7),
        note="the sigmoid's channel is tied to another row of the same layer",
    ),
    kind(
        "glu_functional",
        parts(FunctionalGLU, first=conv(3, 10), second=conv(5, 7), head=conv(7, 4)),
        IMAGE,
        (5, 7),
    ),
    kind(
        "glu_module",
        lambda: nn.Sequential(
            nn.Linear(6, 10), nn.GLU(), nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)
        ),
        batch(6),
        (5, 7),
        (7,),
    ),
    kind(
        "activation_then_chunk",
        parts(ActivationThenChunk, first=conv(3, 10), second=conv(5, 7), head=conv(7, 4)),
        IMAGE,
        (10, 7),
    ),
    kind(
        "channel_softmax",
        parts(ChannelSoftmax, first=conv(3, 5), second=conv(5, 7), head=conv(7, 4)),
        IMAGE,
        (7,),
        note="a zero has its share in a softmax",
    ),
)
