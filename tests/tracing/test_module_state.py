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


class Decoding(nn.Module):
    """Keeps the grid of the last size, as YOLO's head does its anchors."""

    shape: torch.Size | None = None
    grid = torch.empty(0)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(torch.relu(self.first(x)))
        if self.shape != y.shape:
            self.grid, self.shape = torch.arange(end=y.shape[-1], dtype=y.dtype), y.shape
        return y + self.grid


IMAGES = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
WIDER = torch.randn(1, 3, 4, 7, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("sizes", [[], [IMAGES], [WIDER]], ids=["never", "equal", "other"])
def test_what_is_kept_for_a_size_is_looked_into(sizes: list[Tensor]) -> None:
    part = Decoding()
    net = nn.Sequential(nn.Conv2d(3, 3, 1), part).eval()
    for x in sizes:
        net(x)
    kept = part.shape
    model = al.add_gates(net, IMAGES)
    assert part.shape == kept
    assert set(al.width_gates(model)) == {"0", "1.first"}
    with torch.no_grad():
        for gate in al.width_gates(model).values():
            gate[0] = 0.0
    small = al.compact(model)
    for x in (IMAGES, WIDER, IMAGES):
        torch.testing.assert_close(small(x), model(x))
    with torch.no_grad():
        for gate in al.width_gates(model).values():
            gate.fill_(1.0)
    for x in (IMAGES, WIDER, IMAGES):
        torch.testing.assert_close(model(x), net(x))


class Beginning(nn.Module):
    """Takes its scale from the first inputs that it meets, and keeps it."""

    scale: Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.scale is None:
            self.scale = x.std()
        return self.second(torch.relu(self.first(x / self.scale)))


def test_what_is_kept_of_the_first_values_is_called_as_it_is() -> None:
    convs = nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 3, 1)
    net = nn.Sequential(*convs, Beginning()).eval()
    model = al.add_gates(net, IMAGES)
    for x in (IMAGES, 5 * WIDER, WIDER):
        torch.testing.assert_close(model(x), net(x))
    assert list(al.width_gates(model)) == ["0"]


class Window(nn.Module):
    """Keeps its window no larger than its input, as Swin of transformers does at every call."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.first, self.second = size, nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        if min(x.shape[-2:]) <= self.size:
            self.size = min(x.shape[-2:])
        x = nn.functional.dropout(torch.relu(self.first(x)), 0.5, self.training)
        return self.second(x)[..., : self.size, : self.size]


def test_an_attribute_that_is_set_to_the_size_it_has_is_no_change() -> None:
    net, x = nn.Sequential(Window(6), nn.Conv2d(4, 5, 1)), torch.randn(2, 3, 8, 6)
    model = al.add_gates(net, x).eval()
    assert net[0].size == model[0].size == 6
    with torch.no_grad():
        al.width_gates(model)["0.first"][:4] = 0.0
    small = al.compact(model)
    assert small[0].first.out_channels == 4
    assert torch.allclose(small(x), model(x), atol=1e-6)
    with pytest.raises(al.ArchlearnError, match="asks"):
        model(torch.randn(2, 3, 5, 5))
