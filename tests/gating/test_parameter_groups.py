"""Weights and gates go apart into any optimiser of torch."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

import archlearn as al

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": torch.optim.SGD,
    "sgd_momentum": lambda groups: torch.optim.SGD(groups, momentum=0.9, nesterov=True),
}
ADAPTIVE: dict[str, Callable[[Any], Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "rprop": torch.optim.Rprop,
}
STRENGTHS = al.Strengths.from_width_cost(1e-2)


def gated() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    return al.add_gates(net, torch.zeros(1, 4))


def gates_of(model: nn.Module) -> list[nn.Parameter]:
    return [*al.width_gates(model).values(), *al.depth_gates(model).values()]


def step(model: nn.Module, optimizer: Optimizer) -> float:
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    loss = cross_entropy(model(x), torch.arange(16) % 3) + al.penalty(model, STRENGTHS)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    al.clip_gates_(model)
    return loss.item()


each = pytest.mark.parametrize("name", OPTIMIZERS)


def test_every_parameter_is_in_one_group_and_gates_are_apart() -> None:
    model = gated()
    weights, gates = al.parameter_groups(model, lr=0.1)
    found = [id(p) for group in (weights, gates) for p in group["params"]]
    assert len(found) == len(set(found))
    assert set(found) == {id(p) for p in model.parameters()}
    assert {id(p) for p in gates["params"]} == {id(p) for p in gates_of(model)}


def test_gates_have_their_own_rate_and_no_decay() -> None:
    weights, gates = al.parameter_groups(gated(), lr=0.1, gate_lr=0.3, weight_decay=5e-4)
    assert (weights["lr"], weights["weight_decay"]) == (0.1, 5e-4)
    assert (gates["lr"], gates["weight_decay"]) == (0.3, 0.0)
    _, gates = al.parameter_groups(gated(), lr=0.02)
    assert gates["lr"] == pytest.approx(0.3)


def test_options_reach_both_groups_but_momentum_only_the_weights() -> None:
    weights, gates = al.parameter_groups(gated(), lr=0.1, momentum=0.9, foreach=False)
    assert (weights["momentum"], gates["momentum"]) == (0.9, 0.0)
    assert weights["foreach"] is gates["foreach"] is False


@pytest.mark.parametrize("name", ADAPTIVE)
def test_an_adaptive_optimizer_takes_the_weights_and_refuses_the_gates(name: str) -> None:
    weights, gates = al.parameter_groups(gated(), lr=0.01)
    assert ADAPTIVE[name]([weights]).param_groups[0]["params"] == weights["params"]
    with pytest.raises(al.InputError, match=r"give it archlearn.weights\(model\)"):
        ADAPTIVE[name]([weights, gates])


@each
def test_a_step_moves_weights_and_gates(name: str) -> None:
    model = gated()
    optimizer = OPTIMIZERS[name](al.parameter_groups(model, lr=0.01))
    before = copy.deepcopy(model.state_dict())
    first = step(model, optimizer)
    assert not [n for n, p in model.named_parameters() if torch.equal(p, before[n])]
    last = [step(model, optimizer) for _ in range(20)][-1]
    assert last < first


@each
def test_a_scheduler_moves_both_rates(name: str) -> None:
    model = gated()
    optimizer = OPTIMIZERS[name](al.parameter_groups(model, lr=0.01, gate_lr=0.04))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    step(model, optimizer)
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.005, 0.02]


@each
def test_the_state_of_the_optimizer_is_saved_and_loaded(name: str) -> None:
    model, other = gated(), gated()
    groups = [al.parameter_groups(m, lr=0.01) for m in (model, other)]
    optimizer, fresh = (OPTIMIZERS[name](group) for group in groups)
    step(model, optimizer)
    other.load_state_dict(model.state_dict())
    fresh.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert step(model, optimizer) == step(other, fresh)
    assert step(model, optimizer) == step(other, fresh)


def test_gates_keep_no_momentum_whatever_the_optimizer_has() -> None:
    """A plain step: the gate moves by its rate times its gradient, the second time as well."""
    model = gated()
    groups = al.parameter_groups(model, lr=0.01, gate_lr=0.1)
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    (gate, *_) = al.width_gates(model).values()
    for _ in range(3):
        before = gate.detach().clone()
        step(model, optimizer)
        assert gate.grad is not None
        torch.testing.assert_close(gate, (before - 0.1 * gate.grad).clamp(0, 1))


def test_weight_decay_of_the_optimizer_does_not_reach_the_gates() -> None:
    model = gated()
    optimizer = torch.optim.SGD(al.parameter_groups(model, lr=0.1), weight_decay=0.5)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = [gate.detach().clone() for gate in gates_of(model)]
    optimizer.step()
    for gate, old in zip(gates_of(model), before, strict=True):
        assert torch.equal(gate, old)


def test_gates_placed_by_hand_are_gates_too() -> None:
    site = al.TriState(5)
    model = nn.Sequential(nn.Linear(4, 5), site, nn.Linear(5, 3))
    weights, gates = al.parameter_groups(model, lr=0.1)
    assert len(weights["params"]) == 4
    assert {id(p) for p in gates["params"]} == {id(site.width), id(site.depth)}


def test_a_model_without_gates_is_refused() -> None:
    with pytest.raises(al.InputError, match="has no gates; call add_gates on it first"):
        al.parameter_groups(nn.Linear(2, 2), lr=0.1)


def test_decay_that_the_optimizer_is_given_is_that_of_the_weights() -> None:
    model = al.add_gates(
        nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), torch.ones(1, 4)
    )
    given = torch.optim.SGD(al.parameter_groups(model, lr=0.1), weight_decay=0.2)
    assert [group["weight_decay"] for group in given.param_groups] == [0.2, 0.0]
    own = torch.optim.SGD(al.parameter_groups(model, lr=0.1, weight_decay=0.0), weight_decay=0.2)
    assert [group["weight_decay"] for group in own.param_groups] == [0.0, 0.0]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    given.step()
    for name, parameter in model.named_parameters():
        shrunk = 1.0 if "archlearn_gates" in name else 1 - 0.1 * 0.2
        torch.testing.assert_close(parameter.detach(), before[name] * shrunk)


def test_gates_of_several_parts_are_all_gates() -> None:
    """Their groups have the same names."""
    model = nn.Sequential(gated(), gated())
    first, second = (gates_of(part) for part in model.children())
    assert list(al.width_gates(model)) == ["0.0", "0.2", "1.0", "1.2"]
    weights, gates = al.parameter_groups(model, lr=0.1)
    assert {id(gate) for gate in gates["params"]} == {id(gate) for gate in [*first, *second]}
    assert not {id(weight) for weight in weights["params"]} & {id(gate) for gate in first}
    assert list(al.width_gates(nn.Sequential(gated()))) == ["0", "2"]
