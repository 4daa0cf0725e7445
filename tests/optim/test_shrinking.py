"""Channels are cut out of a model in training: same function, same next update, same objects."""

import copy
import io
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch._dynamo.config as dynamo_config
import torch._dynamo.utils as dynamo_utils
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import archlearn as al
from archlearn.errors import InputError
from archlearn.gating.gate_container import CONTAINER
from archlearn.optim.shrinking import try_shrink_
from archlearn.tracing.generated_forward import forward_graphs


class Residual(nn.Module):
    """A stream with two branches behind BatchNorms, and a depthwise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.branches = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(8, 12, 1, bias=False),
                nn.BatchNorm2d(12),
                nn.ReLU(),
                nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False),
                nn.BatchNorm2d(12),
                nn.ReLU(),
                nn.Conv2d(12, 8, 1, bias=False),
                nn.BatchNorm2d(8),
            )
            for _ in range(2)
        )
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        for branch in self.branches:
            x = (x + branch(x)).relu()
        return self.last(x.mean((2, 3)))


class Viewed(nn.Module):
    """Channels flattened by a view that holds their number."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)
        self.norm = nn.LocalResponseNorm(3)
        self.fc1 = nn.Linear(6 * 9, 10)
        self.fc2 = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.max_pool2d(self.norm(self.conv(x).relu()), 2)
        return self.fc2(torch.nn.functional.gelu(self.fc1(x.view(-1, 54))))


class Response(nn.Module):
    """A mean over channels, which divides by as many as there were."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(1, 6, 3), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).relu().amax((2, 3))
        return self.last(x / (x.mean(1, keepdim=True) + 1))


def chain() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4)
    )


NETS: dict[str, Callable[[], nn.Module]] = {
    "chain": chain, "residual": Residual, "view": Viewed, "response": Response,
}  # fmt: skip

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "Nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
}


def make(kind: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a gated model in double precision, with some channels of each group closed."""
    torch.manual_seed(0)
    x, y = torch.randn(6, 1, 8, 8, dtype=torch.float64), torch.randint(4, (6,))
    model = al.add_gates(NETS[kind]().double(), x)
    close(model)
    return model, x, y


