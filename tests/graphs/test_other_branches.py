"""A graph refuses inputs for which `forward` would have taken another branch."""

import pickle

import pytest
import torch
from torch import Tensor, nn

import archlearn as al


class Base(nn.Module):
    """Two convolutions; what comes in front is for others to say."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 2, 3)

    def both(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x))).mean((2, 3))


class ByRemainder(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 2 if x.shape[2] % 2 else x
        return self.both(x.unsqueeze(1))


class ByRepeating(Base):
    """Asks twice at one line, and gets two answers."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1)
        while x.shape[2] > 8:
            x = nn.functional.max_pool2d(x, 2)
        return self.both(x)


class ByMembership(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 2 if x.shape[2] in (4, 8) else x
        return self.both(x.unsqueeze(1))


class ByDouble(Base):
    """Asks for the length of a shape, and takes images with and without channels."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1) if len(x.shape) == 3 else x * 2
        return self.both(x)


class ByFloat(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = x if x.is_floating_point() else x / 255
        return self.both(x.unsqueeze(1).float())


class ByType(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = x / 255 if x.dtype == torch.uint8 else x
        return self.both(x.unsqueeze(1).float())


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        (ByRemainder, torch.randn(2, 9, 9)),
        (ByRepeating, torch.randn(2, 20, 20)),
        (ByMembership, torch.randn(2, 9, 9)),
        (ByDouble, torch.randn(2, 1, 8, 8)),
        (ByFloat, torch.ones(2, 8, 8, dtype=torch.uint8)),
        (ByType, torch.ones(2, 8, 8, dtype=torch.uint8)),
    ],
)
def test_no_other_branch_is_passed_over(kind: type[nn.Module], other: Tensor) -> None:
    size = 10 if kind is ByRepeating else 8
    net, x = kind().eval(), torch.randn(2, size, size)
    net(other)
    model = al.add_gates(net, x)
    for made in (model, pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(made(x), net(x))
        with pytest.raises(
            al.InputError, match=r"what forward asks at test_other_branches\.py:\d+"
        ):
            made(other)


class ByIsTensor(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 2 if torch.is_tensor(x) else x
        return self.both(x.unsqueeze(1))


def test_torch_is_asked_what_a_tensor_is() -> None:
    net, x = ByIsTensor().eval(), torch.randn(2, 8, 8)
    torch.testing.assert_close(al.add_gates(net, x)(x), net(x))


class ByKey(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.both(x.unsqueeze(1)) * {8: 2.0}.get(x.shape[2], 1.0)


def test_a_size_is_no_key() -> None:
    with pytest.raises(al.TracingError, match="cannot be the key of a dictionary"):
        al.add_gates(ByKey(), torch.randn(2, 8, 8))
