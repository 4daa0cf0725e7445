"""Message passing on graphs: nodes are picked and summed, and channels pass untouched."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
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
    "rows and all channels": lambda x, start, end: torch.zeros_like(x).index_add(
        0, end, x[start, :]
    ),
    "places of two dimensions": lambda x, start, end: (
        x.view(1, -1, 8)[torch.zeros_like(start), start].index_select(0, end % 3).sum(0)
    ),
    "behind an ellipsis": lambda x, start, end: x.t()[..., start].t().amax(0) + x,
    "in the middle": lambda x, start, end: x.view(1, -1, 8)[0, start, None].sum((0, 1)),
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
    "half of the channels": (
        lambda x, start, end: x[start[: len(x)], :4].repeat(1, 2),
        r"read by getitem",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_stands_in_the_way_is_named(name: str) -> None:
    aggregate, said = REFUSED[name]
    with pytest.raises(al.InputError, match=said):
        al.add_gates(MessagePassing(aggregate).double(), graph(6, 12))


class GraphAttention(nn.Module):
    """Nodes weigh their neighbours, in four heads (GAT; GATv2 where an activation comes first)."""

    def __init__(self, *, activates_first: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 12, bias=False), nn.Linear(12, 2)
        self.source, self.target = (nn.Parameter(torch.randn(1, 4, 3)) for _ in range(2))
        self.activates_first = activates_first

    def forward(self, x: Tensor, start: Tensor, end: Tensor) -> Tensor:
        x = self.first(x).view(-1, 4, 3)
        sent, read = x.index_select(0, start), x.index_select(0, end)
        if self.activates_first:
            score = (F.leaky_relu(sent + read, 0.2) * self.source).sum(-1)
        else:
            score = (sent * self.source).sum(-1) + (read * self.target).sum(-1)
            score = F.leaky_relu(score, 0.2)
        index = end.view(-1, 1).expand_as(score)
        zeros = score.new_zeros(x.size(0), score.size(1))
        most = zeros.scatter_reduce(0, index, score.detach(), "amax", include_self=False)
        share = (score - most.index_select(0, end)).exp()
        total = torch.zeros_like(most).scatter_add(0, index, share) + 1e-16
        share = share / total.index_select(0, end)
        passed = torch.zeros_like(x).index_add(0, end, sent * share.unsqueeze(-1))
        return self.last(F.relu(passed.view(-1, 12)))


@pytest.mark.parametrize("activates_first", [False, True])
def test_heads_of_graph_attention_are_learnt(activates_first: bool) -> None:
    torch.manual_seed(0)
    net = GraphAttention(activates_first=activates_first).double()
    model = al.add_gates(net, graph(6, 12)).eval()
    (gate,) = al.width_gates(model).values()
    assert len(gate) == 4
    with torch.no_grad():
        gate[[1, 2]] = 0.1
    small = al.compact(model)
    inputs = graph(7, 20)
    torch.testing.assert_close(small(*inputs), model(*inputs), rtol=0, atol=1e-10)
    assert [len(p) for p in small.get_submodule("first").parameters()] == [6]