@torch.no_grad()
def close(model: nn.Module) -> None:
    for gate in al.width_gates(model).values():
        gate.fill_(0.7)
        gate[1 : len(gate) // 2] = 0.2


@torch.no_grad()
def close_last(model: nn.Module) -> None:
    for gate in al.width_gates(model).values():
        gate[-1] = 0.2


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    loss = cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def pair(kind: str, optimizer: str) -> tuple[Any, ...]:
    """Return a model after three steps and its twin, each with its optimiser."""
    model, x, y = make(kind)
    rule = OPTIMIZERS[optimizer](al.weights(model))
    step(model, rule, x, y)
    step(model, rule, x, y)
    loss = step(model, rule, x, y)
    twin = copy.deepcopy(model)
    twin_rule = OPTIMIZERS[optimizer](al.weights(twin))
    twin_rule.load_state_dict(copy.deepcopy(rule.state_dict()))
    return model, rule, twin, twin_rule, x, y, loss


def both_outputs(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Return what a model computes in training and in evaluation mode."""
    found = []
    for training in (True, False):
        each = copy.deepcopy(model).train(training)
        found.append(each(x).detach())
    return found


def gap(one: nn.Module, two: nn.Module, x: Tensor) -> float:
    pairs = zip(both_outputs(one, x), both_outputs(two, x), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


@pytest.mark.parametrize("kind", NETS)
def test_the_function_is_the_same_in_both_modes(kind: str) -> None:
    model, x, _ = make(kind)
    whole = copy.deepcopy(model)
    n_before = al.count_costs(model).parameters
    al.shrink_(model)
    assert al.count_costs(model).parameters < n_before
    assert gap(model, whole, x) < 1e-10
    small, other = al.compact(model), al.compact(whole)
    assert al.count_costs(small) == al.count_costs(other)
    assert gap(small, other, x) < 1e-10
    assert al.kept_channels(small) == al.kept_channels(other)
    assert al.read_architecture(model) == al.read_architecture(whole)
    assert type(small).__name__ == type(other).__name__


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [*(("residual", name) for name in OPTIMIZERS), ("chain", "Adam"), ("view", "momentum")],
)
def test_the_next_update_is_that_of_the_whole_model(kind: str, optimizer: str) -> None:
    model, rule, twin, twin_rule, x, y, loss = pair(kind, optimizer)
    al.shrink_(model, rule)
    for _ in range(2):
        step(model, rule, x, y)
        step(twin, twin_rule, x, y)
    assert gap(model, twin, x) < 1e-10
    assert loss.requires_grad  # its graph was alive all the time


@pytest.mark.parametrize("kind", NETS)
def test_gradients_that_are_accumulated_across_a_cut_count_whole(kind: str) -> None:
    model, x, y = make(kind)
    twin = copy.deepcopy(model)
    al.shrink_(twin)
    for network, cuts in ((model, True), (twin, False)):
        network.eval()  # no statistics of batches
        cross_entropy(network(x[:3]), y[:3]).backward()
        if cuts:
            al.shrink_(network)
        cross_entropy(network(x[3:]), y[3:]).backward()
    gradients = {name: p.grad for name, p in twin.named_parameters()}
    weights = set(map(id, al.weights(model)))
    found = {name: p.grad for name, p in model.named_parameters() if id(p) in weights}
    assert any(grad is not None and grad.any() for grad in found.values())
    for name, grad in found.items():
        torch.testing.assert_close(grad, gradients[name], rtol=0, atol=1e-12)


def test_an_update_without_the_state_is_another_one() -> None:
    """The control: momentum left behind is noticed."""
    model, rule, twin, twin_rule, x, y, _ = pair("residual", "momentum")
    al.shrink_(model, rule)
    rule.state.clear()
    step(model, rule, x, y)
    step(twin, twin_rule, x, y)
    assert gap(model, twin, x) > 1e-4


def test_the_smaller_model_is_a_gated_model_of_the_same_objects() -> None:
    model, x, y = make("residual")
    parts, parameters = dict(model.named_modules()), dict(model.named_parameters())
    names = list(al.width_gates(model))
    al.shrink_(model)
    assert dict(model.named_modules()).items() >= {
        (n, m) for n, m in parts.items() if n.split(".")[0] != "archlearn_gates"
    }
    assert dict(model.named_parameters()) == parameters
    assert list(al.width_gates(model)) == names
    assert al.plan(model).after.parameters <= al.plan(model).before.parameters
    assert str(al.inspect(model))
    gates: Any = al.GateOptimizer(model, 10, budget={"parameters": "60%"})
    optimizer = torch.optim.SGD(al.weights(model), lr=0.01)
    for _ in range(10):
        step(model, optimizer, x, y)
        gates.step()
        gates.zero_grad()
    costs = al.count_costs(al.compact(model)).parameters
    assert costs == gates.costs()["parameters"]


def test_a_model_may_shrink_again_and_again() -> None:
    model, x, y = make("view")
    rule = torch.optim.Adam(al.weights(model), lr=0.01)
    for _ in range(3):
        whole = copy.deepcopy(model)
        al.shrink_(model, rule)
        assert gap(model, whole, x) < 1e-10
        close(model)
        step(model, rule, x, y)
    assert al.certify(model, al.compact(model), x).difference_float64 < 1e-10
    assert all(len(gate) >= 2 for gate in al.width_gates(model).values())


def test_a_state_dict_can_be_loaded_into_a_model_cut_alike() -> None:
    model, x, y = make("view")
    rule = torch.optim.Adam(al.weights(model), lr=0.01)
    step(model, rule, x, y)
    al.shrink_(model, rule)
    step(model, rule, x, y)
    file = io.BytesIO()
    torch.save((model.state_dict(), rule.state_dict()), file)
    file.seek(0)
    state, rule_state = torch.load(file, weights_only=True)
    again, _, _ = make("view")
    rule_again = torch.optim.Adam(al.weights(again), lr=0.01)
    with pytest.raises(al.InputError, match="like=state_dict"):
        again.load_state_dict(state)
    with pytest.raises(al.InputError, match="on the model as add_gates makes it"):
        model.load_state_dict(again.state_dict())  # has channels that were cut out
    early = torch.optim.Adam(al.weights(again), lr=0.01)
    early.load_state_dict(rule_state)
    with pytest.raises(al.InputError, match="load states of optimisers behind shrink_"):
        al.shrink_(again, early, like=state)
    al.shrink_(again, rule_again, like=state)
    again.load_state_dict(state)
    rule_again.load_state_dict(rule_state)
    step(model, rule, x, y)
    step(again, rule_again, x, y)
    assert gap(model, again, x) == 0.0


def test_an_averaged_copy_follows_and_takes_the_models_gates() -> None:
    model, x, y = make("residual")
    rule = torch.optim.SGD(al.weights(model), lr=0.05)
    average = torch.optim.swa_utils.AveragedModel(model)
    step(model, rule, x, y)
    average.update_parameters(model)
    whole = copy.deepcopy(average)
    al.shrink_(model, rule, copies=[average])
    assert gap(average, whole, x) < 1e-10
    step(model, rule, x, y)
    average.update_parameters(model)
    assert al.count_costs(al.compact(average.module)) == al.count_costs(al.compact(model))
    for name, gate in al.width_gates(average.module).items():
        assert torch.equal(gate >= 0.5, al.width_gates(model)[name] >= 0.5)


def test_an_averaged_copy_takes_the_models_gates_where_nothing_is_cut_out() -> None:
    """At the end: averaged gates lag behind, and would drop other channels than the model's."""
    model, x, y = make("residual")
    rule = torch.optim.SGD(al.weights(model), lr=0.05)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    average.update_parameters(model)
    with torch.no_grad():
        for gate in al.width_gates(model).values():
            gate.fill_(0.7)
        for gate in al.branch_gates(model).values():
            gate.fill_(0.1)
    step(model, rule, x, y)
    average.update_parameters(model)
    assert al.plan(average.module).after != al.plan(model).after
    weights = [weight.clone() for weight in al.weights(average.module)]
    gates = al.GateOptimizer(model, 10)  # nothing is closed for good yet
    al.shrink_(model, rule, gates, copies=[average])
    assert al.plan(average.module) == al.plan(model)
    assert all(map(torch.equal, weights, al.weights(average.module)))
    al.compact(average.module)


def test_schedulers_and_scalers_need_nothing() -> None:
    model, x, y = make("chain")
    model, x = model.float(), x.float()
    rule = torch.optim.SGD(al.weights(model), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(rule, 10)
    scaler = torch.amp.GradScaler("cpu")
    for number in range(4):
        if number == 2:
            al.shrink_(model, rule)
        rule.zero_grad()
        scaler.scale(cross_entropy(model(x), y)).backward()
        scaler.step(rule)
        scaler.update()
        schedule.step()
    assert rule.param_groups[0]["lr"] == pytest.approx(0.05 * (1 + math.cos(0.4 * math.pi)))
    assert scaler.get_scale() == 2.0**16


def test_a_scaler_steps_gates_that_stand_still_behind_the_last_cut() -> None:
    model, x, y = make("chain")
    model, x = model.float(), x.float()
    rule = torch.optim.SGD(al.weights(model), lr=0.1)
    gates = al.GateOptimizer(model, 10, budget={"parameters": "50%"})
    scaler = torch.amp.GradScaler("cpu")
    for number in range(4):
        if number == 2:
            gates.finish()
            al.shrink_(model, rule, gates)
            assert not any(gate.requires_grad for gate in gates.param_groups[0]["params"])
        scaler.scale(cross_entropy(model(x), y)).backward()
        scaler.unscale_(rule)
        for each in (rule, gates):
            scaler.step(each)
            each.zero_grad()
        scaler.update()
    assert gates.param_groups[0]["step"] == 4


def test_a_hook_on_a_layer_since_gates_were_added_does_not_stop_a_cut() -> None:
    model, x, _ = make("chain")
    fired: list[int] = []
    layer = next(m for m in model.modules() if isinstance(m, nn.Linear))
    layer.register_forward_hook(lambda *_: fired.append(1))
    whole = copy.deepcopy(model)
    n_weights = layer.weight.numel()
    al.shrink_(model)
    assert layer.weight.numel() < n_weights
    fired.clear()
    assert gap(model, whole, x) < 1e-10
    assert fired


@pytest.mark.parametrize("kind", ["Adafactor", "Muon"])
def test_state_that_cannot_be_sliced_is_refused_and_nothing_is_changed(kind: str) -> None:
    model, x, y = make("chain")
    weights = [p for p in al.weights(model) if p.dim() == 2 or kind == "Adafactor"]
    rest = [p for p in al.weights(model) if p.dim() != 2]
    rule = getattr(torch.optim, kind)(weights, lr=0.01)
    others = [] if kind == "Adafactor" else [torch.optim.SGD(rest, lr=0.1)]
    step(model, rule, x, y)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(al.InputError, match=f"cannot shrink with {kind}"):
        al.shrink_(model, rule, *others)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("kind", ["LAMB", "FusedLamb", "Lars", "NvNovoGrad", "Prodigy", "LBFGSNew"])
def test_an_optimizer_that_mixes_numbers_is_refused_by_its_name(kind: str) -> None:
    model, x, y = make("chain")
    mixing = type(kind, (torch.optim.SGD,), {})
    rule = type("Own", (mixing,), {})(al.weights(model), lr=0.1)
    step(model, rule, x, y)
    with pytest.raises(al.InputError, match="cannot shrink with Own: its update of a number depe"):
        al.shrink_(model, rule)


def test_what_cannot_shrink_is_told_once_and_trains_on(caplog: pytest.LogCaptureFixture) -> None:
    """As `archlearn learn` and the callbacks of trainers do it."""
    model, x, y = make("chain")
    rule = torch.optim.Adafactor(al.weights(model), lr=0.01)
    schedule = al.GateSchedule(patience=3)
    gates: Any = al.GateOptimizer(model, 60, budget={"multiply_adds": "20%"}, schedule=schedule)
    for _ in range(60):
        step(model, rule, x, y)
        gates.step()
        gates.zero_grad()
        assert not try_shrink_(model, rule, gates=gates)
    assert caplog.text.count("cannot shrink with Adafactor") == 1
    assert gates.fits()


def test_an_optimizer_that_was_forgotten_is_named() -> None:
    model, x, y = make("chain")
    gates = al.GateOptimizer(model, 10)
    step(model, torch.optim.SGD(model.parameters(), lr=0.0), x, y)
    gates.finish()
    with pytest.raises(al.InputError, match=r"'1.weight' would lose channels, but is in none"):
        al.shrink_(model, gates)
    with pytest.raises(al.InputError, match="schedulers and scalers need nothing"):
        al.shrink_(model, object())


def test_channels_that_leave_a_constant_or_live_in_computed_weights_wait() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(8, 6), nn.ReLU(), nn.BatchNorm1d(6), nn.Linear(6, 6), nn.ReLU(),
        torch.nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)), nn.ReLU(), nn.Linear(6, 2),
    ).double()  # fmt: skip
    x = torch.randn(5, 8, dtype=torch.float64)
    model = al.add_gates(net, x)
    close(model)
    whole = copy.deepcopy(model)
    al.shrink_(model)
    assert gap(model, whole, x) < 1e-10
    assert {n: len(g) for n, g in al.width_gates(model).items()} == {"0": 6, "3": 6, "5": 6}


