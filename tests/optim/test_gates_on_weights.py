"""Gates on weights learn in anybody's loop, by two lines: the model's forward is the user's own."""

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import archlearn as al

N_STEPS = 60
BUDGET = {"multiply_adds": "40%"}
Step = Callable[[nn.Module, Optimizer, Tensor, Tensor, "al.GateOptimizer | None"], None]


class Net(nn.Module):
    """A stem, two blocks with residual branches, and a head."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 12)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 12))
            for _ in range(2)
        )
        self.head = nn.Linear(12, 4)
        self.checkpoints = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        for block in self.blocks:
            run: Any = (
                partial(checkpoint, block, use_reentrant=False) if self.checkpoints else block
            )
            x = x + run(x)
        return self.head(x)


def make_net(dropout: float = 0.0) -> Net:
    torch.manual_seed(0)
    return Net(dropout)


def batch(step: int, size: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(size, 8, generator=generator)
    return x, (x[:, :4] * x[:, 4:]).argmax(1)


def adamw(parameters: Iterable[nn.Parameter], **options: Any) -> Optimizer:
    return torch.optim.AdamW(parameters, 1e-2, weight_decay=0.1, **options)


def plain_step(
    model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor, _: al.GateOptimizer | None
) -> None:
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


class Run:
    """A model with gates on weights, its optimiser, and what learns the gates."""

    def __init__(
        self,
        make: Callable[..., Any] = adamw,
        net: nn.Module | None = None,
        schedule: al.GateSchedule | None = None,
        given: Callable[[Any], Any] = lambda optimizer: optimizer,
        **options: Any,
    ) -> None:
        self.net = make_net() if net is None else net
        self.model: Any = al.add_gates(self.net, batch(0)[0], on="weights")
        self.optimizer = make(self.model.parameters(), **options)
        self.gates = al.GateOptimizer(
            self.model,
            given(self.optimizer),
            total_steps=N_STEPS,
            budget=BUDGET,
            schedule=schedule,
        )

    def train(self, step: Step = plain_step, start: int = 0, end: int = N_STEPS) -> "Run":
        for number in range(start, end):
            step(self.model, self.optimizer, *batch(number), self.gates)
        return self

    def widths(self) -> dict[str, int]:
        return {name: len(kept) for name, kept in al.plan(self.model).widths.items()}


def leaves(state: Any) -> list[Any]:
    return pytree.tree_leaves(state)


def same_state(first: Any, second: Any) -> bool:
    pairs = zip(leaves(first), leaves(second), strict=True)
    return all(
        torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs if a is not b
    )


def check_same_runs(first: Run, second: Run) -> None:
    assert same_state(first.model.state_dict(), second.model.state_dict())
    assert same_state(first.gates.state_dict(), second.gates.state_dict())


def means(run: Run) -> list[Tensor]:
    state = run.gates.state_dict()["state"].values()
    return [known["mean"].clone() for known in state]


def n_closed(run: Run) -> int:
    return int((~run.gates.state_dict()["on_weights"]["is_open"]).sum())


# ------------------------------------------------------------------------- what it does


def test_the_model_is_the_users_own_and_lands_on_the_budget() -> None:
    run = Run()
    assert type(run.model) is Net
    assert "forward" not in vars(run.model)
    assert list(run.model.state_dict()) == list(run.net.state_dict())
    assert [*al.weights(run.model)] == [*run.model.parameters()]
    run.train()
    assert run.gates.fits()
    small = al.compact(run.model)
    assert small.certificate is not None
    assert (
        al.count_costs(small, batch(0)[0]).multiply_adds
        <= 0.4 * al.count_costs(run.net, batch(0)[0]).multiply_adds + 1
    )
    x = batch(0)[0]
    torch.testing.assert_close(small(x), run.model(x))


def test_a_checkpoint_of_the_users_own_is_enough_to_compact() -> None:
    run = Run().train()
    other = al.add_gates(make_net(), batch(0)[0], on="weights")
    other.load_state_dict(run.model.state_dict())
    assert al.plan(other).widths == al.plan(run.model).widths
    assert al.plan(other).branches == al.plan(run.model).branches


def test_a_run_goes_on_bit_for_bit_where_it_was_saved() -> None:
    whole = Run().train()
    first = Run().train(end=N_STEPS // 2)
    assert n_closed(first) > 0
    saved = copy.deepcopy(
        [first.model.state_dict(), first.optimizer.state_dict(), first.gates.state_dict()]
    )
    for order in ((0, 1, 2), (2, 1, 0)):
        second = Run()
        parts = [second.model, second.optimizer, second.gates]
        for place in order:
            parts[place].load_state_dict(copy.deepcopy(saved[place]))
        second.train(start=N_STEPS // 2)
        check_same_runs(whole, second)


def test_a_state_of_gates_on_activations_is_refused() -> None:
    old = al.add_gates(make_net(), batch(0)[0], learn={"*": al.Learn.WIDTH})
    state = al.GateOptimizer(old, total_steps=N_STEPS).state_dict()
    with pytest.raises(al.InputError, match="of gates on activations, and the model's act on wei"):
        Run().gates.load_state_dict(state)


def test_states_come_back_with_a_channel_and_writers_do_not_decay() -> None:
    run = Run(schedule=al.GateSchedule(begin=0.98, end=0.99))
    run.train(end=10)
    gates = run.model.archlearn_gates.on_weights
    hidden = run.model.blocks[0]
    reader, writer, bias = hidden[3].weight, hidden[0].weight, hidden[0].bias
    group = next(
        g
        for g in gates.groups
        if any(s.parameter == "blocks.0.3.weight" and s.dim == 1 for s in g.readers)
    )
    before = [t.detach().clone() for t in (reader, writer, bias)]
    states = copy.deepcopy([run.optimizer.state[p] for p in (reader, writer)])
    is_open = torch.ones_like(gates.is_open)
    is_open[group.start + 3] = False
    gates.set_open_(is_open)
    run.train(start=10, end=30)
    assert not reader[:, 3].any()
    assert not run.optimizer.state[reader]["exp_avg"][:, 3].any()
    assert not torch.equal(reader[:, 4], before[0][:, 4])
    gates.set_open_(torch.ones_like(is_open))
    assert torch.equal(reader[:, 3], before[0][:, 3])
    assert torch.equal(writer[3], before[1][3])
    assert torch.equal(bias[3], before[2][3])
    for state, parameter, dim in zip(states, (reader, writer), (1, 0), strict=True):
        now = run.optimizer.state[parameter]
        kept = state["exp_avg_sq"].select(dim, 3)
        assert torch.equal(now["exp_avg_sq"].select(dim, 3), kept)
        assert not now["exp_avg"].select(dim, 3).any()


def test_frozen_readers_are_named_and_stay(caplog: pytest.LogCaptureFixture) -> None:
    net: Any = make_net()
    for parameter in net.blocks[0][3].parameters():
        parameter.requires_grad_(False)
    run = Run(net=net).train()
    assert "blocks.0.3" in str(al.inspect(run.model)) or "blocks.0.3.weight" in caplog.text
    assert run.widths()["blocks.0.0"] == 16
    assert run.widths()["blocks.1.0"] < 16


def test_a_reader_that_no_optimizer_steps_counts_as_frozen(
    caplog: pytest.LogCaptureFixture,
) -> None:
    net = make_net()
    model: Any = al.add_gates(net, batch(0)[0], on="weights")
    last = model.blocks[1][3]
    stepped = [p for p in model.parameters() if all(p is not q for q in last.parameters())]
    al.GateOptimizer(model, adamw(stepped), total_steps=N_STEPS, budget=BUDGET)
    assert "'blocks.1.0' is not learnt: blocks.1.3.weight" in caplog.text


def test_compact_refuses_closed_slices_that_something_else_has_written() -> None:
    run = Run().train()
    with torch.no_grad():
        run.model.head.weight += 0.1
        for block in run.model.blocks:
            block[3].weight += 0.1
    with pytest.raises(al.SurgeryError, match="is not zero where its gates are closed"):
        al.compact(run.model)


def test_another_gate_optimizer_takes_over_what_is_closed() -> None:
    run = Run().train(end=N_STEPS // 2)
    before = n_closed(run)
    assert before > 0
    run.gates = al.GateOptimizer(run.model, run.optimizer, total_steps=N_STEPS, budget=BUDGET)
    assert n_closed(run) == before
    run.train()
    assert run.gates.fits()
    al.compact(run.model)


# ------------------------------------------------------------------------- refusals


def test_lbfgs_is_refused() -> None:
    with pytest.raises(al.InputError, match="LBFGS, which evaluates its closure several times"):
        Run(lambda p: torch.optim.LBFGS(p))


class Twice(torch.optim.SGD):
    """Evaluates its closure twice a step."""

    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            closure()
        return super().step(closure)


def test_a_closure_that_is_evaluated_twice_is_refused() -> None:
    run = Run(lambda p: Twice(p, 0.1))

    def closure() -> Tensor:
        loss = F.cross_entropy(run.model(x), y)
        loss.backward()
        return loss

    x, y = batch(0)
    with pytest.raises(al.InputError, match="Twice evaluates its closure several times a step"):
        run.optimizer.step(closure)


def test_gates_on_weights_need_their_optimizer_and_others_take_none() -> None:
    model = al.add_gates(make_net(), batch(0)[0], on="weights")
    with pytest.raises(al.InputError, match=r"GateOptimizer\(model, optimizer, total_steps="):
        al.GateOptimizer(model, total_steps=N_STEPS)
    old = al.add_gates(make_net(), batch(0)[0])
    with pytest.raises(al.InputError, match="the model's gates act on activations"):
        al.GateOptimizer(old, adamw(al.weights(old)), total_steps=N_STEPS)


def test_shrinking_is_refused_by_name() -> None:
    run = Run().train()
    assert not run.gates.can_shrink()
    with pytest.raises(al.InputError, match="shrink_ does not cut models whose gates act on"):
        al.shrink_(run.model, run.optimizer, run.gates)


def test_penalties_have_no_gates_to_act_on() -> None:
    with pytest.raises(al.InputError, match="act on its weights, and are no parameters"):
        al.clip_gates_(Run().model)


# ------------------------------------------------------------------------- anybody's loop


def closure_step(
    model: nn.Module, optimizer: Any, x: Tensor, y: Tensor, _: al.GateOptimizer | None
) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)


def halves_step(
    model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor, _: al.GateOptimizer | None
) -> None:
    for part in (slice(0, 8), slice(8, 16)):
        (F.cross_entropy(model(x[part]), y[part]) / 2).backward()
    optimizer.step()
    optimizer.zero_grad()


def old_step(
    model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor, gates: al.GateOptimizer | None
) -> None:
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    assert gates is not None
    gates.step()
    optimizer.zero_grad()
    gates.zero_grad()


def test_a_closure_is_observed_behind_its_backward_pass() -> None:
    check_same_runs(Run().train(), Run().train(closure_step))


def test_a_loop_that_steps_the_gates_as_well_learns_the_same() -> None:
    check_same_runs(Run().train(), Run().train(old_step))


def test_accumulated_gradients_are_observed_once_a_step() -> None:
    whole, halves = Run().train(end=20), Run().train(halves_step, end=20)
    for one, other in zip(
        leaves(whole.gates.state_dict()["state"]),
        leaves(halves.gates.state_dict()["state"]),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-8)


class Scaled:
    """A step with a `GradScaler`, whose factor is a power of two: to the last bit the same."""

    def __init__(self) -> None:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def __call__(
        self, model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor, _: object
    ) -> None:
        self.scaler.scale(F.cross_entropy(model(x), y)).backward()
        self.scaler.step(optimizer)
        self.scaler.update()
        optimizer.zero_grad()


@pytest.mark.parametrize("fused", [False, True])
def test_a_grad_scaler_changes_nothing(fused: bool) -> None:
    plain, scaled = Run(fused=fused).train(), Run(fused=fused).train(Scaled())
    assert n_closed(plain) > 0
    check_same_runs(plain, scaled)


def test_a_step_whose_gradients_overflow_is_not_observed_by_fused_optimizers() -> None:
    run = Run(fused=True)
    step = Scaled()
    run.train(step, end=3)
    before = means(run)
    x, y = batch(3)
    step(run.model, run.optimizer, x * 1e38, y, None)
    assert same_state(before, means(run))
    run.train(step, start=4, end=5)
    assert not same_state(before, means(run))


def test_two_optimizers_learn_what_one_does() -> None:
    def sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
        return torch.optim.SGD(parameters, 0.05, momentum=0.9)

    def make_two(parameters: Iterable[nn.Parameter]) -> list[Optimizer]:
        every = list(parameters)
        return [sgd(every[:5]), sgd(every[5:])]

    def step(model: nn.Module, optimizers: Any, x: Tensor, y: Tensor, _: object) -> None:
        F.cross_entropy(model(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()

    one, two = Run(sgd).train(), Run(make_two).train(step)
    assert n_closed(one) > 0
    check_same_runs(one, two)


def test_closed_channels_do_not_count_in_the_norm_where_gates_observe_in_front_of_clipping() -> (
    None
):
    run = Run().train(end=N_STEPS // 2)
    assert n_closed(run) > 0
    F.cross_entropy(run.model(batch(99)[0]), batch(99)[1]).backward()
    whole = torch.nn.utils.get_total_norm([p.grad for p in run.model.parameters()])
    run.gates.observe()
    norm = nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)
    assert norm < whole
    before = means(run)
    run.optimizer.step()
    assert not same_state(before, means(run))
    other = Run().train(end=N_STEPS // 2)
    F.cross_entropy(other.model(batch(99)[0]), batch(99)[1]).backward()
    other.optimizer.step()
    assert same_state(means(run), means(other))  # as in front of clipping, and once


class Foreign:
    """An optimiser that is none of torch's and has no hooks."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.param_groups = [{"params": list(parameters)}]
        self.state: dict[nn.Parameter, Any] = {}

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            assert parameter.grad is not None
            parameter.sub_(0.05 * (parameter.grad + 0.01 * parameter))

    def zero_grad(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None


def test_a_foreign_optimizer_is_observed_and_followed_by_hand() -> None:
    def step(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor, gates: Any) -> None:
        F.cross_entropy(model(x), y).backward()
        gates.observe()
        optimizer.step()
        gates.step()
        optimizer.zero_grad()

    hooked = Run(lambda p: torch.optim.SGD(p, 0.05, weight_decay=0.01)).train()
    foreign = Run(Foreign).train(step)
    assert foreign.gates.fits()
    assert n_closed(foreign) > 0
    al.compact(foreign.model)
    assert foreign.widths() == hooked.widths()


def test_a_foreign_optimizer_that_was_not_observed_is_named() -> None:
    run = Run(Foreign)
    with pytest.raises(al.InputError, match=r"call gates.observe\(\) behind loss.backward\(\)"):
        run.gates.step()


def test_autocast_in_bfloat16_learns_and_compacts() -> None:
    def step(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor, _: object) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    run = Run().train(step)
    assert run.gates.fits()
    al.compact(run.model)


def test_activation_checkpointing_learns_the_same() -> None:
    plain, checkpointed = Run(), Run()
    checkpointed.model.checkpoints = True
    check_same_runs(plain.train(), checkpointed.train())


def test_forward_hooks_on_every_block_are_called() -> None:
    run, seen = Run(), list[nn.Module]()
    for block in run.model.blocks:
        block.register_forward_hook(lambda module, args, out: seen.append(module))
    check_same_runs(Run().train(), run.train())
    assert len(seen) == 2 * N_STEPS


def test_a_model_in_bfloat16_learns() -> None:
    net = make_net().bfloat16()
    model = al.add_gates(net, batch(0)[0].bfloat16(), on="weights")
    optimizer = adamw(model.parameters())
    gates = al.GateOptimizer(model, optimizer, total_steps=N_STEPS, budget=BUDGET)
    for number in range(N_STEPS):
        x, y = batch(number)
        plain_step(model, optimizer, x.bfloat16(), y, None)
    assert gates.fits()
    al.compact(model)


def test_decisions_compile_nothing_anew() -> None:
    n_compiled = 0

    def count(graph: Any, _: object) -> Any:
        nonlocal n_compiled
        n_compiled += 1
        return graph.forward

    run, eager = Run(), Run().train()
    compiled: Any = torch.compile(run.model, backend=count)
    for number in range(N_STEPS):
        plain_step(compiled, run.optimizer, *batch(number), None)
    assert n_closed(run) > 0
    assert n_compiled == 1
    assert run.widths() == eager.widths()


def test_a_copy_of_the_model_has_its_closed_channels_and_learns_on() -> None:
    run = Run().train(end=N_STEPS // 2)
    copied = copy.deepcopy(run.model)
    assert not any(
        isinstance(each, Optimizer) for each in leaves(vars(copied.archlearn_gates.hooks))
    )
    assert al.plan(copied).widths == al.plan(run.model).widths
    optimizer = adamw(copied.parameters())
    gates = al.GateOptimizer(copied, optimizer, total_steps=N_STEPS, budget=BUDGET)
    assert int((~gates.state_dict()["on_weights"]["is_open"]).sum()) == n_closed(run)
    for number in range(N_STEPS):
        plain_step(copied, optimizer, *batch(number), None)
    assert gates.fits()
    al.compact(copied)
