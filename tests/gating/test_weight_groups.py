"""Groups of gates are plain data: which slices of weights each gate acts on."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlearn.gating.attach import find_gate_groups
from archlearn.gating.weight_groups import GateGroup
from tests.zoo import ALL, Kind, in_double


def groups_of(net: nn.Module, *inputs: Tensor) -> dict[str, GateGroup]:
    return {f"{g.kind} {g.name}": g for g in find_gate_groups(net, inputs)}


def acts_on(group: GateGroup) -> dict[str, list[int]]:
    """Return the gates of each slice, by parameter and dimension; of a single row."""
    assert group.reason is None
    return {f"{s.parameter}[{s.dim}]": s.gates.squeeze(0).tolist() for s in group.readers}


def test_a_neuron_is_read_by_the_columns_behind_it_and_written_by_its_rows() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 2))
    (group,) = find_gate_groups(net, torch.zeros(2, 4))
    assert (group.name, group.kind, group.size, group.start) == ("0", "width", 3, 0)
    assert acts_on(group) == {"2.weight[1]": [0, 1, 2]}
    assert {(s.parameter, s.dim) for s in group.writers} == {("0.weight", 0), ("0.bias", 0)}


def test_gates_are_numbered_group_after_group() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2)
    )
    first, second = find_gate_groups(net, torch.zeros(2, 1, 4, 4))
    assert acts_on(first) == {"3.weight[1]": [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]}
    assert acts_on(second) == {"5.weight[1]": [3, 4, 5, 6, 7]}


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (4, 2)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(1, 2).flatten(2))


def test_a_head_is_read_by_the_projection_of_the_outputs() -> None:
    groups = groups_of(Attention(), torch.zeros(2, 3, 8))
    heads = next(g for g in groups.values() if g.kind == "heads")
    assert acts_on(heads) == {"out.weight[1]": [0, 0, 1, 1, 2, 2, 3, 3]}


def test_an_index_of_queries_and_keys_is_closed_by_the_rows_of_queries() -> None:
    net = Attention()
    groups = [g for g in find_gate_groups(net, torch.zeros(2, 3, 8)) if g.kind == "within heads"]
    of_queries = next(g for g in groups if g.readers[0].parameter == "qkv.weight")
    a, b = range(of_queries.start, of_queries.start + 2)
    assert acts_on(of_queries) == {
        "qkv.weight[0]": [a, b] * 4 + [-1] * 16,
        "qkv.bias[0]": [a, b] * 4 + [-1] * 16,
    }


def test_a_branch_is_closed_by_all_of_the_layer_that_ends_it() -> None:
    net = nn.Sequential(nn.Linear(8, 8), Attention(), nn.Linear(8, 2))
    branch = groups_of(net, torch.zeros(2, 3, 8))["branch 1"]
    assert acts_on(branch) == {f"1.out.{key}[0]": [branch.start] * 8 for key in ("weight", "bias")}


class Conv1D(nn.Linear):
    """As GPT-2 ends its branches: a view of sizes that it reads."""

    def forward(self, x: Tensor) -> Tensor:
        sizes = (*x.shape[:-1], self.out_features)
        return super().forward(x.view(-1, x.size(-1))).view(sizes)


class PostNorm(nn.Linear):
    """As Gemma ends them: a norm by hand, with a weight that is added to one."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        wide = y.float() * torch.rsqrt(y.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        return (wide * (1.0 + self.bias.float())).type_as(x)


@pytest.mark.parametrize("kind", [Conv1D, PostNorm])
def test_a_branch_may_end_in_views_and_casts(kind: type[nn.Linear]) -> None:
    class Block(nn.Sequential):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            return input + super().forward(input)

    net = nn.Sequential(nn.Linear(4, 4), Block(nn.Linear(4, 4), kind(4, 4)), nn.Linear(4, 2))
    branch = next(g for g in find_gate_groups(net, torch.randn(2, 3, 4)) if g.kind == "branch")
    assert {each.parameter for each in branch.readers} == {"1.1.weight", "1.1.bias"}


class Stream(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(10, 6), norm
        self.up, self.down, self.head = nn.Linear(6, 9), nn.Linear(9, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        h = h + self.down(F.gelu(self.up(self.norm(h))))
        return self.head(self.norm(h))


TOKENS = torch.zeros(2, 4, dtype=torch.long)


def test_a_stream_under_rms_norm_is_closed_by_what_writes_it() -> None:
    stream = groups_of(Stream(nn.RMSNorm(6)), TOKENS)["stream embed"]
    gates = list(range(stream.start, stream.start + 6))
    assert acts_on(stream) == {
        "embed.weight[1]": gates, "down.weight[0]": gates, "down.bias[0]": gates,
    }  # fmt: skip
    assert stream.norms == ("norm",)


def test_a_stream_under_layer_norm_is_read_by_columns_and_names_its_norm() -> None:
    stream = groups_of(Stream(nn.LayerNorm(6)), TOKENS)["stream embed"]
    assert {s.parameter for s in stream.readers} == {"up.weight", "head.weight"}
    assert stream.norms == ("norm",)


def test_a_frozen_reader_is_named() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    net[2].requires_grad_(False)
    (group,) = find_gate_groups(net, torch.zeros(2, 4))
    assert group.reason == "'2.weight' is frozen"


def test_a_computed_reader_is_named() -> None:
    computed = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    (group,) = find_gate_groups(
        nn.Sequential(nn.Linear(4, 3), nn.ReLU(), computed), torch.ones(2, 4)
    )
    assert group.reason == "'2.weight' is computed from other weights at every call"


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_every_gate_of_the_zoo_acts_on_weights_or_says_why_not(kind: Kind) -> None:
    net, inputs = kind.build().double().eval(), in_double(kind.inputs())
    parameters, start = dict(net.named_parameters()), 0
    for group in find_gate_groups(net, inputs):
        assert group.start == start
        start += group.size
        if group.reason is None:
            acting = torch.cat([each.gates.flatten() for each in group.readers])
            span = range(group.start, group.start + group.size)
            assert set(acting[acting >= 0].tolist()) == set(span)
            for each in group.readers:
                shape = parameters[each.parameter].shape
                n = shape.numel() if each.dim is None else shape[each.dim]
                assert each.gates.shape[1] == n