def learn(*, shrinks: bool) -> tuple[nn.Module, al.GateOptimizer, list[float], int]:
    """Return a model that learnt to a budget, its gates, its losses, and how often it shrank."""
    torch.manual_seed(0)
    x, y = torch.randn(64, 1, 8, 8, dtype=torch.float64), torch.randint(4, (64,))
    model = al.add_gates(Residual().double(), x[:2])
    schedule = al.GateSchedule(patience=5)
    gates: Any = al.GateOptimizer(model, 120, budget={"multiply_adds": "40%"}, schedule=schedule)
    rule = torch.optim.SGD(al.weights(model), lr=0.05, momentum=0.9)
    losses, n_shrinks = [], 0
    for number in range(120):
        part = slice(number % 4 * 16, number % 4 * 16 + 16)
        losses.append(step(model, rule, x[part], y[part]).item())
        gates.step()
        gates.zero_grad()
        if gates.can_shrink() and shrinks:
            al.shrink_(model, rule, gates)
            n_shrinks += 1
    return model, gates, losses, n_shrinks


def test_learning_to_a_budget_is_the_same_with_and_without_shrinking() -> None:
    """What is closed for good is decided by the gates, whether it is cut out or not."""
    model, gates, losses, n_shrinks = learn(shrinks=True)
    whole, _, other_losses, _ = learn(shrinks=False)
    assert losses == pytest.approx(other_losses, rel=1e-8)
    assert 2 <= n_shrinks <= 6
    small, other = al.compact(model), al.compact(whole)
    assert al.count_costs(small) == al.count_costs(other)
    assert al.count_costs(model).multiply_adds < 0.5 * al.count_costs(whole).multiply_adds
    assert gates.costs() == {
        "parameters": al.count_costs(small).parameters,
        "multiply_adds": al.count_costs(small).multiply_adds / 2,
    }
    assert gates.fits()


