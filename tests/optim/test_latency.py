"""Budgets on latency: the table of measured times, and what the cost function makes of it."""

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import archlearn as al
from archlearn.optim.latency import LatencyCheck, LatencyTable
from archlearn.verification.conditions import Conditions

PARTS = {"calls": (1.0, 0.0, 0.0), "numbers": (0.0, 1.0, 0.0), "products": (0.0, 0.0, 1.0)}


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archlearn.optim.latency._SECONDS", 0.0)
    monkeypatch.setattr("archlearn.optim.latency._N_TURNS", 1)
    monkeypatch.setattr("archlearn.optim.latency._TURN", 0.0)


class Residual(nn.Module):
    """A stream, a branch of two convolutions, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.first = nn.Conv2d(8, 12, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(12)
        self.second = nn.Conv2d(12, 8, 1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = x + self.second(F.relu(self.norm(self.first(x))))
        return self.head(x.mean((2, 3)))


def make_cnn() -> nn.Module:
    block = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(
        *block, nn.Conv2d(16, 24, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24 * 4, 5)
    )


def gate(net: nn.Module) -> nn.Module:
    learn = {"*": al.Learn.WIDTH}
    return al.add_gates(net.eval(), torch.randn(2, 3, 8, 8), learn=learn)


class Counter(fx.Interpreter):
    """Counts calls, and the numbers that they read and write."""

    n_calls, n_numbers = 0, 0

    def run_node(self, n: fx.Node) -> Any:
        if not n.op.startswith("call"):
            return super().run_node(n)
        touched = [self.env[node] for node in n.all_input_nodes]
        touched.append(super().run_node(n))
        self.n_calls += 1
        self.n_numbers += sum(tensor.numel() for tensor in touched)
        return touched[-1]


@pytest.mark.parametrize("make", [make_cnn, Residual])
@pytest.mark.parametrize("closed", [False, True])
def test_the_latency_of_a_state_of_the_gates_is_that_of_the_compact_network_call_by_call(
    make: Callable[[], nn.Module], closed: bool
) -> None:
    gated = gate(make())
    table = al.measure_latency(gated)
    generator = torch.Generator().manual_seed(0)
    for values in al.width_gates(gated).values():
        values.data = (torch.rand(values.shape, generator=generator) < 0.6).to(values)
        values.data[0] = 1.0
    for branch in al.branch_gates(gated).values():
        branch.data.fill_(0.0 if closed else 1.0)
    small = al.compact(gated)
    x = torch.randn(2, 3, 8, 8)
    counter = Counter(fx.symbolic_trace(small))
    counter.run(x)
    found = {
        part: al.GateOptimizer(
            copy.deepcopy(gated),
            10,
            budget={"latency": "100%"},
            latency=replace(table, calls=dict.fromkeys(table.calls, times)),
        ).costs()["latency"]
        * 1e6
        for part, times in PARTS.items()
    }
    assert found["calls"] == pytest.approx(counter.n_calls)
    assert found["numbers"] == pytest.approx(counter.n_numbers)
    assert found["products"] == pytest.approx(al.count_costs(small, x).multiply_adds)


def test_a_table_says_where_and_for_what_batch_and_no_call_takes_less_than_nothing() -> None:
    table = al.measure_latency(gate(make_cnn()))
    assert (table.conditions.device, table.batch_size) == ("cpu", 2)
    assert len(table.calls) == 8
    assert all(min(times) >= 0 and max(times) > 0 for times in table.calls.values())


@pytest.mark.parametrize("is_right", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_network_lands_on_its_budget_also_if_the_table_is_wrong(
    monkeypatch: pytest.MonkeyPatch, is_right: bool
) -> None:
    """By a clock that counts operations, so that a network takes what it multiplies."""
    torch.manual_seed(0)
    counter = FlopCounterMode(display=False)
    monkeypatch.setattr(time, "perf_counter", lambda: 1e-9 * counter.get_total_flops())
    gated = gate(make_cnn())
    before = al.plan(gated).before.multiply_adds
    with counter:
        table = al.measure_latency(gated)
        if is_right:
            assert table.calls["_0"] == pytest.approx((0.0, 0.0, 2.0), abs=1e-6)
        else:
            table = replace(table, calls=dict.fromkeys(table.calls, (0.0, 1.0, 0.0)))
        gates = al.GateOptimizer(gated, 60, budget={"latency": "50%"}, latency=table)
        optimizer = torch.optim.SGD(al.weights(gated), lr=0.01)
        for _ in range(60):
            gated(torch.randn(4, 3, 8, 8)).square().mean().backward()
            optimizer.step()
            gates.step()
            gates.zero_grad()
            if gates.can_shrink():
                al.shrink_(gated, optimizer, gates)
    assert 0.45 < al.plan(gated).after.multiply_adds / before <= 0.55
    assert gates.fits()


def test_noise_of_the_clock_does_not_move_a_landed_network_over_its_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the clock of operations, 1 % slow whenever a whole network is timed beside another."""
    counter = FlopCounterMode(display=False)
    monkeypatch.setattr(time, "perf_counter", lambda: 1e-9 * counter.get_total_flops())
    share = LatencyCheck.share
    monkeypatch.setattr(LatencyCheck, "share", lambda self: 1.01 * share(self))
    net = nn.Sequential(nn.Linear(8, 400), nn.ReLU(), nn.Linear(400, 5))
    gated = al.add_gates(net, torch.randn(2, 8))
    with counter:
        gates = al.GateOptimizer(gated, 60, budget={"latency": "50%"})
        before = gates.costs()["latency"]
        gates.finish()
    assert gates.fits()
    assert 0.49 * before < gates.costs()["latency"] <= 0.5 * before


