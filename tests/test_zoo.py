"""Every kind of network is learnt and compacted exactly, or refused by name.

Networks and inputs are on the CPU while torch's default device is "meta", so that a tensor of ours
whose device nobody named fails here as it would with `torch.set_default_device("cuda")`.
"""

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import archlearn as al
from tests.zoo import ALL, REFUSED, Inputs, Kind, Refused, call, in_double, randomise_

SEEDS = (0, 1, 2, pytest.param(5, marks=pytest.mark.slow))
EXACT, SAME = 1e-10, 1e-12

FOLLOWS_THE_DEFAULT = {"rnn_from_zeros"}
"""Networks that fail untouched while the default device is another one than theirs."""

Gated = tuple[nn.Module, nn.Module, Inputs]


# Of the module, so that what all tests of a kind need is made once.
@pytest.fixture(scope="module", params=ALL, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture(scope="module")
def of_seed(kind: Kind) -> Callable[[int], Gated]:
    """Return a function of a seed: a network, its gated copy, and inputs; not to be changed."""

    @functools.cache
    def make(seed: int) -> Gated:
        net, inputs = build(kind, seed)
        return net, al.add_gates(net, inputs), inputs

    return make


@pytest.fixture(scope="module")
def runs_elsewhere(kind: Kind) -> bool:
    """Return whether a network runs untouched while the default device is another one."""
    net, inputs = build(kind, 0)
    try:
        with torch.device("meta"):
            call(net, inputs)
    except (RuntimeError, NotImplementedError):
        assert kind.name in FOLLOWS_THE_DEFAULT
        return False
    return True


@pytest.fixture(autouse=True)
def other_default_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have torch make tensors without a device on "meta", where their numbers cannot be read."""
    is_of_kind = "kind" in request.fixturenames
    follows = is_of_kind and not request.getfixturevalue("runs_elsewhere")
    with nullcontext() if follows else torch.device("meta"):
        yield


def build(kind: Kind, seed: int) -> tuple[nn.Module, Inputs]:
    with torch.device("cpu"):
        torch.manual_seed(seed)
        net = kind.build().double().eval()
        randomise_(net, seed)
        return net, draw_inputs(kind)


def draw_inputs(kind: Kind) -> Inputs:
    with torch.device("cpu"):
        return in_double(kind.inputs())


@torch.no_grad()
def draw_gates_(gated: nn.Module, seed: int) -> None:
    """Close a random half of the width gates, and open a random half of the depth gates."""
    generator = torch.Generator().manual_seed(seed)
    for gate in (*al.width_gates(gated).values(), *al.depth_gates(gated).values()):
        coin = torch.rand(gate.shape, generator=generator, device="cpu") < 0.5
        gate.copy_(torch.where(coin, 0.1, 0.9))


def outputs(net: nn.Module, inputs: Inputs) -> list[Tensor]:
    """Return the tensors a network gives, with the same dropout each time."""
    torch.manual_seed(99)
    return [leaf for leaf in pytree.tree_leaves(call(net, inputs)) if isinstance(leaf, Tensor)]


def assert_same(first: nn.Module, second: nn.Module, inputs: Inputs, tolerance: float) -> None:
    ours, theirs = call(first, inputs), call(second, inputs)
    assert pytree.tree_structure(ours) == pytree.tree_structure(theirs)
    for one, other in zip(outputs(first, inputs), outputs(second, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def without_first_sample(inputs: Inputs) -> Any:
    """Return a batch of another size: no size may have been baked in."""
    return pytree.tree_map(lambda leaf: leaf[1:] if isinstance(leaf, Tensor) else leaf, inputs)


def loss_of(net: nn.Module, inputs: Inputs) -> Tensor:
    """Return a loss to which every output matters, differently for each number."""
    total = torch.zeros((), dtype=torch.float64, device="cpu")
    for output in outputs(net, inputs):
        total = total + (output * torch.rand_like(output)).sum() + output.square().sum()
    return total


def n_parameters(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def drops_anything(gated: nn.Module) -> bool:
    return any(
        gate.numel() > 1 and bool((gate < 0.5).any()) for gate in al.width_gates(gated).values()
    )


def test_what_is_learnt_is_what_can_be(kind: Kind, of_seed: Callable[[int], Gated]) -> None:
    _, gated, _ = of_seed(0)
    rows = al.inspect(gated).rows
    assert {row.channels for row in rows if row.width} == kind.widths
    assert {row.channels for row in rows if row.depth} == kind.depths
    assert all(row.reason for row in rows if not row.width)


def test_open_gates_change_nothing(kind: Kind, of_seed: Callable[[int], Gated]) -> None:
    net, gated, inputs = of_seed(0)
    assert isinstance(gated, type(net))
    assert_same(gated, net, inputs, SAME)
    assert_same(gated, net, draw_inputs(kind), SAME)
    gated, net = copy.deepcopy((gated, net))
    assert_same(gated.train(), net.train(), inputs, SAME)


@pytest.mark.parametrize("seed", SEEDS)
def test_compact_network_computes_what_the_gated_one_did_and_costs_what_was_planned(
    kind: Kind, seed: int, of_seed: Callable[[int], Gated]
) -> None:
    net, gated, inputs = of_seed(seed)
    gated = copy.deepcopy(gated)
    draw_gates_(gated, seed)
    expected = outputs(net, inputs), outputs(gated, inputs)
    planned, small = al.plan(gated), al.compact(gated)
    assert isinstance(small, type(net))
    fresh = draw_inputs(kind)
    assert_same(gated.eval(), small.eval(), fresh, EXACT)
    assert_same(gated.eval(), small.eval(), without_first_sample(fresh), EXACT)
    if drops_anything(gated):
        assert n_parameters(small) < n_parameters(net)
    else:
        assert n_parameters(small) <= n_parameters(net)
    assert al.count_costs(small, inputs) == planned.after
    assert planned.after.parameters == n_parameters(small)
    now = outputs(net, inputs), outputs(gated, inputs)
    torch.testing.assert_close(now, expected, rtol=0, atol=0)


def test_every_width_gate_that_closes_saves_parameters(of_seed: Callable[[int], Gated]) -> None:
    gated = copy.deepcopy(of_seed(0)[1])
    for gate in al.width_gates(gated).values():
        with torch.no_grad():
            gate[0] = 0.1
        planned = al.plan(gated)
        assert planned.after.parameters < planned.before.parameters
        with torch.no_grad():
            gate[0] = 0.9


def test_gated_and_compact_network_train(of_seed: Callable[[int], Gated]) -> None:
    _, gated, inputs = of_seed(1)
    gated = copy.deepcopy(gated).train()
    loss_of(gated, inputs).backward()
    gates: dict[str, Any] = {**al.width_gates(gated), **al.depth_gates(gated)}
    unmoved = [name for name, gate in gates.items() if gate.grad is None or not gate.grad.any()]
    assert not unmoved
    draw_gates_(gated, 1)
    small = al.compact(gated).train()
    loss_of(small, inputs).backward()
    assert all(parameter.grad is not None for parameter in small.parameters())


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused.kind.name)
def test_network_is_refused_by_name(refused: Refused) -> None:
    net, inputs = build(refused.kind, 0)
    with pytest.raises(refused.error, match=refused.match):
        al.add_gates(net, inputs)


def test_names_and_widths_tell_the_kinds_apart() -> None:
    assert len({kind.name for kind in ALL}) == len(ALL) >= 60


def test_comparison_sees_one_weight_that_is_off() -> None:
    kind = next(kind for kind in ALL if kind.name == "residual_projection")
    net, inputs = build(kind, 0)
    gated = al.add_gates(net, inputs)
    draw_gates_(gated, 0)
    small = al.compact(gated).eval()
    with torch.no_grad():
        next(small.parameters()).view(-1)[0] += 1e-6
    with pytest.raises(AssertionError, match="not close"):
        assert_same(gated.eval(), small, inputs, EXACT)
