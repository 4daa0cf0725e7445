"""The laws, as plain functions that raise where a law is broken."""

import copy
import random
import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from hypothesis import reject
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import archlearn as al
from archlearn.gating.gate_container import find_container
from archlearn.gating.parameters import find_holders
from archlearn.nn.functional import open_flat
from archlearn.optim.cost_function import CostFunction
from tests.laws.networks import build, inputs_of
from tests.laws.programs import Gates, Program

ROUNDING = 1e-13
TOLERANCE = 1e-10
CLOSED, OPEN = 0.1, 0.9


def gate(program: Program) -> nn.Module:
    """Return a program's network with gates; a network without anything to learn is no example."""
    gated = _last_gated(program)
    return copy.deepcopy(gated) if gated is not None else reject()


@lru_cache(maxsize=1)
def _last_gated(program: Program) -> nn.Module | None:
    """Return what laws that are checked on one program one after the other share."""
    return gate_if_learnable(build(program), program)


def gate_if_learnable(net: nn.Module, program: Program) -> nn.Module | None:
    """Return the network with gates, or None where nothing can be learnt."""
    try:
        return al.add_gates(net, inputs_of(program, program.seed))
    except al.InputError as error:
        if "nothing can be learnt" not in str(error):
            raise
        return None


@torch.no_grad()
def set_gates_(gated: nn.Module, gates: Gates) -> None:
    """Close and open gates as drawn."""
    generator = torch.Generator().manual_seed(gates.seed)

    def draw(shape: torch.Size, tenths: int) -> Tensor:
        return torch.rand(shape, generator=generator) * 10 < tenths

    for width in al.width_gates(gated).values():
        closed = draw(width.shape, gates.closed) | draw(torch.Size(), gates.whole)
        width.copy_(torch.where(closed, CLOSED, OPEN))
    for order in find_container(gated).orders().values():  # pyright: ignore[reportOptionalMemberAccess]
        numbers = torch.rand(order.shape, generator=generator).argsort(1)
        order.copy_(order.sort(1).values.gather(1, numbers))
    for depth in al.depth_gates(gated).values():
        depth.copy_(torch.where(draw(depth.shape, gates.linear), OPEN, CLOSED))
    for branch in al.branch_gates(gated).values():
        branch.copy_(torch.where(draw(branch.shape, gates.closed), CLOSED, OPEN))


def gate_and_set(program: Program, gates: Gates) -> nn.Module:
    """Return a program's network with gates as drawn."""
    gated = gate(program)
    set_gates_(gated, gates)
    return gated


