"""Laws of gates on weights, as plain functions that raise where a law is broken."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import reject
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

import archlearn as al
from archlearn.gating.gate_container import GateContainer, find_container
from archlearn.gating.weight_gates import WeightGates
from archlearn.nn.open_norms import is_open_form
from tests.laws import checking
from tests.laws.networks import build, inputs_of
from tests.laws.programs import Gates, Program

N_STEPS = 20
LR = 1e-3
TOLERANCE = 1e-9
Optimizers = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Optimizers] = {
    "sgd": lambda p: torch.optim.SGD(p, LR, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, LR, momentum=0.9, nesterov=True, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, LR, weight_decay=0.1, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, LR, weight_decay=0.1, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, LR, weight_decay=0.1, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, LR),
    "rmsprop": lambda p: torch.optim.RMSprop(p, LR, momentum=0.9, centered=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, LR, weight_decay=0.1),
}
"""Those whose steps the third law is about; which one is drawn with the gates."""


def gate_weights(net: nn.Module, program: Program) -> nn.Module:
    """Return a copy with gates on weights; a network without any is no example."""
    try:
        return al.add_gates(net, inputs_of(program, program.seed), on="weights")
    except al.InputError as error:
        if "can be learnt" not in str(error):
            raise
        reject()


def trainable(program: Program) -> nn.Module:
    """Return a network in training mode that can be trained on the examples."""
    net = build(program).train()
    if not any(parameter.requires_grad for parameter in net.parameters()):
        reject()
    try:
        is_trainable = checking.is_trainable(copy.deepcopy(net), inputs_of(program, 1))
    except ValueError:  # a BatchNorm over a single number
        is_trainable = False
    if not is_trainable:
        reject()
    return net


def container_of(model: nn.Module) -> GateContainer:
    container = find_container(model)
    assert container is not None
    return container


def weight_gates(model: nn.Module, optimizer: torch.optim.Optimizer) -> WeightGates:
    """Return what acts on the weights of a model, bound to an optimiser of them."""
    gates = container_of(model).on_weights
    assert gates is not None
    gates.bind_(model, [optimizer])
    return gates


def draw(gates: WeightGates, container: GateContainer, drawn: Gates, n: int = 0) -> Tensor:
    """Return which gates are open, at least as many of each group as must be."""
    generator = torch.Generator().manual_seed(drawn.seed + n)
    is_open = torch.rand(len(gates.is_open), generator=generator) * 10 >= drawn.closed
    leasts = [group.least for group in container.channel_graph.groups]
    for number, group in enumerate(gates.groups):
        own = is_open[group.start : group.start + group.size]
        least = leasts[number] if number < len(leasts) else 0
        own[:least] = True
        if number in gates.left_out:
            own.fill_(True)
    return is_open


# ------------------------------------------------------------------------------- (a) open


def check_open_is_plain(program: Program, drawn: Gates) -> None:
    """With all gates open, a run is the plain one: losses, weights, random numbers, states."""
    net = trainable(program)
    model = gate_weights(net, program)
    make = [*OPTIMIZERS.values()][drawn.seed % len(OPTIMIZERS)]
    optimizer = make(list(model.parameters()))
    al.GateOptimizer(model, optimizer, total_steps=100 * N_STEPS)
    plain = train(net, make(list(net.parameters())), program)
    check_equal_runs(plain, train(model, optimizer, program))
    checking.check_equal_states(net, model)


Run = tuple[list[Tensor], Tensor]


def train(
    net: nn.Module, optimizer: torch.optim.Optimizer, program: Program, n_steps: int = N_STEPS
) -> Run:
    """Train a network; return its losses, and the state of the random numbers behind it."""
    torch.manual_seed(0)
    losses: list[Tensor] = []
    for step in range(n_steps):
        loss = checking.sum_outputs(net, inputs_of(program, step)).square().log1p()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses, torch.get_rng_state()


def check_equal_runs(first: Run, second: Run) -> None:
    """Check that two runs had the same losses and drew the same numbers, bit by bit."""
    for one, other in zip(first[0], second[0], strict=True):
        assert torch.equal(one.nan_to_num(0.5), other.nan_to_num(0.5))
    assert torch.equal(first[1], second[1])


# ---------------------------------------------------- (b) as gates on activations, and gradients


def check_as_on_activations(program: Program, drawn: Gates) -> None:
    """What is closed on weights is closed as by a factor on activations."""
    net = build(program)
    model = gate_weights(net, program)
    old = al.add_gates(net, inputs_of(program, program.seed))
    gates = weight_gates(model, torch.optim.SGD(model.parameters(), LR))
    is_open = draw(gates, container_of(model), drawn)
    gates.set_open_(is_open)
    checking.check_same(model, al.compact(model), checking.fresh(program))
    for group in gates.groups:  # an RMSNorm of zeros is another one than over the open channels
        if not all(is_open_form(model.get_submodule(name)) for name in group.norms):
            is_open[group.start : group.start + group.size] = True
    set_old_(old, gates, is_open)
    if al.plan(old).folds:  # a constant that stays behind the gate, and goes with the columns here
        reject()
    gates.set_open_(is_open)
    checking.check_same(old, model, checking.fresh(program))


@torch.no_grad()
def set_old_(old: nn.Module, gates: WeightGates, is_open: Tensor) -> None:
    """Set gates on activations as gates on weights are."""
    widths, branches = al.width_gates(old), al.branch_gates(old)
    for group in gates.groups:
        gate = (branches if group.kind == "branch" else widths)[group.name]
        gate.copy_(is_open[group.start : group.start + group.size].view(gate.shape).double())


def check_gradients(program: Program, drawn: Gates) -> None:
    """A gate's gradient is that of a factor of its slices, of closed gates, too."""
    model = gate_weights(build(program), program)
    gates = weight_gates(model, torch.optim.SGD(model.parameters(), LR))
    whole = {name: p.detach().clone() for name, p in model.named_parameters()}
    is_open = draw(gates, container_of(model), drawn)
    gates.set_open_(is_open)
    x = checking.fresh(program)
    if not checking.is_trainable(model, x):
        reject()
    gates.observe()
    factor = is_open.double().requires_grad_()
    scaled = dict(whole)
    for number, group in enumerate(gates.groups):
        if number not in gates.left_out:
            for each in group.readers:
                scaled[each.parameter] = scaled[each.parameter] * _factor(
                    each, whole[each.parameter], factor
                )
    outputs: Any = functional_call(model, scaled, (x.clone(),))
    total = torch.stack([out.sum() for out in pytree.tree_leaves(outputs)]).sum()
    if not total.requires_grad:  # no gate can act on weights here
        reject()
    (wanted,) = torch.autograd.grad(total, factor, materialize_grads=True)
    gap = (wanted - gates.gradient()).abs().max()
    assert gap <= TOLERANCE * max(1.0, float(wanted.abs().max()))