def test_gates_and_their_optimizer_resume_behind_a_cut() -> None:
    model, x, y = make("residual")
    start = copy.deepcopy(model)
    rules: list[tuple[Any, Any]] = []
    for each in (model, start):
        schedule = al.GateSchedule(patience=5)
        gates = al.GateOptimizer(each, 60, budget={"multiply_adds": "40%"}, schedule=schedule)
        rules.append((torch.optim.Adam(al.weights(each), lr=0.01), gates))

    def go(each: nn.Module, rule: Any, gates: Any, n: int) -> float:
        loss = torch.zeros(())
        for _ in range(n):
            loss = step(each, rule, x, y)
            gates.step()
            gates.zero_grad()
            if gates.can_shrink():
                al.shrink_(each, rule, gates)
        return loss.item()

    go(model, *rules[0], 45)
    state = copy.deepcopy((model.state_dict(), *(rule.state_dict() for rule in rules[0])))
    with pytest.raises(InputError, match=r"the state is of \d+ gates where the model has \d+"):
        rules[1][1].load_state_dict(state[2])
    with pytest.raises(InputError, match="a GateOptimizer learns the gates of another model"):
        al.shrink_(start, rules[1][0], rules[0][1])
    al.shrink_(start, *rules[1], like=state[0])
    start.load_state_dict(state[0])
    for rule, saved in zip(rules[1], state[1:], strict=True):
        rule.load_state_dict(saved)
    assert go(model, *rules[0], 15) == go(start, *rules[1], 15)
    assert al.plan(model) == al.plan(start)


