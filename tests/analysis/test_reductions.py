"""Sums and norms over space keep channels apart; those over channels do without the closed ones."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import archlearn as al

Reading = Callable[[Tensor], Tensor]


class Reads(nn.Module):
    """A convolution whose channels a function turns into features."""

    def __init__(self, reading: Reading) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)
        self.reading = reading

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.reading(torch.relu(self.first(x))))


class ReadsNormed(Reads):
    """A dropped channel is a constant there."""

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.reading(self.norm(torch.relu(self.first(x)))))


def images(height: int) -> Tensor:
    return torch.randn(2, 3, height, 8, dtype=torch.float64)


class Stacked(nn.Module):
    """Feature maps that are summed as one tensor, as in segmentation_models_pytorch's FPN."""

    def __init__(self, reading: Reading) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3)
        self.last, self.reading = nn.Conv2d(8, 4, 1), reading

    def forward(self, x: Tensor) -> Tensor:
        maps = [torch.relu(self.first(x)), self.second(x), -torch.relu(self.first(x))]
        return self.last(self.reading(torch.stack(maps)))


STACKED: dict[str, Reading] = {
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(0),
    "maximum": lambda x: torch.amax(x, 0),
    "deviation": lambda x: torch.std(x, 0),
    "sum over space, too": lambda x: x.sum((0, 3), keepdim=True)[0],
}


@pytest.mark.parametrize("name", STACKED)
def test_tensors_that_are_stacked_are_reduced_channel_by_channel(name: str) -> None:
    check_exact(Stacked(STACKED[name]))


def unpacked(pair: tuple[Tensor, Tensor]) -> Tensor:
    values, _ = pair
    return values


EXACT: dict[str, Reading] = {
    "var by position": lambda x: torch.var(x, (2, 3), True),
    "var of a method": lambda x: x.var((2, 3), False),
    "kept dimensions": lambda x: x.std((2, 3), False, True).flatten(1),
    "norm by position": lambda x: x.norm(2, (2, 3)),
    "norm of a line": lambda x: x.flatten(2).norm(2, 2),
    "norm by keyword": lambda x: x.norm(dim=(2, 3)),
    "values of max": lambda x: x.flatten(2).max(2)[0],
    "values by name": lambda x: torch.max(x.flatten(2), 2, keepdim=True).values.squeeze(2),
    "indices that nobody reads": lambda x: unpacked(torch.min(-x.flatten(2), dim=-1)),
    "values over stacked tensors": lambda x: torch.stack([x, -x]).max(0)[0].mean((2, 3)),
    "mean of sums": lambda x: x.flatten(2).cumsum(2).mean(2),
    "norm over channels": lambda x: (x / (x.norm(2, 1, True) + 1)).mean((2, 3)),
    "sum over channels": lambda x: (x * x.sum(1, True)).mean((2, 3)),
    "mean over channels": lambda x: (x * torch.mean(x, 1, keepdim=True)).mean((2, 3)),
    "mean over channels and space": lambda x: x.mean((2, 3)) * x.mean((1, 2, 3))[:, None],
}


@pytest.mark.parametrize("name", EXACT)
def test_dimensions_are_found_where_a_call_has_them(name: str) -> None:
    check_exact(Reads(EXACT[name]))


# A dropped channel would be something else at each size: gates stand where it is read.
BY_SIZE: dict[str, tuple[type[Reads], Reading]] = {
    "the largest of constants": (ReadsNormed, lambda x: x.flatten(2).max(2).values),
    "a softmax": (Reads, lambda x: x.flatten(2).softmax(-1).amax(2)),
    "sums of constants": (ReadsNormed, lambda x: x.flatten(2).cumsum(2).mean(2)),
    "a size as a number": (Reads, lambda x: (x + x.shape[-2]).mean((2, 3))),
    "a mean of constants": (ReadsNormed, lambda x: (x * x.mean(1, True)).mean((2, 3))),
    "a bound": (Reads, lambda x: x.clamp(min=x.shape[-2] - 6).mean((2, 3))),
}


@pytest.mark.parametrize("name", BY_SIZE)
def test_what_hangs_on_the_size_is_read_through_gates(name: str) -> None:
    network, reading = BY_SIZE[name]
    check_exact(network(reading))


def check_exact(net: nn.Module) -> None:
    torch.manual_seed(0)
    model = al.add_gates(net.double(), images(8)).eval()
    with torch.no_grad():
        al.width_gates(model)["first"][::2] = 0.1
    small = al.compact(model)
    x = images(11)
    torch.testing.assert_close(small(x), model(x), rtol=0, atol=1e-10)
    assert set(al.read_architecture(model).widths) == {4}


REFUSED: dict[str, tuple[type[Reads], Reading]] = {
    "of a norm that is a minimum": (Reads, lambda x: x.mean((2, 3)) * x.norm(-1, 1).amax()),
    "of which place is the largest": (Reads, lambda x: x.flatten(2).max(2)[1].to(x.dtype)),
    "of its name": (Reads, lambda x: x.flatten(2).max(2).indices.to(x.dtype)),
    "of the largest channel": (Reads, lambda x: x.mean((2, 3)) * x.max(1)[0].amax()),
    "of all deviations": (Reads, lambda x: x.mean((2, 3)) / torch.std(x, True)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_nothing_is_learnt_in_front(name: str) -> None:
    network, reading = REFUSED[name]
    with pytest.raises(al.InputError, match=r"nothing can be learnt in Reads\w*:\n  first"):
        al.add_gates(network(reading).double(), images(8))
