"""What a call of `forward` leaves behind on a module is left by a gated model, too."""

import pytest
import torch
from torch import Tensor, nn

import archlearn as al

X = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))
        self.mean: Tensor
        self.n_calls, self.seen, self.last = 0, list[int](), None


class Counting(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.n_calls += 1
        return x * self.n_calls


class Averaging(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.mean += 1
        return x - self.mean


class Replacing(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.mean = self.mean + 1
        return x - self.mean


class Listing(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(1)
        return x * len(self.seen)


KINDS = [Counting, Averaging, Replacing, Listing]


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_that_remembers_is_called_as_it_is(kind: type[nn.Module]) -> None:
    net = nn.Sequential(kind(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2)).eval()
    model = al.add_gates(net, X)
    for _ in range(3):
        torch.testing.assert_close(model(X), net(X))


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_remembers_is_refused(kind: type[nn.Module]) -> None:
    with pytest.raises(al.TracingError, match=r"it changes '\w+' whenever it is called"):
        al.add_gates(kind(), X)


class Showing(Base):
    """Keeps what it computed last, for somebody to look at."""

    def forward(self, x: Tensor) -> Tensor:
        self.last = x * 2
        return self.last


def test_what_is_kept_to_be_looked_at_is_the_real_thing() -> None:
    net = nn.Sequential(Showing(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
    model = al.add_gates(net, X)
    model(X)
    torch.testing.assert_close(model[0].last, X * 2)


class NamedLikeConstants(Base):
    """What torch.fx keeps on a model that it traces is called `_tensor_constant0`."""

    def __init__(self) -> None:
        super().__init__()
        self._tensor_constants = [1]

    def forward(self, x: Tensor) -> Tensor:
        self.n_calls += 1
        return x * self.n_calls


def test_a_list_may_be_called_like_what_torch_keeps() -> None:
    part = NamedLikeConstants()
    net = nn.Sequential(part, nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2)).eval()
    model = al.add_gates(net, X)
    assert part._tensor_constants == [1]
    torch.testing.assert_close(model(X), net(X))


class OwnNorm(nn.BatchNorm1d):
    """Counts its batches by hand, as the norms of timm do."""

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        return nn.functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training
        )


class Asking(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.shape[0] > 0 else x * 2


def test_a_question_after_a_norm_that_counts_changes_nothing() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 6), OwnNorm(6), nn.ReLU(), Asking(), nn.Linear(6, 2))
    gated = al.add_gates(net, X)
    norm = net[1]
    assert int(norm.num_batches_tracked) == 0  # pyright: ignore
    assert int(gated[1].num_batches_tracked) == 0  # pyright: ignore
    torch.testing.assert_close(gated(X), net(X))
    assert int(gated[1].num_batches_tracked) == 1  # pyright: ignore
