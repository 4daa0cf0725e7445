"""Residual sums, with every kind of shortcut."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.zoo.kinds import Kind, Net, batch, kind, parts
from tests.zoo.layers import conv, linear, norm

IMAGE = batch(3, 8, 8)


class Identity(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        y = self.second(F.relu(self.first(x)))
        y += x
        return self.head(F.relu(y).mean((2, 3)))


class Projection(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        y = self.norm(self.second(F.relu(self.first(x))))
        return self.head(F.relu(torch.add(y, self.shortcut(x))))


class OptionA(Net):
    """The zero-padded shortcut of the ResNets for CIFAR."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        y = self.norm(self.second(F.relu(self.first(x))))
        y = y + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2), "constant", 0)
        return self.head(F.relu(y).mean((2, 3)))


class PreActivation(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.first(F.relu(self.norm1(x)))
        x = x + self.second(F.relu(self.norm2(y)))
        return self.head(F.relu(self.norm3(x)).mean((2, 3)))


KINDS: tuple[Kind, ...] = (
    kind(
        "residual_identity",
        parts(Identity, stem=conv(3, 5), first=conv(5, 6), second=conv(6, 5), head=linear(5, 4)),
        IMAGE,
        (5, 6),
    ),
    kind(
        "residual_projection",
        parts(
            Projection,
            stem=conv(3, 5),
            first=conv(5, 6, stride=2),
            second=conv(6, 7),
            norm=norm(7),
            shortcut=conv(5, 7, 1, stride=2),
            head=conv(7, 4),
        ),
        IMAGE,
        (5, 6, 7),
    ),
    kind(
        "residual_zero_padded",
        parts(
            OptionA,
            stem=conv(3, 5),
            first=conv(5, 8, stride=2),
            second=conv(8, 9),
            norm=norm(9),
            head=linear(9, 4),
        ),
        IMAGE,
        (5, 8, 9),
    ),
    kind(
        "residual_preactivated",
        parts(
            PreActivation,
            stem=conv(3, 5),
            norm1=norm(5),
            first=conv(5, 6),
            norm2=norm(6),
            second=conv(6, 5),
            norm3=norm(5),
            head=linear(5, 4),
        ),
        IMAGE,
        (6, 5),
        note="the running sum has no activation, and its readers have one each",
    ),
)