@pytest.mark.parametrize("assign", [False, True])
def test_a_shrunk_model_that_was_on_the_meta_device_takes_its_state(assign: bool) -> None:
    model, x, _ = make("residual")
    close(model)
    al.shrink_(model)
    empty = copy.deepcopy(model).to("meta")
    if not assign:
        empty.to_empty(device="cpu")
    empty.load_state_dict(model.state_dict(), assign=assign)
    torch.testing.assert_close(empty.eval()(x), model.eval()(x), rtol=0, atol=0)
    assert al.plan(empty) == al.plan(model)


def test_a_compiled_model_goes_on_behind_all_cuts_of_a_run_and_validates_after_each() -> None:
    """Without coming to the limit at which torch.compile gives up."""
    model, x, y = make("chain")
    rule = torch.optim.SGD(al.weights(model), lr=0.1)
    whole = copy.deepcopy(model)
    whole_rule = torch.optim.SGD(al.weights(whole), lr=0.1)
    compiled: Any = torch.compile(model, backend="eager")
    n_cuts = al.GateSchedule().cuts + 1
    with dynamo_config.patch(fail_on_recompile_limit_hit=True):
        for number in range(n_cuts + 1):
            if number:
                al.shrink_(compiled, rule)
            step(compiled.train(), rule, x, y)
            with torch.no_grad():
                compiled.eval()(x)
            if number < 2:
                step(whole, whole_rule, x, y)
                assert gap(model, whole, x) < 1e-10
            if number:
                close_last(model)
    assert int(model.state_dict()["archlearn_gates.shrinks"]) == n_cuts


def test_a_forward_that_was_wrapped_runs_the_smaller_network() -> None:
    """As Accelerate does for mixed precision: what it wrapped belongs to the class from before."""
    model, x, _ = make("view")
    whole, inner = copy.deepcopy(model), model.forward
    calls: list[int] = []

    def forward(*args: Any) -> Tensor:
        calls.append(len(args))
        return inner(*args)

    al.shrink_(model)
    vars(model)["forward"] = forward
    torch.testing.assert_close(model(x), whole(x), rtol=0, atol=1e-10)
    assert calls == [1]


