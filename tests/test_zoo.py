"""Every kind of network is learnt and compacted exactly, or refused by name."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import archlearn as al
from tests.zoo import ALL, REFUSED, Inputs, Kind, Refused, call, in_double, randomise_

SEEDS = (0, 1, 2, 5)
EXACT, SAME = 1e-10, 1e-12

each_kind = pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
each_seed = pytest.mark.parametrize("seed", SEEDS)


def build(kind: Kind, seed: int) -> tuple[nn.Module, Inputs]:
    torch.manual_seed(seed)
    net = kind.build().double().eval()
    randomise_(net, seed)
    return net, in_double(kind.inputs())


@torch.no_grad()
def draw_gates_(gated: nn.Module, seed: int) -> None:
    """Close a random half of the width gates, and open a random half of the depth gates."""
    generator = torch.Generator().manual_seed(seed)
    for gate in (*al.width_gates(gated).values(), *al.depth_gates(gated).values()):
        coin = torch.rand(gate.shape, generator=generator) < 0.5
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
    total = torch.zeros((), dtype=torch.float64)
    for output in outputs(net, inputs):
        total = total + (output * torch.rand_like(output)).sum() + output.square().sum()
    return total


def n_parameters(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def drops_anything(gated: nn.Module) -> bool:
    return any(
        gate.numel() > 1 and bool((gate < 0.5).any()) for gate in al.width_gates(gated).values()
    )


@each_kind
def test_what_is_learnt_is_what_can_be(kind: Kind) -> None:
    net, inputs = build(kind, 0)
    rows = al.inspect(al.add_gates(net, inputs)).rows
    assert {row.channels for row in rows if row.width} == kind.widths
    assert {row.channels for row in rows if row.depth} == kind.depths
    assert all(row.reason for row in rows if not row.width)


@each_kind
def test_open_gates_change_nothing(kind: Kind) -> None:
    net, inputs = build(kind, 0)
    gated = al.add_gates(net, inputs)
    assert isinstance(gated, type(net))
    assert_same(gated.eval(), net.eval(), inputs, SAME)
    assert_same(gated.eval(), net.eval(), in_double(kind.inputs()), SAME)
    assert_same(gated.train(), copy.deepcopy(net).train(), inputs, SAME)


@each_kind
@each_seed
def test_compact_network_computes_what_the_gated_one_did(kind: Kind, seed: int) -> None:
    net, inputs = build(kind, seed)
    gated = al.add_gates(net, inputs)
    draw_gates_(gated, seed)
    small = al.compact(gated)
    assert isinstance(small, type(net))
    fresh = in_double(kind.inputs())
    assert_same(gated.eval(), small.eval(), fresh, EXACT)
    assert_same(gated.eval(), small.eval(), without_first_sample(fresh), EXACT)
    if drops_anything(gated):
        assert n_parameters(small) < n_parameters(net)
    else:
        assert n_parameters(small) <= n_parameters(net)


@each_kind
def test_every_width_gate_that_closes_saves_parameters(kind: Kind) -> None:
    net, inputs = build(kind, 0)
    gated = al.add_gates(net, inputs)
    for gate in al.width_gates(gated).values():
        with torch.no_grad():
            gate[0] = 0.1
        planned = al.plan(gated)
        assert planned.after.parameters < planned.before.parameters
        with torch.no_grad():
            gate[0] = 0.9


@each_kind
def test_surgery_leaves_its_argument_alone_and_costs_what_was_planned(kind: Kind) -> None:
    net, inputs = build(kind, 2)
    expected = outputs(net, inputs)
    gated = al.add_gates(net, inputs)
    draw_gates_(gated, 2)
    expected_of_gated = outputs(gated, inputs)
    planned, small = al.plan(gated), al.compact(gated)
    assert al.count_costs(small, inputs) == planned.after
    assert planned.after.parameters == n_parameters(small)
    torch.testing.assert_close(outputs(net, inputs), expected, rtol=0, atol=0)
    torch.testing.assert_close(outputs(gated, inputs), expected_of_gated, rtol=0, atol=0)


@each_kind
def test_gated_and_compact_network_train(kind: Kind) -> None:
    net, inputs = build(kind, 1)
    gated = al.add_gates(net, inputs).train()
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
