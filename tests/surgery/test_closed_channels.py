"""`al.compact(net, x)` cuts what no weight reads, in networks that never had gates."""

import itertools
import logging
from collections.abc import Iterable

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.utils import prune

import archlearn as al
from archlearn.gating.attach import find_gate_groups
from archlearn.gating.weight_groups import GateGroup
from archlearn.nn.rms_norm_forms import read_rms_norm
from tests.test_zoo import EXACT, assert_same, build, n_parameters, without_first_sample
from tests.zoo import ALL, Kind, in_double

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def chain(*widths: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@torch.no_grad()
def zero_(weight: Tensor, dim: int, indices: Iterable[int]) -> None:
    weight.index_fill_(dim, torch.tensor(list(indices), dtype=torch.long), 0.0)


def widths(net: nn.Module) -> list[int]:
    return [len(m.weight) for m in net.modules() if isinstance(m, nn.Linear | nn.Conv2d)]


def test_neurons_whose_columns_are_zero_are_cut() -> None:
    net = chain(4, 6, 5, 2)
    zero_(net[2].weight, 1, (1, 4))
    small = al.compact(net, X)
    assert widths(small) == [4, 5, 2]
    assert small.certificate.difference_float64 < 1e-12
    torch.testing.assert_close(small(X), net(X))
    assert torch.equal(small[0].weight, net[0].weight[[0, 2, 3, 5]])


def test_a_neuron_with_one_weight_left_stays() -> None:
    """The control: what is nearly closed is not closed."""
    net = chain(4, 6, 2)
    zero_(net[2].weight, 1, (1, 4))
    with torch.no_grad():
        net[2].weight[1, 4] = 1e-30
    assert widths(al.compact(net, X)) == [5, 2]


def test_the_plan_of_a_network_without_gates_says_what_goes() -> None:
    net = chain(4, 6, 2)
    zero_(net[2].weight, 1, (1, 4))
    plan = al.plan(net, X)
    assert plan.widths == {"0": (0, 2, 3, 5)}
    small = al.compact(net, X, plan=plan)
    assert plan.after == al.count_costs(small, X)


def test_a_layer_that_nobody_reads_keeps_one_neuron() -> None:
    net = chain(4, 6, 2)
    zero_(net[2].weight, 1, range(6))
    assert widths(al.compact(net, X)) == [1, 2]


def test_a_network_without_zeros_comes_back_as_a_copy_that_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    net = chain(4, 6, 2)
    with caplog.at_level(logging.WARNING):
        small = al.compact(net, X)
    assert "nothing is cut from Sequential" in caplog.text
    assert widths(small) == widths(net)
    assert small is not net
    torch.testing.assert_close(small(X), net(X))


def test_a_model_without_gates_needs_example_inputs() -> None:
    with pytest.raises(al.InputError, match=r"Sequential has no gates.*give example_inputs"):
        al.compact(chain(4, 6, 2))


def test_a_plan_in_the_place_of_example_inputs_is_refused() -> None:
    gated = al.add_gates(chain(4, 6, 2), X)
    with pytest.raises(al.InputError, match="give plan="):
        al.compact(gated, al.plan(gated))


def test_a_frozen_network_is_cut_too() -> None:
    net = chain(4, 6, 2).requires_grad_(False)
    zero_(net[2].weight, 1, (0,))
    assert widths(al.compact(net, X)) == [5, 2]


def test_a_compact_network_can_be_cut_again() -> None:
    net = chain(4, 6, 2)
    zero_(net[2].weight, 1, (0,))
    small = al.compact(net, X)
    zero_(small[2].weight, 1, (0, 1))
    smaller = al.compact(small)
    assert widths(smaller) == [3, 2]
    assert al.kept_channels(smaller)["0.weight"][0] == (3, 4, 5)


def test_a_residual_branch_that_adds_zero_is_left_out() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.down(F.relu(self.up(x)))

    net = nn.Sequential(nn.Linear(4, 4), Block(), Block(), nn.Linear(4, 2))
    for parameter in net[1].down.parameters():
        nn.init.zeros_(parameter)
    small = al.compact(net, X)
    assert n_parameters(small) == n_parameters(net) - 76
    torch.testing.assert_close(small(X), net(X))


class Norm(nn.Module):
    """An RMSNorm as transformers write it: Llama's, and with an offset of 1 Gemma's."""

    def __init__(self, n: int, offset: float) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.rand(n)), 1e-2
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.offset + self.weight) * wide.to(x.dtype)