def close_branch(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Any, Any]:
    """Return the optimisers of a model whose first branch has closed for good."""
    with torch.no_grad():
        for gate in al.width_gates(model).values():
            gate.fill_(0.7)
    gates: Any = al.GateOptimizer(model, 100, budget={"multiply_adds": "100%"})
    rule = torch.optim.SGD(al.weights(model), lr=0.01, momentum=0.9, weight_decay=0.01)
    step(model, rule, x, y)
    gates.step()
    with torch.no_grad():
        al.branch_gates(model)["branches.0"].fill_(0.0)
    gates.accept_gates()
    gates.param_groups[0]["frozen"] = True
    return rule, gates


def test_a_branch_that_is_closed_for_good_is_left_out_whole() -> None:
    model, x, y = make("residual")
    rule, gates = close_branch(model, x, y)
    whole, average = copy.deepcopy(model), torch.optim.swa_utils.AveragedModel(model)
    whole_rule = torch.optim.SGD(al.weights(whole), lr=0.01, momentum=0.9, weight_decay=0.01)
    whole_rule.load_state_dict(copy.deepcopy(rule.state_dict()))
    al.shrink_(model, rule, gates, copies=[average])
    calls: list[str] = []
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_, name=name: calls.append(name))
    model(x)
    for module in model.modules():
        module._forward_hooks.clear()
    whole(x)
    for _ in range(3):
        step(model, rule, x, y)
        step(whole, whole_rule, x, y)
    assert any(name.startswith("branches.1.") for name in calls)
    assert not any(name.startswith("branches.0.") for name in calls)
    assert gap(model, whole, x) < 1e-10
    assert not any(weight.requires_grad for weight in model.branches[0].parameters())
    small, other = al.compact(model), al.compact(whole)
    assert al.count_costs(small) == al.count_costs(other)
    assert gap(small, other, x) < 1e-10
    assert al.read_architecture(model) == al.read_architecture(whole)
    assert al.plan(average.module) == al.plan(model)
    computed = gates.describe()["trained"]["multiply_adds"]
    assert computed == al.count_costs(small).multiply_adds / len(x)
    widths = {name: len(gate) for name, gate in al.width_gates(model).items()}
    assert [n for name, n in widths.items() if name.startswith("branches.0")] == [2]
    assert [n for name, n in widths.items() if name.startswith("branches.1")] == [12]


def test_a_branch_that_was_left_out_stays_so_behind_cuts_checkpoints_and_other_gates() -> None:
    model, x, y = make("residual")
    start = copy.deepcopy(model)
    rule, gates = close_branch(model, x, y)
    al.shrink_(model, rule, gates)
    al.shrink_(start, like=model.state_dict())
    start.load_state_dict(model.state_dict())
    assert gap(model, start, x) == 0.0
    with torch.no_grad():
        al.branch_gates(model)["branches.0"].fill_(0.9)  # it acts no more
    assert al.plan(model).branches == al.plan(start).branches == ("branches.0",)
    assert gap(al.compact(model), start, x) < 1e-10
    new: Any = al.GateOptimizer(model, 10, budget={"parameters": "40%"})
    for _ in range(10):
        step(model, rule, x, y)
        new.step()
        new.zero_grad()
    al.shrink_(model, rule, new)
    assert "branches.0" in al.plan(model).branches
    assert al.compact(model).certificate.difference_float64 < 1e-10
    assert new.costs()["parameters"] == al.count_costs(al.compact(model)).parameters


def test_dropout_is_not_compared_though_another_thread_is_about() -> None:
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2))
    model = al.add_gates(net, torch.randn(4, 5))
    with torch.no_grad():
        al.width_gates(model)["0"][:3] = 0.1
    ended = threading.Event()
    other = threading.Thread(target=ended.wait)
    other.start()
    try:
        al.shrink_(model)
    finally:
        ended.set()
        other.join()
    assert model[0].out_features == 5


