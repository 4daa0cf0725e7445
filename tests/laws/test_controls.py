"""Every law can fail: each check sees the one thing that is off."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError

import archlearn as al
from tests.laws import chains, checking
from tests.laws.networks import build
from tests.laws.programs import Block, Gates, Program

PLAIN = (0,) * 10
PROGRAM = Program(
    shape=(2, 6, 6),
    blocks=(
        Block("plain", 5, PLAIN),
        Block("residual", 4, (1, *PLAIN[1:])),
        Block("pair", 6, PLAIN),
        Block("plain", 4, PLAIN),
    ),
    head=Block("head", 1, PLAIN),
    seed=3,
)
GATES = Gates(closed=4, whole=0, linear=5, seed=1)
CHAIN = chains.Chain(
    2,
    (
        chains.Affine(3, 3, 1, 1, True),
        chains.Affine(4, 2, 2, 1, True),
        chains.Affine(2, 3, 1, 2, False),
    ),
    1,
    False,
    "zeros",
    5,
)


@pytest.fixture
def gated() -> nn.Module:
    return checking.gate_and_set(PROGRAM, GATES)


@pytest.fixture
def small(gated: nn.Module) -> nn.Module:
    return al.compact(gated)


def each_weight(net: nn.Module) -> Iterator[Tensor]:
    """Yield every weight with more than one dimension."""
    yield from (p for p in net.parameters() if p.dim() > 1)


def test_the_examples_of_the_controls_keep_the_laws() -> None:
    for check in (checking.check_compact, checking.check_twice, checking.check_files):
        check(PROGRAM, GATES)
    for check in (checking.check_costs, checking.check_prediction, checking.check_never_empty):
        check(PROGRAM, GATES)
    chains.check_associative(CHAIN)
    chains.check_fold(CHAIN)


STREAM = Program(
    shape=(3, 5),
    blocks=(Block("stream", 5, (0, 1, 2, 1, 0, 0, 0, 1, 0, 0)), Block("group_normed", 4, PLAIN)),
    head=Block("head", 1, PLAIN),
    seed=3,
)


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.GroupNorm])
def test_a_norm_that_is_off_by_a_millionth_is_seen(kind: type[nn.Module]) -> None:
    gated = checking.gate_and_set(STREAM, replace(GATES, closed=2))
    small, x = al.compact(gated), checking.fresh(STREAM)
    checking.check_same(gated, small, x)
    norm = next(module for module in small.modules() if isinstance(module, kind))
    next(norm.parameters()).data.mul_(1 + 1e-6)
    with pytest.raises(AssertionError, match="differ by"):
        checking.check_same(gated, small, x)


@pytest.mark.parametrize(("n_heads", "end", "n"), [(2, "qkv", 3), (4, "qkv", 4), (4, "qkv/2", 3)])
def test_a_query_of_a_head_that_is_off_by_a_millionth_is_seen(
    n_heads: int, end: str, n: int
) -> None:
    choices = (0, 0 if n_heads == 2 else 1, 1, *PLAIN[3:])
    program = replace(STREAM, blocks=(STREAM.blocks[0], Block("headed", 4, choices)))
    gated, x = checking.gate_and_set(program, replace(GATES, closed=0)), checking.fresh(program)
    gate = next(gate for name, gate in al.width_gates(gated).items() if name.endswith(end))
    assert len(gate) == n  # channels of each head, or heads
    gate.data[0] = 0.1
    for branch in al.branch_gates(gated).values():
        branch.data.fill_(1.0)
    small = al.compact(gated)
    checking.check_same(gated, small, x)
    qkv = next(weight for name, weight in small.named_parameters() if "qkv.weight" in name)
    qkv.data[0] *= 1 + 1e-6
    with pytest.raises(AssertionError, match="differ by"):
        checking.check_same(gated, small, x)


def test_the_key_of_another_query_is_seen() -> None:
    choices = (5, 1, 1, 1, *PLAIN[4:])  # grouped, four heads of keys for three of queries each
    program = replace(STREAM, blocks=(STREAM.blocks[0], Block("headed", 4, choices)))
    gated, x = checking.gate_and_set(program, replace(GATES, closed=0)), checking.fresh(program)
    for branch in al.branch_gates(gated).values():
        branch.data.fill_(1.0)
    gates = {name: gate for name, gate in al.width_gates(gated).items() if "qkv" in name}
    assert sorted(map(len, gates.values())) == [3, 3, 3, 4]  # with queries and keys, and values
    gates[max(gates)].data[1] = 0.1
    small = al.compact(gated)
    checking.check_same(gated, small, x)
    qkv = next(weight for name, weight in small.named_parameters() if "qkv.weight" in name)
    assert len(qkv) == 4 * (2 + 2) * 3
    qkv.data[:24] = qkv.data[:24].roll(3, 0)  # a head further
    with pytest.raises(AssertionError, match="differ by"):
        checking.check_same(gated, small, x)


def test_another_channel_of_one_head_is_seen() -> None:
    choices = (0, 1, 1, *PLAIN[3:])  # by hand, four heads of three channels
    program = replace(STREAM, blocks=(STREAM.blocks[0], Block("headed", 4, choices)))
    gated, x = checking.gate_and_set(program, replace(GATES, closed=0)), checking.fresh(program)
    for branch in al.branch_gates(gated).values():
        branch.data.fill_(1.0)
    container: Any = gated.archlearn_gates
    name, order = next(iter(container.orders().items()))
    al.width_gates(gated)[name].data[0] = 0.1
    small = al.compact(gated)
    checking.check_same(gated, small, x)
    order[2] = order[2].roll(1)
    with pytest.raises(AssertionError, match="differ by"):
        checking.check_same(gated, small, x)


def test_angles_of_other_positions_within_a_head_are_seen() -> None:
    choices = (4, 1, 2, *PLAIN[3:])  # turned by positions, four heads of four channels
    program = replace(STREAM, blocks=(STREAM.blocks[0], Block("headed", 4, choices)))
    gated, x = checking.gate_and_set(program, replace(GATES, closed=0)), checking.fresh(program)
    gate = next(gate for name, gate in al.width_gates(gated).items() if name.endswith("qkv/2"))
    assert len(gate) == 2  # pairs
    gate.data[0] = 0.1
    for branch in al.branch_gates(gated).values():
        branch.data.fill_(1.0)
    small = al.compact(gated)
    checking.check_same(gated, small, x)
    index = next(buffer for name, buffer in small.named_buffers() if "archlearn_index" in name)
    assert index.tolist() == [1, 3]
    index -= 1
    with pytest.raises(AssertionError, match="differ by"):
        checking.check_same(gated, small, x)


def test_a_weight_that_is_off_by_a_millionth_is_seen(gated: nn.Module, small: nn.Module) -> None:
    x = checking.fresh(PROGRAM)
    checking.check_same(gated, small, x)
    seen = 0
    for weight in each_weight(small):
        kept = weight.detach().clone()
        weight.data.mul_(1 + 1e-6)
        try:
            checking.check_same(gated, small, x)
        except AssertionError:
            seen += 1
        weight.data.copy_(kept)
    assert seen == len(list(each_weight(small)))


def test_a_dropped_channel_too_many_is_seen(gated: nn.Module) -> None:
    other = copy.deepcopy(gated)
    name, gate = next((n, g) for n, g in al.width_gates(other).items() if (g > 0.5).sum() > 1)
    gate.data[(gate > 0.5).nonzero()[0]] = 0.1
    with pytest.raises(AssertionError, match="differ by"):
        checking.check_same(gated, al.compact(other), checking.fresh(PROGRAM))
    assert len(al.plan(other).widths[name]) == len(al.plan(gated).widths[name]) - 1


def test_channels_kept_in_another_order_are_seen(gated: nn.Module, small: nn.Module) -> None:
    layer = next(m for m in small.modules() if isinstance(m, nn.Conv2d) and m.out_channels > 1)
    layer.weight.data = layer.weight.data.flip(0)
    with pytest.raises(AssertionError, match="differ by"):
        checking.check_same(gated, small, checking.fresh(PROGRAM))


def test_a_second_compacting_that_drops_more_is_seen(gated: nn.Module, small: nn.Module) -> None:
    regated = checking.gate_if_learnable(small, PROGRAM)
    assert regated is not None
    gate = next(g for g in al.width_gates(regated).values() if len(g) > 1)
    gate.data[0] = 0.1
    twice = al.compact(regated)
    assert checking.shapes(twice) != checking.shapes(small)
    with pytest.raises(AssertionError):
        checking.check_equal_states(small, twice)


def test_a_file_of_another_network_is_seen(small: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    al.save(small, path)
    loaded = al.load(path)
    checking.check_equal_states(small, loaded)
    next(each_weight(loaded)).data.view(-1)[0] += 1e-12
    with pytest.raises(AssertionError):
        checking.check_equal_states(small, loaded)


def test_a_plan_that_costs_more_is_seen(gated: nn.Module) -> None:
    plan = al.plan(gated)
    dearer = replace(plan.before, parameters=plan.before.parameters + 1)
    slower = replace(plan.before, multiply_adds=plan.before.multiply_adds + 1)
    for after in (dearer, slower):
        with pytest.raises(AssertionError):
            checking.check_no_dearer(replace(plan, after=after))


def test_a_prediction_that_is_off_by_one_is_seen(gated: nn.Module, small: nn.Module) -> None:
    plan, net, x = al.plan(gated), build(PROGRAM), checking.fresh(PROGRAM)
    checking.check_counted(plan, net, small, x)
    more = replace(plan.after, multiply_adds=plan.after.multiply_adds + 1)
    fewer = replace(plan.after, parameters=plan.after.parameters - 1)
    for after in (more, fewer):
        with pytest.raises(AssertionError):
            checking.check_counted(replace(plan, after=after), net, small, x)
    with pytest.raises(AssertionError):
        checking.check_counted(plan, small, small, x)


def test_an_empty_group_is_seen(gated: nn.Module) -> None:
    plan = al.plan(gated)
    checking.check_channels_stay(plan)
    with pytest.raises(AssertionError):
        checking.check_channels_stay(replace(plan, widths={**plan.widths, "emptied": ()}))
    narrowing = replace(plan.narrowings[0], kept=())
    with pytest.raises(AssertionError):
        checking.check_channels_stay(replace(plan, narrowings=(narrowing,)))


def test_a_changed_plan_is_another_plan(gated: nn.Module) -> None:
    plan = al.plan(gated)
    kept = str(plan.narrowings[0].kept[0])
    text = plan.to_json().replace(f'"kept": [{kept}', '"kept": [77', 1)
    assert al.Plan.from_json(text) != plan


def test_a_closed_gate_changes_the_function() -> None:
    gated = checking.gate(PROGRAM)
    gate = next(iter(al.width_gates(gated).values()))
    gate.data[0] = 0.1
    with pytest.raises(AssertionError):
        checking.check_same(build(PROGRAM), gated, checking.fresh(PROGRAM))


def test_a_linear_site_changes_the_function() -> None:
    gated = checking.gate(PROGRAM)
    next(iter(al.depth_gates(gated).values())).data.fill_(0.9)
    with pytest.raises(AssertionError):
        checking.check_same(build(PROGRAM), gated, checking.fresh(PROGRAM))


def test_a_closed_branch_changes_the_function() -> None:
    gated = checking.gate(PROGRAM)
    small = al.compact(gated)
    next(iter(al.branch_gates(gated).values())).data.fill_(0.1)
    with pytest.raises(AssertionError, match="differ by"):
        checking.check_same(gated, small, checking.fresh(PROGRAM))
    assert al.plan(gated).after != al.count_costs(small)


def test_a_state_without_its_gates_is_seen(gated: nn.Module) -> None:
    other = checking.gate(PROGRAM)
    state = gated.state_dict()
    weights = {name: state[name] for name in build(PROGRAM).state_dict()}
    other.load_state_dict(weights, strict=False)
    with pytest.raises(AssertionError):
        checking.check_same(gated, other, checking.fresh(PROGRAM))


def test_a_gradient_that_misses_a_term_is_seen(gated: nn.Module) -> None:
    numbers = [*al.width_gates(gated).values(), *al.depth_gates(gated).values()]
    strengths = al.Strengths.from_width_cost(0.3)
    checking.check_gradient(gated, strengths, numbers)
    with pytest.raises(GradcheckError, match="Jacobian"):
        checking.check_gradient(gated, strengths, numbers, shift=1e-3)


def test_gates_that_training_passes_by_are_seen() -> None:
    gated, x = checking.gate(PROGRAM).train(), checking.fresh(PROGRAM)
    checking.check_all_learn(gated, x)
    outputs = gated(x)
    layer = gated.get_submodule("blocks.0.0")
    layer.register_forward_hook(lambda *given: given[2].detach())
    checking.check_all_learn(gated, x)  # its own gates are behind it
    gated.register_forward_hook(lambda *_: outputs)
    with pytest.raises(AssertionError, match="does not learn"):
        checking.check_all_learn(gated, x)


def test_a_merge_in_the_wrong_order_is_seen() -> None:
    first, second, third = chains.build_chain(CHAIN)
    x = chains.inputs_of(CHAIN)
    with torch.no_grad():
        right = third(second(first(x)))
        wrong = copy.deepcopy(second)
        wrong.weight.data = wrong.weight.data.flip(-1)
        merged = chains.merge(chains.merge(first, wrong), third)
        with pytest.raises(AssertionError, match="differ by"):
            chains.check_same_values(right, merged(x))
        unbiased = chains.merge(chains.merge(first, second), third)
        unbiased.bias.data[0] += 1e-6
        with pytest.raises(AssertionError, match="differ by"):
            chains.check_same_values(right, unbiased(x))