class Stream(nn.Module):
    def __init__(self, norm: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.embed, self.norm, self.last = nn.Linear(4, 6), norm, last
        self.up, self.down, self.head = nn.Linear(6, 9), nn.Linear(9, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        h = h + self.down(F.gelu(self.up(self.norm(h))))
        return self.head(self.last(h))


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.RMSNorm(6),
        lambda: nn.RMSNorm(6, eps=1e-2),
        lambda: Norm(6, 0.0),
        lambda: Norm(6, 1.0),
    ],
    ids=["torch", "torch_eps", "llama", "gemma"],
)
def test_channels_of_a_stream_that_rms_norms_read_as_zero_are_cut(make: object) -> None:
    net = Stream(make(), make())  # pyright: ignore
    for norm in (net.norm, net.last):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
    for layer in (net.embed, net.down):
        zero_(layer.weight, 0, (1, 2))
        zero_(layer.bias, 0, (1, 2))
    small = al.compact(net, X)
    assert small.embed.out_features == small.head.in_features == 4
    assert len(small.norm.weight) == len(small.last.weight) == 4
    assert type(small).forward is Stream.forward
    assert_same(net.double(), small.double(), X.double(), 1e-6)


def test_channels_that_a_layer_norm_reads_stay() -> None:
    net = Stream(nn.LayerNorm(6), nn.LayerNorm(6))
    for layer in (net.embed, net.down):
        zero_(layer.weight, 0, (1, 2))
        zero_(layer.bias, 0, (1, 2))
    for layer in (net.up, net.head):
        zero_(layer.weight, 1, (1, 2))
    assert al.compact(net, X).embed.out_features == 6


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 24, 3)
        self.fc1, self.fc2 = nn.Linear(24 * 9, 48), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    return torch.tensor(data.images).float().unsqueeze(1) / 16, torch.tensor(data.target)


@torch.no_grad()
def shrink_columns_(weight: Tensor, n: int, strength: float) -> None:
    """Take the proximal step of a group lasso over the columns that read each of n channels."""
    columns = weight.view(len(weight), n, -1)
    norms = columns.norm(dim=(0, 2), keepdim=True).clamp(min=1e-12)
    columns.mul_((1 - strength / norms).clamp(min=0))


def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float((net(x).argmax(1) == y).float().mean())


def test_a_network_that_group_lasso_has_thinned_out_becomes_small(
    digits: tuple[Tensor, Tensor],
) -> None:
    torch.manual_seed(0)
    x, y = digits
    net = LeNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(6):
        for batch in torch.randperm(1500).split(50):
            optimizer.zero_grad()
            F.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
            for weight, n in ((net.conv2.weight, 12), (net.fc1.weight, 24), (net.fc2.weight, 48)):
                shrink_columns_(weight, n, 0.007)
    small = al.compact(net, x[:8])
    assert n_parameters(small) < 0.5 * n_parameters(net)
    assert small.certificate.difference_float64 < 1e-8
    assert accuracy(small, x[1500:], y[1500:]) == accuracy(net, x[1500:], y[1500:]) > 0.8


def train_(net: nn.Module, x: Tensor, y: Tensor, epochs: int) -> None:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(50):
            optimizer.zero_grad()
            F.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()


