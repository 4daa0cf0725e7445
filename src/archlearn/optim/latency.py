"""`measure_latency`: how long each call of a network takes, as a function of what stays of it.

A budget on time needs a price for each channel before it is closed. So the network is compacted to
several random widths, each call is timed in all of them, and the time of a call is fitted by what
it costs whatever its size, for each number that it reads or writes, and for each multiply-add. The
sum over calls leads the way; a whole network, timed beside the original, says how far it is off.
Of several times the shortest counts: the others were lengthened by what else the machine did.
"""

import functools
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, distributed, fx, nn
from torch.utils._pytree import tree_leaves

from archlearn.errors import InputError, check_kind
from archlearn.gating.cost_counter import place_inputs
from archlearn.gating.gate_container import CONTAINER, GateContainer
from archlearn.module_utils import evaluating, tensors_of
from archlearn.optim.gate_limits import find_gated
from archlearn.surgery.compaction import apply_plan
from archlearn.surgery.decision import Decision, decide
from archlearn.surgery.planning import write_plan
from archlearn.tracing.block_hooks import without_marks
from archlearn.tracing.example_inputs import count_examples, values_for
from archlearn.tracing.fx_utils import compile_graph
from archlearn.tracing.transformer_blocks import count_flops
from archlearn.verification.conditions import Conditions, Mode, capture
from archlearn.verification.precision import cast_
from archlearn.verification.speed import time_in_turns, wait_for

_N_NETWORKS, _SECONDS, _LEAST_ROUNDS = 8, 2.0, 5
"""Networks of several widths in which calls are timed, for how long, and how often at least."""
_N_TURNS, _TURN = 20, 0.01
"""How often a whole network is timed beside the original, and for how many seconds."""
_LEAST_SHARE = 0.1
"""The least part of its channels that a group keeps there."""

_VERSION = 1
_REPLAYS = 10
"""How often the CUDA graph of a call is replayed each time it is timed."""
CallTime = tuple[float, float, float]
"""Nanoseconds: of a call whatever its size, of each number read or written, of a multiply-add."""


@dataclass(frozen=True, slots=True)
class LatencyTable:
    """How long each call of a network takes, under some conditions and for one batch.

    Attributes:
        conditions: Device, precision, memory layout and mode in which it was measured.
        batch_size: The examples of a batch: those that `add_gates` was given.
        calls: What each call takes, by its name in the graph that is followed.
    """

    conditions: Conditions
    batch_size: int
    calls: Mapping[str, CallTime]

    def to_json(self) -> str:
        """Return the table as JSON, for `from_json`."""
        return json.dumps({"archlearn_latency": _VERSION, **asdict(self)})

    @staticmethod
    def from_json(text: str | bytes) -> "LatencyTable":
        """Return the table that `to_json` wrote.

        Raises:
            InputError: If the text is no table of this version.
        """
        try:
            data: dict[str, Any] = json.loads(text)
            if data.pop("archlearn_latency") != _VERSION:
                raise ValueError(f"a version other than {_VERSION}")
            conditions = Conditions(**data.pop("conditions"))
            calls = {str(name): _read_times(times) for name, times in data.pop("calls").items()}
            return LatencyTable(conditions, int(data.pop("batch_size")), calls)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"this is no table of latencies ({error!r}); give what "
                "measure_latency(model).to_json() returned"
            ) from error


def _read_times(times: Sequence[float]) -> CallTime:
    call, number, multiply_add = map(float, times)
    return call, number, multiply_add