class Watching(nn.Module):
    """Takes down whether cuDNN tries convolutions out while it is called."""

    seen: ClassVar[list[bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(torch.backends.cudnn.benchmark)
        return x


def test_a_cut_tries_no_convolutions_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs each of them a few times, in double precision: on a GPU trials took seconds."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    net = nn.Sequential(nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 4), Watching())
    model = al.add_gates(net, torch.randn(2, 64), leaves=[Watching])
    close(model)
    Watching.seen.clear()
    al.shrink_(model)
    assert Watching.seen
    assert not any(Watching.seen)
    assert torch.backends.cudnn.benchmark


def test_gates_that_stand_still_cost_no_gradients_behind_the_last_cut() -> None:
    model, x, y = make("chain")
    optimizer = torch.optim.SGD(al.weights(model), lr=0.1)
    gates = al.GateOptimizer(model, 10, budget={"parameters": "50%"})
    gates.finish()
    assert gates.can_shrink()
    al.shrink_(model, optimizer, gates)
    cross_entropy(model(x), y).backward()
    assert all(gate.grad is None for gate in al.width_gates(model).values())
    assert all(weight.grad is not None for weight in al.weights(model))
    gates.step()


def test_compiled_programs_are_forgotten_only_where_there_are_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU torch imports its compiler to forget them, which takes seconds."""
    forgotten: list[int] = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: forgotten.append(1))
    dynamo_utils.counters.clear()
    model, x, _ = make("chain")
    al.shrink_(model)
    assert not forgotten
    torch.compile(model, backend="eager")(x)
    close_last(model)
    al.shrink_(model)
    assert forgotten == [1]


def forward_calls(model: nn.Module) -> set[str]:
    nodes = [node for graph in forward_graphs(model) for node in graph.nodes]
    return {getattr(node.target, "__name__", str(node.target)) for node in nodes}


@pytest.mark.parametrize("kind", ["chain", "residual"])
def test_gates_that_stand_still_are_not_computed_behind_the_last_cut(kind: str) -> None:
    model, x, y = make(kind)
    start = copy.deepcopy(model)
    rule = torch.optim.SGD(al.weights(model), lr=0.1)
    gates = al.GateOptimizer(model, 10, budget={"parameters": "50%"})
    for _ in range(10):
        step(model, rule, x, y)
        gates.step()
        gates.zero_grad()
    whole = copy.deepcopy(model)
    al.shrink_(model, rule, gates)
    assert CONTAINER in forward_calls(whole)
    assert not forward_calls(model) & {CONTAINER, "gate_channels", "call_gated", "gate_branch"}
    assert gap(model, whole, x) < 1e-12
    al.shrink_(start, like=model.state_dict())
    start.load_state_dict(model.state_dict())
    assert forward_calls(start) == forward_calls(model)
    assert gap(model, start, x) == 0.0
    assert gap(al.compact(model), model, x) < 1e-12


def test_a_gate_that_is_moved_behind_the_last_cut_is_told() -> None:
    model, x, _ = make("chain")
    rule = torch.optim.SGD(al.weights(model), lr=0.1)
    gates = al.GateOptimizer(model, 10, budget={"parameters": "60%"})
    gates.finish()
    al.shrink_(model, rule, gates)
    with torch.no_grad():
        next(iter(al.width_gates(model).values()))[0] = 0.0
    for call in (al.compact, al.shrink_):
        with pytest.raises(InputError, match="was moved behind the last cut"):
            call(model)
    before = model(x)
    al.GateOptimizer(model, 10, budget={"parameters": "50%"})
    assert gap(al.compact(model), model, x) < 1e-12
    assert not torch.equal(model(x), before)


def test_buffers_of_a_copy_are_averaged_where_a_branch_is_left_out() -> None:
    model, x, y = make("residual")
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    rule, gates = close_branch(model, x, y)
    al.shrink_(model, rule, gates, copies=[average])
    for _ in range(2):
        average.update_parameters(model)
    assert al.plan(average.module).branches == ("branches.0",)


@pytest.mark.parametrize("is_made_first", [True, False])
def test_gates_stand_still_in_a_run_that_resumes_behind_the_last_cut(is_made_first: bool) -> None:
    """Whether the optimiser of gates is made before their checkpoint is loaded or after that."""
    model, x, y = make("residual")
    start = copy.deepcopy(model)
    rule, gates = close_branch(model, x, y)
    al.shrink_(model, rule, gates)
    state = model.state_dict()
    rule = torch.optim.SGD(al.weights(start), lr=0.01)
    others = al.GateOptimizer(start, 100, budget={"multiply_adds": "100%"})
    al.shrink_(start, rule, others, like=state)
    start.load_state_dict(state)
    if not is_made_first:
        others = al.GateOptimizer(start, 100, budget={"multiply_adds": "100%"})
    others.load_state_dict(copy.deepcopy(gates.state_dict()))
    assert forward_calls(start) == forward_calls(model)
    assert all(torch.equal(value, state[key]) for key, value in start.state_dict().items())
    assert not any(gate.requires_grad for gate in others.param_groups[0]["params"])


def test_a_cut_behind_which_no_gate_can_stand_still_is_not_made_again() -> None:
    """A BatchNorm follows the gates, so that closed channels are constants behind it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 2))
    model: Any = al.add_gates(net, torch.randn(4, 5), learn={"0": al.Learn.WIDTH})
    gates = al.GateOptimizer(model, 10, budget={"parameters": "50%"})
    gates.finish()
    for _ in range(2):
        al.shrink_(model, gates)
        assert model.archlearn_gates.n_shrinks == 1


