"""Message passing on graphs: nodes are picked and summed, and channels pass untouched."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import archlearn as al

Aggregate = Callable[[Tensor, Tensor, Tensor], Tensor]


class MessagePassing(nn.Module):
    """Two layers, between which every node gets something of its neighbours."""

    def __init__(self, aggregate: Aggregate) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 2)
        self.aggregate = aggregate

    def forward(self, x: Tensor, start: Tensor, end: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        return self.last(x + self.aggregate(x, start, end))


def graph(n_nodes: int, n_edges: int) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(n_nodes, 3, dtype=torch.float64)
    start, end = torch.randint(n_nodes, (2, n_edges))
    return x, start, end


def torch_geometric_sum(x: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Sums as torch_geometric writes them: sizes are put together from those of the messages."""
    messages = x.index_select(-2, start)
    size = messages.size()[:0] + (x.size(0),) + messages.size()[1:]  # noqa: RUF005
    index = end.view(-1, 1).expand_as(messages)
    return messages.new_zeros(size).scatter_add_(0, index, messages)


def mean_of_neighbours(x: Tensor, start: Tensor, end: Tensor) -> Tensor:
    count = x.new_zeros(x.size(0)).scatter_add_(0, end, x.new_ones(end.size(0)))
    total = torch_geometric_sum(x, start, end)
    return total / count.clamp(min=1).view(-1, 1).expand_as(total)


def largest(x: Tensor, start: Tensor, end: Tensor) -> Tensor:
    messages = x[start]
    index = end.unsqueeze(-1).expand_as(messages)
    zeros = messages.new_zeros(x.size(0), 8)
    return zeros.scatter_reduce(0, index, messages, "amax", include_self=False)


def gathered(x: Tensor, start: Tensor, end: Tensor) -> Tensor:
    return torch.gather(x, 0, start[: x.size(0), None].expand_as(x))


EXACT: dict[str, Aggregate] = {
    "as in torch_geometric": torch_geometric_sum,
    "mean": mean_of_neighbours,
    "maximum": largest,
    "gather": gathered,
    "index_add": lambda x, start, end: torch.zeros_like(x).index_add(0, end, x[start]),
    "index_add into what is there": lambda x, start, end: x.index_add(0, end, x[start]),
    "a mask": lambda x, start, end: x[start[: x.size(0)] > 0].sum(0),
}


@pytest.mark.parametrize("name", EXACT)
def test_channels_pass_what_only_picks_nodes(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = al.add_gates(MessagePassing(EXACT[name]).double(), graph(6, 12)).eval()
    with torch.no_grad():
        al.width_gates(model)["first"][::2] = 0.1
    small = al.compact(model)
    inputs = graph(7, 20)
    torch.testing.assert_close(small(*inputs), model(*inputs), rtol=0, atol=1e-10)
    assert al.read_architecture(model).widths == (4, 2)
    al.save(small, tmp_path / "small.safetensors")
    loaded = al.load(tmp_path / "small.safetensors")
    torch.testing.assert_close(loaded(*inputs), small(*inputs), rtol=0, atol=0)


def expanded_by_size(x: Tensor, start: Tensor, end: Tensor) -> Tensor:
    index = end.unsqueeze(-1).expand(-1, x.size(1))
    return torch.zeros_like(x).scatter_add(0, index, x[start])


REFUSED: dict[str, tuple[Aggregate, str]] = {
    "an index for each channel": (expanded_by_size, r"scatter_add\(\).* has a column for each"),
    "channels themselves": (
        lambda x, start, end: x.index_select(1, start % 8)[:, :8],
        r"read by index_select\(\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_stands_in_the_way_is_named(name: str) -> None:
    aggregate, said = REFUSED[name]
    with pytest.raises(al.InputError, match=said):
        al.add_gates(MessagePassing(aggregate).double(), graph(6, 12))