def measure_latency(
    model: nn.Module,
    device: str | torch.device | None = None,
    *,
    dtype: str | torch.dtype | None = None,
    memory_format: str | torch.memory_format | None = None,
    mode: Mode = "eager",
) -> LatencyTable:
    """Return how long each call of a gated model takes, for the example inputs; takes seconds.

    For `GateOptimizer(model, ..., budget={"latency": "50%"}, latency=table)`. Times are those of
    compact models in evaluation mode. What is left out is as the model is now.

    Args:
        model: A model from `add_gates`, or one that contains such a model.
        device: Where to measure.
        dtype: The precision of weights and inputs, such as `torch.bfloat16`.
        memory_format: Of tensors of four dimensions, such as `torch.channels_last`.
        mode: "eager", "graph" (a replayed CUDA graph, without the time of launches) or "compile"
            (calls are timed alone, and whole networks compiled).
    """
    owner = find_gated(model)
    container: GateContainer = getattr(owner, CONTAINER)
    conditions = Conditions.of(owner, device, dtype, memory_format, mode)
    networks = _make_networks(owner, container, conditions)
    runs = [_CallTimer(network, graph, conditions) for network, graph in networks]
    inputs = conditions.place_inputs(place_inputs(owner, container.channel_graph.inputs))
    with torch.no_grad(), evaluating(*(network for network, _ in networks)):
        start, n_rounds = time.perf_counter(), 0
        while time.perf_counter() < start + _SECONDS or n_rounds <= _LEAST_ROUNDS:
            for run, (_, graph) in zip(runs, networks, strict=True):
                run.run(*values_for(graph, inputs.copy()))
            n_rounds += 1
    # Surgery writes some calls anew, by other names; checks of whole networks see what they take.
    names = [node.name for node in container.channel_graph.graphs[0].nodes]
    timed = {name: [run for run in runs if name in run.seconds] for name in names}
    fitted = {name: _fit(timers, name) for name, timers in timed.items() if timers}
    table = LatencyTable(conditions, count_examples(container.channel_graph.inputs), fitted)
    return _agree(table)


def check_table(table: LatencyTable, container: GateContainer) -> None:
    """Raise if a table was measured on another network, or for another batch."""
    check_kind("latency", table, LatencyTable, "give what measure_latency(model) returns")
    n_examples = count_examples(container.channel_graph.inputs)
    calls = {node.name for node in container.channel_graph.graphs[0].nodes}
    strange = [name for name in table.calls if name not in calls]
    if strange or table.batch_size != n_examples:
        problem = (
            f"has no call {strange[0]!r}" if strange else f"was gated with {n_examples} examples"
        )
        raise InputError(
            f"latency is a table of {len(table.calls)} calls for a batch of {table.batch_size}, "
            f"but the model {problem}; give what measure_latency(model) returns for this model"
        )


class LatencyCheck:
    """Times the network that gates leave, beside the network they began with."""

    def __init__(self, owner: nn.Module, conditions: Conditions) -> None:
        self._owner, self._conditions = owner, conditions
        container: GateContainer = getattr(owner, CONTAINER)
        nothing = torch.zeros(len(container.channel_graph.root), dtype=torch.bool, device="cpu")
        whole = Decision(container.learnable, nothing, ())
        self._original = _make_network(owner, whole, conditions)

    def share(self) -> float:
        """Return the time of the network that gates leave now, as a part of the original's."""
        container: GateContainer = getattr(self._owner, CONTAINER)
        conditions = self._conditions
        inputs = conditions.place_inputs(place_inputs(self._owner, container.channel_graph.inputs))
        now = _make_network(self._owner, decide(self._owner), conditions)
        calls: list[Callable[[], object]] = []
        with torch.no_grad(), evaluating(self._original[0], now[0]):
            for network, graph in (self._original, now):
                values = values_for(graph, inputs)
                call = functools.partial(compile_graph(graph), network, *values)
                calls.append(conditions.prepare(call))
            times = time_in_turns(calls, torch.device(conditions.device), _N_TURNS, _TURN)
        before, after = map(min, times)
        return _agree(after / before)