def test_what_cannot_be_reached_is_refused_before_training() -> None:
    with pytest.raises(al.InputError, match=r"ms latency cannot be reached: .* are left of"):
        al.GateOptimizer(gate(make_cnn()), 10, budget={"latency": "1%"})
    with pytest.raises(al.InputError, match="a number above 0, in milliseconds"):
        al.GateOptimizer(gate(make_cnn()), 10, budget={"latency": 0})


def test_a_table_of_another_network_or_batch_is_refused() -> None:
    gated = gate(make_cnn())
    table = al.measure_latency(gated)
    budget = {"latency": "50%"}
    with pytest.raises(al.InputError, match=r"the model has no call '_\d'; give what measure_lat"):
        al.GateOptimizer(gate(Residual()), 10, budget=budget, latency=table)
    with pytest.raises(al.InputError, match="batch of 8, but the model was gated with 2 examples"):
        al.GateOptimizer(gated, 10, budget=budget, latency=replace(table, batch_size=8))


def test_a_resumed_optimizer_goes_by_the_table_it_began_with() -> None:
    gated = gate(make_cnn())
    gates = al.GateOptimizer(gated, 10, budget={"latency": "100%"})
    assert gates.latency is not None
    slower = {name: tuple(3 * t for t in times) for name, times in gates.latency.calls.items()}
    other = al.GateOptimizer(
        copy.deepcopy(gated),
        10,
        budget={"latency": "100%"},
        latency=replace(gates.latency, calls=slower),
    )
    assert other.costs()["latency"] == pytest.approx(3 * gates.costs()["latency"])
    gates.load_state_dict(other.state_dict())
    assert gates.costs() == other.costs()
    assert gates.describe()["budget_path"] == other.describe()["budget_path"]


def test_calls_are_timed_in_the_ordinary_memory_layout_if_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A weight of one input channel lies in both layouts at once, and says which is meant."""
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten())
    net = net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    gated = al.add_gates(net, torch.randn(2, 1, 8, 8))
    seen: list[bool] = []
    call = fx.Interpreter.call_module

    def watch(self: fx.Interpreter, target: Any, args: Any, kwargs: Any) -> Any:
        out = call(self, target, args, kwargs)
        seen.append(out.is_contiguous())
        return out

    monkeypatch.setattr(fx.Interpreter, "call_module", watch)
    al.measure_latency(gated, memory_format="contiguous")
    assert seen
    assert all(seen)


def test_a_table_names_the_conditions_in_which_it_was_measured() -> None:
    gated = gate(make_cnn())
    used = {"dtype": torch.bfloat16, "memory_format": torch.channels_last}
    table = al.measure_latency(gated, **used)
    assert table.conditions == Conditions("cpu", "bfloat16", "channels_last", "eager")
    assert next(gated.parameters()).dtype is torch.float32


def test_a_model_in_channels_last_and_bfloat16_is_timed_so() -> None:
    gated = gate(make_cnn().to(memory_format=torch.channels_last))
    seen: list[tuple[torch.dtype, bool]] = []

    class Watched(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            if func is torch.conv2d:
                is_last = args[0].is_contiguous(memory_format=torch.channels_last)
                seen.append((args[0].dtype, is_last))
            return func(*args, **(kwargs or {}))

    with Watched():
        table = al.measure_latency(gated, dtype="bfloat16")
    assert table.conditions.memory_format == "channels_last"
    assert set(seen) == {(torch.bfloat16, True)}


def test_a_table_is_read_from_its_json_as_it_was() -> None:
    table = al.measure_latency(gate(make_cnn()))
    assert LatencyTable.from_json(table.to_json()) == table


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"archlearn_latency": 9}', "null"])
def test_what_is_no_table_of_latencies_is_refused(text: str) -> None:
    with pytest.raises(al.InputError, match="give what measure_latency"):
        LatencyTable.from_json(text)


@pytest.mark.parametrize(
    ("used", "said"),
    [
        ({"mode": "graph"}, 'give device="cuda"'),
        ({"mode": "fast"}, "choose one of eager, graph, compile"),
        ({"dtype": "int8"}, 'such as "bfloat16"'),
        ({"dtype": "half precision"}, 'such as "bfloat16"'),
        ({"memory_format": "nhwc"}, "choose one of contiguous, channels_last"),
    ],
)
def test_conditions_that_are_not_there_are_refused(used: dict[str, Any], said: str) -> None:
    gated = gate(make_cnn())
    with pytest.raises(al.InputError, match=said):
        al.measure_latency(gated, **used)
    with pytest.raises(al.InputError, match=said):
        al.compare_speed(make_cnn(), make_cnn(), torch.randn(2, 3, 8, 8), **used)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning")
def test_a_network_is_checked_as_it_is_used_when_it_is_compiled() -> None:
    gated = gate(make_cnn())
    table = al.measure_latency(gated, mode="compile")
    assert LatencyCheck(gated, table.conditions).share() > 0


def test_models_that_are_compared_are_left_untouched() -> None:
    wide, narrow = nn.Linear(8, 99), nn.Linear(8, 9)
    al.compare_speed(wide, narrow, torch.randn(3, 8), (1,), dtype="bfloat16")
    assert {wide.weight.dtype, narrow.weight.dtype} == {torch.float32}