def test_an_averaged_copy_follows_where_another_gate_optimizer_wakes_gates() -> None:
    model, x, y = make("chain")
    average = torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda _, new, n: new)
    rule = torch.optim.SGD(al.weights(model), lr=0.1)
    gates = al.GateOptimizer(model, 10, budget={"parameters": "60%"})
    gates.finish()
    al.shrink_(model, rule, gates, copies=[average])
    gates = al.GateOptimizer(model, 10, budget={"parameters": "60%"})
    step(model, rule, x, y)
    average.update_parameters(model)
    with torch.no_grad():
        next(iter(al.width_gates(model).values()))[0] = 0.0
    gates.accept_gates()
    al.shrink_(model, rule, gates, copies=[average])
    average.update_parameters(model)
    assert gap(average.module, model, x) < 1e-12


def test_a_compact_file_is_the_same_however_many_cuts_there_were(tmp_path: Path) -> None:
    model, _, _ = make("residual")
    with torch.no_grad():
        for gate in al.width_gates(model).values():
            gate.fill_(0.7)
    start = copy.deepcopy(model)
    for gate in reversed(al.width_gates(model).values()):
        with torch.no_grad():
            gate[-1] = 0.2
        al.shrink_(model)
    al.shrink_(start, like=model.state_dict())
    start.load_state_dict(model.state_dict())
    for name, each in (("a", model), ("b", start)):
        al.save(al.compact(each), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_two_channels_that_a_pixel_shuffle_makes_are_still_learnt_behind_a_cut() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 16, 1), nn.PixelShuffle(2), nn.ReLU(), nn.Conv2d(4, 3, 1)
    )  # fmt: skip
    images = torch.randn(2, 2, 4, 4)
    model = al.add_gates(net, images)
    with torch.no_grad():
        al.width_gates(model)["0"][1:] = 0.0
    before = model(images)
    al.shrink_(model, torch.optim.SGD(al.weights(model), lr=0.1))
    assert len(al.width_gates(model)["0"]) == 2
    torch.testing.assert_close(model(images), before)


@pytest.mark.parametrize("has_buffers", [False, True])
def test_an_average_of_ones_own_loop_is_compacted(has_buffers: bool) -> None:
    model, x, y = make("residual")
    optimizer = torch.optim.AdamW(al.weights(model), lr=1e-3)
    gates = al.GateOptimizer(model, total_steps=40, budget={"multiply_adds": "60%"})
    average = torch.optim.swa_utils.AveragedModel(
        model,
        multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9),
        use_buffers=has_buffers,
    )
    n_cuts = 0
    for _ in range(40):
        step(model, optimizer, x, y)
        gates.step()
        average.update_parameters(model)
        if gates.can_shrink():
            al.shrink_(model, optimizer, gates, copies=[average])
            n_cuts += 1
    al.shrink_(model, optimizer, gates, copies=[average])
    assert n_cuts > 0
    small = al.compact(average)
    assert al.count_costs(small) == al.count_costs(al.compact(model))
    assert gap(small, average, x) < 1e-10


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
def test_an_averaged_copy_may_lie_on_another_device() -> None:
    model, x, y = (each.to("cuda") for each in make("residual"))
    optimizer = torch.optim.SGD(al.weights(model), lr=0.05)
    average = torch.optim.swa_utils.AveragedModel(model, device=torch.device("cpu"))
    step(model, optimizer, x, y)
    al.shrink_(model, optimizer, copies=[average])
    average.update_parameters(model)
    tensors = [*average.module.named_parameters(), *average.module.named_buffers()]
    assert all(tensor.device.type == "cpu" for _, tensor in tensors)
    assert al.count_costs(al.compact(average)) == al.count_costs(al.compact(model))
