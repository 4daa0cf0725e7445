"""Networks that `add_gates` must refuse, and what it must say."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archlearn as al
from tests.zoo.kinds import Kind, Net, batch, kind, parts
from tests.zoo.layers import chain, linear

VECTOR, IMAGE = batch(6), batch(3, 8, 8)


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


class CountsFeatures(Net):
    """A loop over a shape, from the oldest of the tutorials."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        n_features = 1
        for size in x.size()[1:]:
            n_features *= size
        return self.head(x.view(-1, n_features))


class Checked(Net):
    """A check of a shape, which tracing does not decide."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2:
            raise ValueError("a batch of vectors is needed")
        return self.head(F.relu(self.first(x)))


class NoActivation(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x))


class OnlyNormed(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(F.relu(self.first(x))))


class Softened(Net):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(F.relu(self.first(x)), dim=1)


def _two(cls: type[Net]) -> Kind:
    return kind(cls.__name__, parts(cls, first=linear(6, 5), head=linear(5, 3)), VECTOR)


REFUSED: tuple[Refused, ...] = (
    Refused(kind=_two(BranchesOnData), error=al.TracingError, match=r"if x\.sum\(\) > 0"),
    Refused(kind=_two(LoopsOnData), error=al.TracingError, match=r"int\(x\.max\(\)\)"),
    Refused(
        kind=kind(
            "CountsFeatures",
            parts(CountsFeatures, first=lambda: nn.Conv2d(3, 5, 3), head=linear(180, 3)),
            IMAGE,
        ),
        error=al.TracingError,
        match=r"for size in x\.size\(\)\[1:\]",
    ),
    Refused(kind=_two(Checked), error=al.TracingError, match=r"if x\.dim\(\) != 2"),
    Refused(kind=_two(NoActivation), error=al.InputError, match="nothing"),
    Refused(
        kind=kind("linear_alone", chain(linear(6, 3)), VECTOR),
        error=al.InputError,
        match="nothing",
    ),
    Refused(
        kind=kind(
            "OnlyNormed",
            parts(OnlyNormed, first=linear(6, 5), norm=lambda: nn.LayerNorm(5), head=linear(5, 3)),
            VECTOR,
        ),
        error=al.InputError,
        match="nothing",
    ),
    Refused(kind=_two(Softened), error=al.InputError, match="nothing"),
)
