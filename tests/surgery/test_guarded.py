"""A compact model refuses what the gated one refuses: branches that were never followed."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import archlearn as al


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 2, 3)


class BySize(Base):
    """Gives dropped channels something to read, on large images only."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x))
        return self.last(y + 1 if x.shape[2] > 10 else y)


class ByArgument(Base):
    def forward(self, x: Tensor, shift: float = 0.0) -> Tensor:
        y = torch.relu(self.first(x))
        return self.last(y + shift if shift else y)


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        (BySize, (torch.randn(2, 1, 12, 12),)),
        (ByArgument, (torch.randn(2, 1, 8, 8), 1.0)),
    ],
)
def test_what_was_not_followed_is_refused(kind: type[nn.Module], other: tuple[Any, ...]) -> None:
    model = al.add_gates(kind(), torch.randn(2, 1, 8, 8))
    with torch.no_grad():
        al.width_gates(model)["first"][[1, 4]] = 0.0
    small = al.compact(model)
    assert isinstance(small, kind)
    x = torch.randn(3, 1, 9, 7)
    torch.testing.assert_close(small(x), model(x))
    for each in (model, small):
        with pytest.raises(al.InputError, match="the model was traced with"):
            each(*other)


class Single(nn.Module):
    """Goes through numpy in single precision, whatever the model's own."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy().astype(np.float32))


def test_a_model_that_cannot_be_certified_is_named() -> None:
    net = nn.Sequential(Single(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    model = al.add_gates(net, torch.randn(2, 4), leaves=[Single])
    with pytest.raises(al.SurgeryError, match="cannot be certified"):
        al.compact(model)


class Casting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x.float() + torch.ones(4, dtype=torch.float32)))
        return self.last(y.to(torch.float32))


def test_a_model_that_names_its_precision_is_certified_in_double() -> None:
    model = al.add_gates(Casting(), torch.randn(2, 4))
    with torch.no_grad():
        al.width_gates(model)["first"][[1, 4]] = 0.0
    small = al.compact(model)
    assert small.certificate.difference_float64 < 1e-14
    assert small(torch.randn(2, 4)).dtype is torch.float32