@pytest.mark.parametrize("is_permanent", [True, False], ids=["permanent", "masked"])
def test_rows_that_structured_pruning_has_masked_are_cut_and_their_biases_folded(
    digits: tuple[Tensor, Tensor], is_permanent: bool
) -> None:
    torch.manual_seed(0)
    x, y = digits
    net = LeNet()
    train_(net, x[:1500], y[:1500], 2)
    for layer in (net.conv1, net.conv2, net.fc1):
        prune.ln_structured(layer, "weight", amount=0.5, n=2, dim=0)
    train_(net, x[:1500], y[:1500], 1)
    if is_permanent:
        for layer in (net.conv1, net.conv2, net.fc1):
            prune.remove(layer, "weight")
    small = al.compact(net, x[:8])
    assert widths(small) == [6, 12, 24, 10]
    assert small.certificate.difference_float64 < 1e-8
    assert accuracy(small, x[1500:], y[1500:]) == accuracy(net, x[1500:], y[1500:]) > 0.85


def test_a_constant_in_front_of_zero_padding_stays_unless_it_is_zero() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 2, 3, padding=1))
    zero_(net[0].weight, 0, (0, 1, 2))
    with torch.no_grad():
        net[0].bias[:3] = torch.tensor([0.5, -0.5, 0.0])
    small = al.compact(net, torch.randn(3, 1, 7, 7))
    assert widths(small) == [4, 2]


def test_a_constant_moves_into_a_bias_that_was_not_there() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(4, 6), nn.Sigmoid(), nn.BatchNorm1d(6), nn.Linear(6, 2, bias=False)
    )
    zero_(net[0].weight, 0, (0, 1, 2))
    small = al.compact(net.eval(), X)
    assert widths(small) == [3, 2]
    assert small[3].bias is not None
    torch.testing.assert_close(small(X), net(X))


def test_rows_of_zeros_that_are_added_to_others_stay() -> None:
    """The control: a constant is one only where nothing else is added to it."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.head = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.relu(self.one(x) + self.two(x)))

    net = Sum()
    zero_(net.one.weight, 0, (0, 1, 2))
    assert widths(al.compact(net, X)) == [6, 6, 2]
    zero_(net.two.weight, 0, (0, 1))
    assert widths(al.compact(net, X)) == [4, 4, 2]


@torch.no_grad()
def close_(net: nn.Module, groups: tuple[GateGroup, ...], seed: int) -> dict[str, list[int]]:
    """Set the readers of about half of each group to zero; return the gates that stay open.

    Groups that a norm keeps open are left out, and so are branches.
    """
    generator = torch.Generator().manual_seed(seed)
    is_closed = torch.rand(sum(g.size for g in groups), generator=generator) < 0.5
    parameters, still_open = dict(net.named_parameters()), dict[str, list[int]]()
    for group in groups:
        gates = slice(group.start, group.start + group.size)
        is_closed[gates][:2] = False
        if group.kind == "branch":
            continue
        norms = [net.get_submodule(name) for name in group.norms]
        if group.reason or None in map(read_rms_norm, norms):
            is_closed[gates] = False
        still_open[group.name] = torch.nonzero(~is_closed[gates]).flatten().tolist()
        for each in group.readers if not group.reason else ():
            here = ((each.gates >= 0) & is_closed[each.gates.clamp(min=0)]).any(0)
            weight = parameters[each.parameter]
            if each.dim is None:
                weight.view(-1)[here] = 0.0
            else:
                zero_(weight, each.dim, here.nonzero().flatten().tolist())
    return still_open


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_zeros_are_cut_from_every_kind_of_network_exactly(kind: Kind) -> None:
    net, inputs = build(kind, 0)
    still_open = close_(net, find_gate_groups(net, inputs), 0)
    plan, small = al.plan(net, inputs), al.compact(net, inputs)
    assert isinstance(small, type(net))
    fresh = in_double(kind.inputs())
    assert_same(net, small, fresh, EXACT)
    assert_same(net, small, without_first_sample(fresh), EXACT)
    widths = {name: list(kept) for name, kept in plan.widths.items()}
    assert widths == {name: still_open[name] for name in widths}
    assert plan.after == al.count_costs(small, inputs)
    assert plan.after.parameters == n_parameters(small)
