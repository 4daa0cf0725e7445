"""A compact model computes the same on inputs of other sizes and ranks, or refuses them."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archlearn as al


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 8, 1), nn.Conv2d(8, 8, 1)
        self.last, self.spread = nn.Conv2d(4, 2, 1), nn.Unflatten(1, (4, 2))

    def hidden(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))))


class ByMethod(Images):
    def forward(self, x: Tensor) -> Tensor:
        y = self.hidden(x).unflatten(1, (4, 2))
        return self.last(y[:, :, 0] * y[:, :, 1])


class ByModule(Images):
    def forward(self, x: Tensor) -> Tensor:
        y = self.spread(self.hidden(x))
        return self.last(y[:, :, 0] * y[:, :, 1])


class ByCounts(Images):
    """Counts numbers of which the channels are one factor."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.hidden(x)
        y = y * (y.numel() / y.size(0)) / y.shape[1] ** 0.5
        return self.last(y[:, :4] + y[:, 4:]) / y.shape[1]


class ByShape(Images):
    def forward(self, x: Tensor) -> Tensor:
        y = self.hidden(x)
        y = y / math.prod(y.shape[1:])
        return self.last(y[:, :4] + y[:, 4:])


class ByShare(Images):
    """Divides by a share of the channels, which is 0 where few are left."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.hidden(x)
        return self.last((y[:, :4] + y[:, 4:]) * (3 * (y.shape[1] // 8)) ** -0.5)


class ByProduct(Images):
    """Flattens by a number of its own making, and spreads what is left again."""

    def forward(self, x: Tensor) -> Tensor:
        n, _, height, width = x.shape
        y = self.hidden(x).view(n, 8 * height * width)
        y = y.view(n, 8, height, width)
        return self.last(y[:, :4] + y[:, 4:])


class Features(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 12), nn.Linear(6, 8), nn.Linear(4, 2)

    def both(self, one: Tensor, two: Tensor) -> Tensor:
        value, gate = self.second(one * two).chunk(2, -1)
        return self.last(value * F.gelu(gate))


class BySplit(Features):
    def forward(self, x: Tensor) -> Tensor:
        one, two = torch.split(F.relu(self.first(x)), [6, 6], dim=-1)
        return self.both(one, two)


class ByLoop(Features):
    def forward(self, x: Tensor) -> Tensor:
        return self.both(*[part * 2 for part in F.relu(self.first(x)).chunk(2, dim=-1)])


class BySlice(Features):
    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(x))
        return self.both(y[..., :6], y[..., 6:])


class ByNegative(Features):
    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(x)).unflatten(-1, (6, 2))
        return self.both(y[..., 0], y[..., 1])


class BySelect(Features):
    """Reads one channel that stays, wherever the others go."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(x))
        return self.both(y.narrow(-1, 0, 6), y.select(-1, 7).unsqueeze(-1))