def _factor(slices: Any, parameter: Tensor, factor: Tensor) -> Tensor:
    lines = torch.cat([factor, factor.new_ones(1)])[slices.gates].prod(0)
    if slices.dim is None:
        return lines.view(parameter.shape)
    return lines.view([-1 if d == slices.dim else 1 for d in range(parameter.dim())])


# ----------------------------------------------------------------- (c) nothing closed is read


def check_nothing_closed_is_read(program: Program, drawn: Gates) -> None:
    """Whatever optimiser steps, closed slices are zero, and what writes them is not seen."""
    net = trainable(program)
    model = gate_weights(net, program)
    make = [*OPTIMIZERS.values()][drawn.seed % len(OPTIMIZERS)]
    optimizer = make(list(model.parameters()))
    al.GateOptimizer(model, optimizer, total_steps=100 * N_STEPS)
    gates = container_of(model).on_weights
    assert gates is not None
    train(model, optimizer, program, 2)
    for number in range(3):
        gates.set_open_(torch.ones_like(gates.is_open))
        before = copy.deepcopy(model.state_dict())
        gates.set_open_(draw(gates, container_of(model), drawn, number))
        check_closed_is_zero(model, gates)
        gates.set_open_(torch.ones_like(gates.is_open))
        after = model.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
        gates.set_open_(draw(gates, container_of(model), drawn, number))
        train(model, optimizer, program, 2)
        check_closed_is_zero(model, gates)
    check_writers_are_not_seen(model, gates, checking.fresh(program))


def check_closed_is_zero(model: nn.Module, gates: WeightGates) -> None:
    """Check that all slices of closed gates are exactly zero, and no gate's else by chance."""
    parameters = dict(model.named_parameters())
    opened = torch.cat([gates.is_open, torch.ones(1, dtype=torch.bool)])
    for number, group in enumerate(gates.groups):
        for each in group.readers if number not in gates.left_out else ():
            is_closed = ~opened[each.gates].all(0)
            found = parameters[each.parameter].detach()
            found = found.flatten()[:, None] if each.dim is None else found.movedim(each.dim, 0)
            assert not bool(found[is_closed].any()), f"{each.parameter} is read"


@torch.no_grad()
def check_writers_are_not_seen(model: nn.Module, gates: WeightGates, x: Tensor) -> None:
    """Check that other weights that write closed channels change nothing, to the last bit."""
    model.eval()
    if not checking.is_steady(model, x):
        return
    before = checking.run(model, x)
    parameters = dict(model.named_parameters())
    opened = torch.cat([gates.is_open, torch.ones(1, dtype=torch.bool)])
    for number, group in enumerate(gates.groups):
        for each in group.writers if number not in gates.left_out else ():
            is_closed = ~opened[each.gates].all(0)
            found = parameters.get(each.parameter)
            if found is not None and each.dim is not None:
                found.movedim(each.dim, 0)[is_closed] *= 0.5
    for one, other in zip(before, checking.run(model, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