def _make_networks(
    owner: nn.Module, container: GateContainer, conditions: Conditions
) -> list[tuple[nn.Module, fx.Graph]]:
    """Return compact models of random widths, the first as wide as it is."""
    groups = container.channel_graph.groups
    random = torch.Generator().manual_seed(0)
    nets: list[tuple[nn.Module, fx.Graph]] = []
    for number in range(_N_NETWORKS):
        gone = [
            torch.zeros(len(group.channels), dtype=torch.bool, device="cpu") for group in groups
        ]
        for group, is_gone in zip(groups, gone, strict=True) if number else ():
            size = len(is_gone)
            drawn = torch.rand((), generator=random, device="cpu").item()
            share = _LEAST_SHARE + (1 - _LEAST_SHARE) * drawn
            order = torch.randperm(size, generator=random, device="cpu")
            is_gone[order[max(group.least, round(size * share)) :]] = True
        dropped = container.channel_graph.find_dropped(gone)
        nets.append(_make_network(owner, Decision(container.learnable, dropped, ()), conditions))
    return nets


def _make_network(
    owner: nn.Module, decision: Decision, conditions: Conditions
) -> tuple[nn.Module, fx.Graph]:
    """Return the compact model of a decision, and the graph that it runs in evaluation."""
    with evaluating(owner):
        plan = write_plan(owner, decision, "parameters")
        small, graphs, _ = apply_plan(owner, decision, plan)
    cast_(small, {name: tensor.dtype for name, tensor in tensors_of(owner)})
    conditions.place_(small)
    return small, without_marks(graphs[0])


class _CallTimer(fx.Interpreter):
    """Runs a graph call by call, and takes down how long each takes and what it computes."""

    def __init__(self, net: nn.Module, graph: fx.Graph, conditions: Conditions) -> None:
        super().__init__(net, graph=graph)
        self.sizes: dict[str, tuple[float, float, float]] = {}
        self.seconds: dict[str, list[float]] = {}
        self._device = torch.device(conditions.device)
        self._captures = conditions.mode == "graph"

    def run_node(self, n: fx.Node) -> Any:
        """Run one node and time it; the first time, count what it computes instead."""
        if not n.op.startswith("call"):
            return super().run_node(n)
        if n.name not in self.sizes:
            return self._count(n)
        call = functools.partial(getattr(self, n.op), n.target, *self.fetch_args_kwargs_from_env(n))
        timed, n_times = call, 1
        if self._captures:
            timed, n_times = capture(call, self._device), _REPLAYS
        wait_for(self._device)
        start = time.perf_counter()
        out = timed()
        for _ in range(n_times - 1):
            timed()
        wait_for(self._device)
        seconds = (time.perf_counter() - start) / n_times
        self.seconds.setdefault(n.name, []).append(seconds)
        return out

    def _count(self, n: fx.Node) -> Any:
        touched = [self.env[node] for node in n.all_input_nodes]  # freed behind the call
        with count_flops() as counter:
            out = super().run_node(n)
        tensors = [leaf for leaf in tree_leaves([touched, out]) if isinstance(leaf, Tensor)]
        n_numbers = sum(tensor.numel() for tensor in tensors)
        self.sizes[n.name] = (1.0, float(n_numbers), counter.get_total_flops() / 2)
        return out


def _fit(runs: Sequence[_CallTimer], name: str) -> CallTime:
    """Return the three times of a call that explain what was measured best; none is negative."""
    sizes = torch.tensor([run.sizes[name] for run in runs], dtype=torch.float64, device="cpu")
    times = [min(run.seconds[name]) * 1e9 for run in runs]
    measured = torch.tensor(times, dtype=torch.float64, device="cpu")
    scale = sizes.amax(0).clamp(min=1.0)
    best, least = torch.zeros(3, dtype=torch.float64, device="cpu"), measured.square().sum()
    for n in (1, 2, 3):
        for chosen in itertools.combinations(range(3), n):
            columns = (sizes / scale)[:, chosen]
            fitted = torch.linalg.pinv(columns) @ measured
            error = (columns @ fitted - measured).square().sum()
            if bool((fitted >= 0).all()) and bool(error < least):
                best, least = torch.zeros_like(best), error
                best[list(chosen)] = fitted
    call, number, multiply_add = (best / scale).tolist()
    return call, number, multiply_add


def _agree(measured: Any) -> Any:
    """Return what the first process has measured: all must decide alike."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return measured
    objects = [measured]
    distributed.broadcast_object_list(objects)
    return objects[0]
