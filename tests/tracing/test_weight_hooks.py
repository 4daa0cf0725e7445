"""Layers whose weight an older hook of torch computes are learnt and compacted like any other."""

import copy
import pickle
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune

import archlearn as al


def weight_norm(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return torch.nn.utils.weight_norm(layer)


def pruned(layer: nn.Module) -> nn.Module:
    return prune.random_unstructured(layer, "weight", 0.3)


def pruned_twice(layer: nn.Module) -> nn.Module:
    return prune.l1_unstructured(pruned(layer), "weight", 0.2)


WAYS = [weight_norm, nn.utils.spectral_norm, pruned, pruned_twice]
Way = Callable[[nn.Module], nn.Module]
each_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


class Net(nn.Module):
    def __init__(self, way: Way) -> None:
        super().__init__()
        self.first = way(nn.Conv1d(3, 8, 3, padding=1))
        self.second = way(nn.Conv1d(8, 12, 3))
        self.classifier = way(nn.Linear(12, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.second(F.relu(self.first(x))))
        return self.classifier(x.mean(-1))


def build(way: Way) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Net(way).double().eval(), torch.randn(4, 3, 10, dtype=torch.float64)


@torch.no_grad()
def close_half_(gated: nn.Module) -> None:
    for gate in al.width_gates(gated).values():
        gate[::2] = 0.1


@each_way
def test_the_compact_model_computes_the_same(way: Way) -> None:
    net, x = build(way)
    gated = al.add_gates(net, x)
    assert set(net.state_dict()) < set(gated.state_dict())
    torch.testing.assert_close(gated(x), net(x), rtol=1e-12, atol=1e-12)
    assert set(al.width_gates(gated)) == {"first", "second"}
    close_half_(gated)
    small = al.compact(gated)
    torch.testing.assert_close(small(x), gated(x), rtol=1e-10, atol=1e-10)
    assert isinstance(small, Net)
    assert small.second.weight.shape == (6, 4, 3)  # pyright: ignore
    assert "second.weight" in dict(small.named_parameters())
    assert len(small.second._forward_pre_hooks) == 0


@each_way
def test_a_weight_that_is_out_of_date_is_computed_anew(way: Way) -> None:
    net, x = build(way)
    gated = al.add_gates(net, x)
    close_half_(gated)
    gated(x)
    with torch.no_grad():
        for name, parameter in gated.named_parameters():
            if name in dict(net.named_parameters()):
                parameter += 0.1 * torch.rand_like(parameter)
    small = al.compact(gated)
    torch.testing.assert_close(small(x), gated(x), rtol=1e-10, atol=1e-10)


@each_way
def test_a_plan_counts_what_is_there(way: Way) -> None:
    net, x = build(way)
    gated = al.add_gates(net, x)
    close_half_(gated)
    planned = al.plan(gated)
    small = al.compact(gated, plan=planned)
    assert planned.after == al.count_costs(small, x)


@each_way
@pytest.mark.parametrize("price", list(al.Price))
def test_the_price_is_that_of_the_weight(way: Way, price: al.Price) -> None:
    net, x = build(way)
    plain, _ = build(lambda layer: layer)
    strengths = al.Strengths(width_cost=1e-3, width_binarise=2e-3, price=price)
    found = al.penalty(al.add_gates(net, x), strengths)
    torch.testing.assert_close(found, al.penalty(al.add_gates(plain, x), strengths))


def test_gates_learn_through_such_a_layer() -> None:
    net, x = build(weight_norm)
    gated = al.add_gates(net, x).train()
    gated(x).square().sum().backward()
    assert all(bool(gate.grad.any()) for gate in al.width_gates(gated).values())  # pyright: ignore


def test_depth_is_learnt_through_such_layers() -> None:
    torch.manual_seed(0)
    layers = (nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
    net = nn.Sequential(*(weight_norm(m) if isinstance(m, nn.Linear) else m for m in layers))
    net, x = net.double().eval(), torch.randn(3, 5, dtype=torch.float64)
    gated = al.add_gates(net, x, depth_start=0.9)
    small = al.compact(gated)
    torch.testing.assert_close(small(x), gated(x), rtol=1e-10, atol=1e-10)
    assert al.count_costs(small, x).parameters == 12


def test_a_hook_of_the_users_is_still_in_the_way() -> None:
    net, x = build(weight_norm)
    net.first.register_forward_pre_hook(lambda module, args: (2 * args[0],))  # pyright: ignore
    gated = al.add_gates(net, x)
    assert set(al.width_gates(gated)) == {"second"}


@each_way
def test_gates_act_on_a_layer_that_got_its_hook_since(way: Way) -> None:
    net, x = build(lambda layer: layer)
    gated = al.add_gates(net, x)
    close_half_(gated)
    way(gated.get_submodule("classifier"))
    plain = gated.get_submodule("second")
    with torch.no_grad():
        expected = gated(x)
        plain.get_parameter("weight")[::2] *= 2.0  # of channels that are closed
    torch.testing.assert_close(gated(x), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(al.compact(gated)(x), expected, rtol=0, atol=1e-10)


@each_way
def test_the_state_of_a_compact_model_is_loaded_into_a_copy(way: Way) -> None:
    net, x = build(way)
    gated = al.add_gates(net, x)
    close_half_(gated)
    small = al.compact(gated)
    other = copy.deepcopy(small)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(small.state_dict())
    torch.testing.assert_close(other(x), small(x), rtol=0, atol=0)


@each_way
def test_a_budget_of_parameters_counts_the_plain_weights_that_are_left(way: Way) -> None:
    net, x = build(way)
    gated = al.add_gates(net, x, learn={"*": al.Learn.WIDTH})  # merged, a channel is 4 %
    gates = al.GateOptimizer(gated, total_steps=20, budget={"parameters": "40%"})
    for _ in range(20):
        gated(x).square().sum().backward()
        gates.step()
        gates.zero_grad()
    whole, left = al.count_costs(net, x).parameters, al.count_costs(al.compact(gated), x).parameters
    assert 0.36 * whole <= left <= 0.4 * whole


class Causal(nn.Conv1d):
    """A convolution that reads no later steps, as a class of the user's own."""

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(F.pad(x, (2, 0)))


class Scaled(nn.Module):
    """A layer that multiplies by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(12, 8)), nn.Parameter(torch.ones(12))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight) * self.scale


class OfOwnClasses(nn.Module):
    def __init__(self, way: Way) -> None:
        super().__init__()
        self.first, self.second, self.last = way(Causal(3, 8, 3)), way(Scaled()), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x)).transpose(1, 2)
        return self.last(F.relu(self.second(x)))


@pytest.mark.parametrize(
    "way", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm]
)
def test_a_class_of_the_users_own_may_be_parametrized(way: Way) -> None:
    torch.manual_seed(0)
    net, x = OfOwnClasses(way).double().eval(), torch.randn(4, 3, 10, dtype=torch.float64)
    gated, fresh = al.add_gates(net, x), torch.randn(2, 3, 7, dtype=torch.float64)
    assert list(al.width_gates(gated)) == ["first", "second"]
    torch.testing.assert_close(gated(fresh), net(fresh))
    close_half_(gated)
    small = al.compact(gated)
    torch.testing.assert_close(small(fresh), gated(fresh), rtol=0, atol=1e-10)
    assert small.get_parameter("second.weight").shape == (6, 4)
    assert al.plan(gated).after.parameters == sum(p.numel() for p in small.parameters())
    assert al.inspect(gated).least["parameters"] < 30
    pickle.loads(pickle.dumps(small))
    again = al.add_gates(small, x)
    close_half_(again)
    torch.testing.assert_close(al.compact(again)(fresh), again(fresh), rtol=0, atol=1e-10)


@each_way
def test_a_hook_on_a_class_of_the_users_own_is_named(way: Way) -> None:
    net = nn.Sequential(way(Causal(3, 8, 3)), nn.Conv1d(8, 6, 1), nn.ReLU(), nn.Conv1d(6, 2, 1))
    found = al.inspect(al.add_gates(net, torch.randn(2, 3, 7)))
    assert "a hook computes its weight: use weight_norm" in " ".join(str(found).split())


class Residual(nn.Module):
    """A block that goes as a whole, with what its weights are computed from."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(3, 8, 1), nn.Conv1d(8, 2, 1)
        self.block = nn.utils.parametrizations.weight_norm(Causal(8, 8, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        return self.last(x + F.relu(self.block(x)))


def test_a_block_takes_along_what_its_weights_are_computed_from() -> None:
    gated = al.add_gates(Residual().double(), torch.randn(2, 3, 7, dtype=torch.float64)).eval()
    with torch.no_grad():
        (gate,) = al.branch_gates(gated).values()
        gate.fill_(0.1)
    small = al.compact(gated)
    assert [name for name, _ in small.named_parameters() if "block" in name] == []
    assert al.inspect(gated).least["parameters"] < 20