class ByFilling(Features):
    """Adds a tensor that is filled with one number, whose sizes other arguments follow."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(x))
        y = y + y.new_full((*x.shape[:-1], 12), 0.5) + y.new_ones(size=(*x.shape[:-1], 12))
        return self.both(y[..., :6], y[..., 6:])


class Attention(nn.Module):
    """Puts heads into the batch, or beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 2)
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))

    def split(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def join(self, x: Tensor, n_rows: int) -> Tensor:
        return x.unflatten(0, (n_rows, 4)).transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        query, key, value = (self.split(each(x)) for each in (self.query, self.key, self.value))
        scores = (query @ key.mT * 4**-0.5).softmax(-1)
        return self.last(x + self.join(scores @ value, x.shape[0]))


class ByBatchOfHeads(Attention):
    def split(self, x: Tensor) -> Tensor:
        n, size = x.shape[0], x.shape[-1] // 4
        return x.reshape(n, -1, 4, size).transpose(1, 2).reshape(n * 4, -1, size)


class ByHeadsBehind(Attention):
    """As fairseq and torch do it: tokens first."""

    def split(self, x: Tensor) -> Tensor:
        n, n_tokens, width = x.shape
        return x.transpose(0, 1).reshape(n_tokens, n * 4, width // 4).transpose(0, 1)


class ByKeyword(Attention):
    def split(self, x: Tensor) -> Tensor:
        n, n_tokens, _ = x.shape
        return x.reshape(shape=(n, n_tokens, 4, 4)).transpose(1, 2)

    def join(self, x: Tensor, n_rows: int) -> Tensor:
        return x.transpose(1, 2).reshape(shape=(n_rows, x.shape[2], 16))


class ByNewAxes(nn.Module):
    """Scales and shifts an image by parts of one embedding (FiLM)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.embed, self.last = nn.Conv2d(2, 8, 1), nn.Linear(2, 16), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        both = self.embed(x.mean((2, 3)))
        y = self.first(x) * both[:, :8, None, None] + both[..., 8:, None, None]
        return self.last(F.relu(y))


class ByLength(nn.Module):
    """Scales tokens by a tensor that is filled with a share of their number."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shift = nn.Linear(8, 6), nn.Parameter(torch.randn(6))
        self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(x)) + self.shift
        return self.last(F.gelu(self.second(y * torch.full_like(y, 1 / y.shape[1]))))


TOKENS = [(2, 4, 8), (4, 4, 8), (1, 4, 8), (3, 6, 8)]
IMAGES = [(2, 2, 4, 4), (1, 2, 8, 8), (3, 2, 4, 8)]
ROWS = [(3, 4), (2, 3, 4), (4, 4, 4), (6, 6, 4)]


@pytest.mark.parametrize(
    ("kind", "shapes"),
    [
        (ByMethod, IMAGES), (ByModule, IMAGES), (BySplit, ROWS), (ByLoop, ROWS), (BySlice, ROWS),
        (ByCounts, IMAGES), (ByShape, IMAGES), (ByProduct, IMAGES), (ByShare, IMAGES),
        (ByNegative, ROWS), (BySelect, ROWS), (ByFilling, ROWS[1:]), (ByNewAxes, IMAGES),
        (ByBatchOfHeads, TOKENS), (ByHeadsBehind, TOKENS), (ByKeyword, TOKENS),
        (ByLength, TOKENS),
    ],
)  # fmt: skip
@pytest.mark.parametrize("example", [0, 1])
def test_other_sizes(
    kind: type[nn.Module], shapes: list[tuple[int, ...]], example: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = al.add_gates(kind().double(), torch.randn(shapes[example], dtype=torch.float64))
    with torch.no_grad():
        for gate in al.width_gates(model).values():
            gate[: len(gate) // 2] = 0.0
    small = al.compact(model)
    al.save(small, tmp_path / "small.safetensors")
    loaded = al.load(tmp_path / "small.safetensors")
    n_compared = 0
    for shape in shapes:
        x = torch.randn(shape, dtype=torch.float64)
        try:
            found = small(x)
        except al.InputError:
            assert len(shape) != len(shapes[example])
            continue
        n_compared += 1
        torch.testing.assert_close(found, model(x), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(loaded(x), found)
    assert n_compared == len(shapes) or kind is BySelect


def test_an_example_of_one_row_cannot_show_that_heads_and_the_batch_are_one_dimension() -> None:
    model = al.add_gates(ByBatchOfHeads(), torch.randn(1, 4, 8))
    with pytest.raises(al.InputError, match="call add_gates with an example of two rows"):
        model(torch.randn(2, 4, 8))


class ByUnpacking(Features):
    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(x))
        y = y.reshape(*y.shape[:-1], 2, 6)
        return self.both(y[..., 0, :], y[..., 1, :])


def test_the_length_of_a_part_of_a_shape_is_asked_again() -> None:
    model = al.add_gates(ByUnpacking(), torch.randn(3, 4))
    model(torch.randn(5, 4))
    with pytest.raises(al.InputError, match="what forward asks"):
        model(torch.randn(5, 1, 4))


class ByLiteral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 6, 3), nn.Linear(6 * 36, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.first(x)).view(-1, 6 * 36))


def test_pieces_of_channels_are_refused() -> None:
    """The user's own forward takes an image of four times the size for four images."""
    model = al.add_gates(ByLiteral(), torch.randn(3, 2, 8, 8))
    with torch.no_grad():
        al.width_gates(model)["first"][[1, 2]] = 0.0
    assert model(torch.randn(1, 2, 14, 14)).shape == (4, 5)
    small = al.compact(model)
    assert small(torch.randn(2, 2, 8, 8)).shape == (2, 5)
    with pytest.raises(al.InputError, match=r"the shape at test_other_sizes\.py:\d+"):
        small(torch.randn(1, 2, 14, 14))


class ByLiteralTokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 6), nn.Linear(6 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.first(x)).transpose(1, 2).reshape(-1, 6 * 4))


def test_pieces_of_the_only_channel_that_is_left_are_refused() -> None:
    model = al.add_gates(ByLiteralTokens(), torch.randn(3, 4, 2))
    with torch.no_grad():
        al.width_gates(model)["first"][1:] = 0.0
    small = al.compact(model)
    assert small(torch.randn(2, 4, 2)).shape == (2, 5)
    assert model(torch.randn(2, 8, 2)).shape == (4, 5)
    with pytest.raises(al.InputError, match=r"the shape at test_other_sizes\.py:\d+"):
        small(torch.randn(2, 8, 2))


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.first(x)))


def test_gates_stay_with_their_features() -> None:
    torch.manual_seed(0)
    model = al.add_gates(Flat(), torch.randn(3, 4)).eval()
    with torch.no_grad():
        al.width_gates(model)["first"][[1, 2]] = 0.0
    x = torch.randn(5, 6, 4)
    torch.testing.assert_close(model(x).reshape(30, 2), model(x.reshape(30, 4)))


def test_states_of_layers_and_directions_are_viewed_at_any_batch_size() -> None:
    """As many rows as layers and directions are in the example: what is left out are the rows."""

    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = nn.GRU(6, 7, 2, batch_first=True, bidirectional=True)
            self.head = nn.Linear(7, 3)

        def forward(self, x: Tensor) -> Tensor:
            _, states = self.recurrent(x)
            return self.head(states.view(2, 2, -1, 7)[-1].mean(0))

    torch.manual_seed(0)
    model = al.add_gates(Joined(), torch.randn(4, 5, 6))
    with torch.no_grad():
        al.width_gates(model)["recurrent"][:3] = 0.2
    small = al.compact(model)
    x = torch.randn(3, 5, 6)
    torch.testing.assert_close(small(x), model(x))