def run(net: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the tensors that a network gives."""
    with torch.no_grad():
        return pytree.tree_leaves(net(x.clone()))


def check_same(first: nn.Module, second: nn.Module, x: Tensor) -> None:
    """Check that two networks give the same, relative to the size of what they give."""
    ours, theirs = run(first, x), run(second, x)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        assert bool(one.isfinite().all())
        gap, size = float((one - other).abs().max()), float(one.abs().max())
        assert gap <= TOLERANCE * size, f"differ by {gap:.2e} where outputs are {size:.2e}"


def fresh(program: Program) -> Tensor:
    """Return inputs that neither gating nor compacting has seen."""
    return inputs_of(program, program.seed + 1)


def check_compact(program: Program, gates: Gates) -> None:
    """The compact network computes what the gated one computes."""
    gated = gate_and_set(program, gates)
    check_same(gated, al.compact(gated), fresh(program))


def check_twice(program: Program, gates: Gates) -> None:
    """Compacting twice is compacting once."""
    gated = gate_and_set(program, gates)
    small, again = al.compact(gated), al.compact(gated)
    check_equal_states(small, again)
    regated = gate_if_learnable(small, program)
    if regated is not None:
        twice = al.compact(regated)
        assert shapes(twice) == shapes(small)
        check_same(small, twice, fresh(program))


def check_equal_states(first: nn.Module, second: nn.Module) -> None:
    """Check that two state dicts are equal, name by name and bit by bit."""
    ours, theirs = first.state_dict(), second.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def shapes(net: nn.Module) -> dict[str, torch.Size]:
    """Return the shape of every parameter."""
    return {name: parameter.shape for name, parameter in net.named_parameters()}


def check_files(program: Program, gates: Gates) -> None:
    """A saved network is the same when it is loaded."""
    small = al.compact(gate_and_set(program, gates))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.safetensors"
        al.save(small, path)
        loaded = al.load(path)
    check_equal_states(small, loaded)
    x = fresh(program)
    for one, other in zip(run(small, x), run(loaded, x), strict=True):
        assert torch.equal(one, other)


def check_costs(program: Program, gates: Gates) -> None:
    """Costs never rise, whatever a merge has to lower."""
    gated = gate_and_set(program, gates)
    for pay in ("parameters", "multiply_adds"):
        check_no_dearer(al.plan(gated, pay=pay))


def check_no_dearer(plan: al.Plan) -> None:
    """Check that a plan lowers both costs, or leaves them."""
    assert plan.after.parameters <= plan.before.parameters
    assert plan.after.multiply_adds <= plan.before.multiply_adds


def check_prediction(program: Program, gates: Gates) -> None:
    """A plan foretells the costs of the compact network, and counts those of the first."""
    gated = gate_and_set(program, gates)
    pay = ("parameters", "multiply_adds")[gates.seed % 2]
    plan = al.plan(gated, pay=pay)
    check_counted(plan, build(program), al.compact(gated, plan=plan), inputs_of(program, 0))


def check_counted(plan: al.Plan, net: nn.Module, small: nn.Module, x: Tensor) -> None:
    """Check a plan's costs against those of the networks before and after."""
    assert al.count_costs(net, x) == plan.before
    assert al.count_costs(small, x) == plan.after


def check_json(program: Program, gates: Gates) -> None:
    """A plan written as JSON and read again is the same plan."""
    plan = al.plan(gate_and_set(program, gates))
    assert al.Plan.from_json(plan.to_json()) == plan


def check_never_empty(program: Program, gates: Gates) -> None:
    """With every gate closed, a channel of every group stays, and the network still runs."""
    gated = gate_and_set(program, replace(gates, whole=10))
    plan = al.plan(gated)
    check_channels_stay(plan)
    small = al.compact(gated, plan=plan)
    assert all(tensor.numel() > 0 for tensor in small.state_dict().values())
    check_same(gated, small, fresh(program))


def check_channels_stay(plan: al.Plan) -> None:
    """Check that no group and no dimension is left empty."""
    assert all(plan.widths.values())
    assert all(narrowing.kept for narrowing in plan.narrowings)


def check_open(program: Program, gates: Gates) -> None:
    """Gates as they start change nothing."""
    gated = gate(program)
    net = build(program)
    for one, other in zip(run(net, fresh(program)), run(gated, fresh(program)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def check_states(program: Program, gates: Gates) -> None:
    """A gated network's state brings another copy to the same function."""
    gated, other = gate_and_set(program, gates), gate_if_learnable(build(program), program)
    assert other is not None
    other.load_state_dict(gated.state_dict())
    for one, two in zip(run(gated, fresh(program)), run(other, fresh(program)), strict=True):
        assert torch.equal(one, two)
    assert al.plan(gated) == al.plan(other)


def check_penalty(program: Program, gates: Gates) -> None:
    """The penalty's gradient is the one that small differences give."""
    gated = gate(program)
    generator = torch.Generator().manual_seed(gates.seed)
    kinds = (al.width_gates, al.depth_gates, al.branch_gates)
    numbers = [gate for find in kinds for gate in find(gated).values()]
    for number in numbers:
        drawn = torch.rand(number.shape, generator=generator, dtype=torch.float64)
        number.data.copy_(torch.where(drawn < 0.5, 0.8 * drawn, 0.2 + 0.8 * drawn))
    strengths = al.Strengths.from_width_cost(0.3, price=list(al.Price)[gates.seed % 3])
    check_gradient(gated, strengths, numbers)


def check_training(program: Program, gates: Gates) -> None:
    """Every gate has a part in what a network computes in training mode."""
    gated = gate_and_set(program, gates).train()
    if is_trainable(build(program).train(), fresh(program)):
        check_all_learn(gated, fresh(program))
    else:
        reject()


def is_trainable(net: nn.Module, x: Tensor) -> bool:
    """Return whether gradients can be had; not if a result that they need is changed in place."""
    try:
        sum_outputs(net, x).backward()
    except RuntimeError as error:
        if "inplace operation" not in str(error):
            raise
        return False
    return True


def sum_outputs(net: nn.Module, x: Tensor) -> Tensor:
    """Return the sum of all numbers that a network gives."""
    return torch.stack([out.sum() for out in pytree.tree_leaves(net(x.clone()))]).sum()


def check_all_learn(gated: nn.Module, x: Tensor) -> None:
    """Check that gradients of what a network gives lead to each of its gates as they act."""
    acting: list[Tensor] = []

    def cut(_: nn.Module, __: object, gates: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        acting[:] = [gate.detach().requires_grad_() for gate in gates]
        return tuple(acting)

    handle = find_holders(gated)[0].register_forward_hook(cut)
    total = sum_outputs(gated, x)
    handle.remove()
    gradients = torch.autograd.grad(total, acting, allow_unused=True)
    assert all(gradient is not None for gradient in gradients), "a gate does not learn"


def check_gradient(
    gated: nn.Module, strengths: al.Strengths, numbers: list[nn.Parameter], shift: float = 0.0
) -> None:
    """Check the penalty by `gradcheck`; with a shift, of a function whose gradient is off."""

    def price(*_: Tensor) -> Tensor:
        total = al.penalty(gated, strengths)
        return total + shift * sum(number.detach().sum() for number in numbers)

    assert torch.autograd.gradcheck(price, tuple(numbers), fast_mode=True)


def check_shrink(program: Program, gates: Gates) -> None:
    """A model that channels are cut out of computes in both modes what it did, and so compact."""
    gated = gate_and_set(program, gates)
    whole, x = copy.deepcopy(gated), fresh(program)
    al.shrink_(gated)
    check_same(whole, gated, x)
    assert al.plan(gated).after == al.plan(whole).after
    check_same(al.compact(whole), al.compact(gated), x)
    if is_steady(whole.train(), x):
        check_same(whole, gated.train(), x)


def is_steady(net: nn.Module, x: Tensor) -> bool:
    """Return whether a network runs in its mode, draws no random numbers, and gives numbers.

    Where a BatchNorm reads what is the same for all examples, behind a norm over one channel, what
    it gives in training is rounding and nothing else.
    """
    before = torch.get_rng_state(), random.getstate()
    try:
        outputs = run(copy.deepcopy(net), x)
    except ValueError:  # a BatchNorm over a single number
        return False
    if any(0 < float(out.abs().max()) < ROUNDING for out in outputs):
        return False
    return torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]


def check_device_costs(program: Program, gates: Gates) -> None:
    """The cost function of the gate optimiser says what the plan says, and what a channel costs."""
    gated = gate_and_set(program, gates)
    container = find_container(gated)
    assert container is not None
    cost = CostFunction(gated, container.learnable)
    flat = torch.cat([gate.detach().reshape(-1) for gate in container.gates()]).double()
    is_open = open_flat(flat[: container.n_width], container.rows, container.pairs).double()
    depths, branches = flat[container.n_width :].tensor_split([container.n_depth])
    is_gone = torch.cat([depths >= 0.5, branches < 0.5]).double()
    found = cost(is_open[None], is_gone[None])[0].tolist()
    after = al.plan(gated).after
    assert found == [after.parameters, after.multiply_adds]
