"""Networks that `add_gates` must refuse, and what it must say."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import archlearn as al
from tests.zoo.kinds import Kind, Net, batch, kind, parts
from tests.zoo.layers import chain, linear

VECTOR = batch(6)


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """A kind, the error it must meet, and a pattern that the message must hold."""

    kind: Kind
    error: type[Exception]
    match: str


class BranchesOnData(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        if x.sum() > 0:
            x = x * 2
        return self.head(x)


class LoopsOnData(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        for _ in range(int(x.max()) + 1):
            x = x / 2
        return self.head(x)


class AsksForTheBatch(Net):
    """A branch on the size of the batch, which is another one in the next call."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        return self.head(x if x.shape[0] > 1 else x * 2)


class Softened(Net):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(F.relu(self.first(x)), dim=1)


def _two(cls: type[Net]) -> Kind:
    return kind(cls.__name__, parts(cls, first=linear(6, 5), head=linear(5, 3)), VECTOR)


REFUSED: tuple[Refused, ...] = (
    Refused(kind=_two(BranchesOnData), error=al.TracingError, match=r"if x\.sum\(\) > 0"),
    Refused(kind=_two(LoopsOnData), error=al.TracingError, match=r"int\(x\.max\(\)\)"),
    Refused(
        kind=_two(AsksForTheBatch),
        error=al.TracingError,
        match=r"if x\.shape\[0\] > 1.*depends on the size of the batch",
    ),
    Refused(
        kind=kind("linear_alone", chain(linear(6, 3)), VECTOR),
        error=al.InputError,
        match="nothing",
    ),
    Refused(kind=_two(Softened), error=al.InputError, match="nothing"),
)
