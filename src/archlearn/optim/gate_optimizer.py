"""`GateOptimizer`: learn the gates of a model under a budget, in anybody's training loop.

The paper moves gates by SGD against a fixed price. On deep networks the noise of a gate's gradient
is tens of times its price, and gates close at random until the network is dead. Here a gate is
judged by the mean square of its gradient, which tells how much the loss depends on its channel, for
what the channel costs; and the price is the one at which the network fits a budget that falls from
what the network costs to what was asked for. `docs/how-gates-learn.md` has the reasons, the
references and the ablation.
"""

import itertools
import logging
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from archlearn.costs import COSTS, LATENCY, unit_of
from archlearn.errors import InputError, check_kind
from archlearn.gating.attach import let_stand_
from archlearn.gating.gate_container import CONTAINER, LINEAR, STANDING, GateContainer
from archlearn.nn.functional import THRESHOLD, join_gates, open_flat, split_gates
from archlearn.optim.cost_function import CostFunction, flip_each, name_costs
from archlearn.optim.data_parallel import renew_wrappers_
from archlearn.optim.depth_path import PATH, SLOPE, Merge, choose_layers, plan_merges, slope_at
from archlearn.optim.gate_limits import (
    Budget,
    check_arguments,
    check_reachable,
    count_units,
    find_alike,
    find_gated,
    find_inside,
    find_protected,
    least_widths,
    read_budget,
    warn_of_no_limit,
    warn_of_none_alike,
    width_steps,
)
from archlearn.optim.gate_ranking import (
    LAST_RESORT,
    Holds,
    fill_up,
    find_savings,
    fit,
    rank_gates,
    use_room,
)
from archlearn.optim.gate_schedule import GateSchedule
from archlearn.optim.gate_statistics import (
    count_closed_,
    estimate_earnings,
    find_closed_for_good,
    find_growing,
    note_growth_,
    observe_,
    sort_heads_,
)
from archlearn.optim.landing import exchange
from archlearn.optim.latency import LatencyCheck, LatencyTable, check_table, measure_latency
from archlearn.optim.neuron_counts import NeuronCounts
from archlearn.optim.weight_learning import connect
from archlearn.surgery.planning import find_sliceable
from archlearn.tracing.example_inputs import count_examples

_LEAST_GAIN = 0.88
"""The part of its cost that must be left for a cut to pay."""
_LOOKS = 40
"""How often it is looked whether a cut pays."""
_GPU_MULTIPLE = 8
"""What widths are cut to multiples of on a GPU: tensor cores are slower at others than at more."""
_FALLEN, _NEAR, _LAST_CHECKS, _MOST_OFF = 0.9, 0.02, 4, 1.25
"""A network is timed whenever its latency has fallen to this part, and at the end until the table
is as near as this, at most so often. A single time is not believed further than the last."""
_WEIGHTS_MOVE_BY = 20
"""The step by which an optimiser has moved the weights, whatever accumulates or skips steps."""
_ON_WEIGHTS = "on_weights"
_log = logging.getLogger(__name__)


class GateOptimizer(Optimizer):
    """Learns gates beside any optimiser of the weights, from the task's loss alone.

    Call `step()` and `zero_grad()` after each backward pass, as for any optimiser. Give the other
    optimiser `archlearn.weights(model)`. Learning rates and their schedulers mean nothing here.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer] | int | None = None,
        total_steps: int | None = None,
        *,
        budget: Budget | None = None,
        width_cost: float | None = None,
        protect: Iterable[str] = (),
        least_width: int = 1,
        largest_cut: float = 1.0,
        multiple_of: int = 1,
        equal_blocks: bool = False,
        schedule: GateSchedule | None = None,
        every: int = 1,
        latency: LatencyTable | None = None,
    ) -> None:
        """Prepare to learn the gates of `model`.

        Args:
            model: A model from `add_gates`, or one that contains such a model.
            optimizer: For gates on weights, the optimiser of the weights, or all of them: gates act
                by its hooks, and the loop needs neither `step()` nor `zero_grad()` of this one.
            total_steps: Steps of the whole run.
            budget: What the network may cost at the end: "parameters", "multiply_adds" (of one
                example), "latency" (milliseconds of one run on the example inputs) or several, as
                numbers or as percentages of the start. Of several the binding one lands, the others
                are at or under. Left out, without a `width_cost`, half of the multiply-adds that
                can go.
            width_cost: Instead of a budget, the least that a neuron must earn to stay, in units of
                the loss (the paper's lambda 3).
            protect: Layers (names or globs) that keep all their channels, and so their branches;
                none is merged into the next.
            least_width: The fewest channels that any group keeps, unless its branch is left out.
            largest_cut: The largest part of its channels that any group may lose, likewise.
            multiple_of: The channels that a group keeps are a multiple of this, or all it had.
            equal_blocks: Layers that differ in the number of their block alone (`blocks.0.mlp.up`,
                `blocks.1.mlp.up`) keep equally many channels, so that one config says them all.
            schedule: When gates decide, and by what; left out, what serves all networks tried.
            every: Decide only at multiples of so many steps.
            latency: For a budget on latency, what `measure_latency` returned; left out, it is
                measured now, where the model is.

        Raises:
            InputError: If the model has no gates of ours, or the budget cannot be reached.
        """
        self._owner = find_gated(model)
        self._container: GateContainer = getattr(self._owner, CONTAINER)
        self._on_weights, total = connect(self._owner, self._container, optimizer, total_steps)
        counts = {"least_width": least_width, "multiple_of": multiple_of, "every": every}
        check_arguments(total, budget, width_cost, largest_cut, **counts)
        self.schedule = GateSchedule() if schedule is None else schedule
        check_kind("protect", protect, Iterable, 'give names of layers, such as ["head"]')
        names = (protect,) if isinstance(protect, str) else tuple(protect)
        check_kind("schedule", self.schedule, GateSchedule, "give an archlearn.GateSchedule(...)")
        gates = [gate for gate in self._container.gates() if isinstance(gate, nn.Parameter)]
        if any(hasattr(gate, "full_tensor") for gate in gates):
            raise InputError(
                "the gates are spread over processes by fully_shard, but a decision looks at all "
                "of them; give fully_shard the blocks of the model, not the model as a whole"
            )
        learnt = [*gates, *self._container.probes().values()]
        super().__init__([{"params": learnt, "lr": 1.0, "step": 0, "frozen": False}], {})
        self._gates: list[Tensor] = [*gates]
        self._stood: Tensor | None = None
        if self._container.standing:  # another one has let them
            self._stood = self._container.kept.get_buffer(STANDING)
            let_stand_(self._owner, self._container, torch.zeros_like(self._stood))
        if not all(gate.requires_grad for gate in learnt):
            for gate in learnt:
                gate.requires_grad_()
            renew_wrappers_(self._owner)
        self._latency, self._latency_check, self._checked_at = None, None, math.inf
        if isinstance(budget, Mapping) and LATENCY in budget:
            self._latency = latency or measure_latency(self._owner)
            check_table(self._latency, self._container)
            self._latency_check = LatencyCheck(self._owner, self._latency.conditions)
            self.param_groups[0][LATENCY] = self._latency.to_json()
        self._equal_blocks = equal_blocks
        self._take_costs()
        if equal_blocks:
            warn_of_none_alike(self._container, self._alike)
        self._n_examples = count_examples(self._container.channel_graph.inputs)
        self._width_cost = width_cost
        self._multiple_of = multiple_of
        self._steps = width_steps(self._container, multiple_of)
        self._least = least_widths(self._container, names, least_width, largest_cut, self._steps)
        self._least = _join(self._least, self._alike)
        self._units = count_units(self._learnable)
        self._protected = find_protected(self._learnable, names)
        if self._on_weights is not None:
            self._hold(*self._on_weights.held().split([self._cost.n_width, self._cost.n_branches]))
        n_groups = len(gates) - self._cost.n_depth - self._cost.n_branches
        self._branches: list[Tensor] = [*gates[n_groups + self._cost.n_depth :]]
        self._closable: list[Tensor] = [*gates[:n_groups], *self._branches]
        self._set_limits(budget)
        self._set_times(total, every)
        self.param_groups[0]["merges"] = self._plan_merges()
        self._slopes: dict[int, float] = {}
        self._may_pay, self._shrinks = False, self._on_weights is None
        self._container.n_learners += 1
        self._number = self._container.n_learners
        self._written = self._start[:0]
        self._has_warned = False
        self._weight_sum = self._sum_weights()
        self._remember()
        if self._on_weights is not None:
            self._on_weights.start(lambda _: self._step())  # pyright: ignore

    def _hold(self, widths: Tensor, branches: Tensor) -> None:
        """Keep what gates on weights cannot close."""
        is_held = torch.zeros_like(self._least, dtype=torch.bool)
        is_held[self._cost.group[widths]] = True
        self._least = torch.where(is_held, self._cost.group.bincount(), self._least)
        self._protected[self._cost.n_depth :] |= branches

    def __getstate__(self) -> dict[str, Any]:
        """Return everything, for a copy made together with the model; torch keeps states alone."""
        return {name: value for name, value in vars(self).items() if name != "step"}

    def _set_times(self, total_steps: int, every: int) -> None:
        """Settle at which steps gates decide, and look whether a cut pays."""
        window, self._total_steps = self.schedule, total_steps
        self._begin = min(max(1, round(window.begin * total_steps)), total_steps - 1)
        self._end = max(self._begin + 1, round(window.end * total_steps))
        self._end = math.ceil(self._end / every) * every
        interval = max(1, (self._end - self._begin) // window.decisions)
        self._interval = math.ceil(interval / every) * every
        self._look_interval = max(self._interval, (self._end - self._begin) // _LOOKS)
        self._every = every

    def _plan_merges(self) -> list[Merge]:
        """Return which layers become linear under the budget, and from which step on."""
        n_depth, device = self._cost.n_depth, torch.device("cpu")
        if not n_depth or self._width_cost is not None:
            return []
        opened, gone = (state.to(device) for state in self._state())
        lowest, closed = self._cost.least_state(self._least, self._protected)

        def cost_with(widths: Tensor, branches: Tensor, linear: Tensor) -> Tensor:
            others = branches.expand(len(linear), -1)
            return self._cost(widths.expand(len(linear), -1), torch.cat([linear, others], 1))

        choice = choose_layers(self._learnable, self._protected, self.schedule.depth_power)
        linear, branches = gone.tensor_split([n_depth])
        merges = plan_merges(
            partial(cost_with, opened, branches),
            partial(cost_with, lowest, closed[n_depth:]),
            linear,
            self._limits.to(device),
            choice,
        )
        path = PATH * (self._end - self._begin)
        return [merge._replace(begin=round(self._begin + path * merge.begin)) for merge in merges]

    @property
    def latency(self) -> LatencyTable | None:
        """The table that a budget on latency goes by."""
        return self._latency

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Let a `GradScaler` step gates that stand still, which have no gradient to unscale."""
        return not any(gate.requires_grad for gate in self.param_groups[0]["params"])

    def _take_costs(self) -> None:
        """Learn what the network costs, and which channels can be cut out while it is trained."""
        learnable = self._learnable = self._container.learnable
        channel_graph, left_out = learnable.channel_graph, self._container.left_out()
        scale = self._cost.time_scale if hasattr(self, "_cost") else 1.0
        self._cost = CostFunction(self._owner, learnable, self._latency)
        self._cost.time_scale = scale
        is_left_out = [name in left_out for name in learnable.branches]
        self._left_out = torch.tensor(is_left_out, dtype=torch.bool, device="cpu")
        opened = torch.ones(1, self._cost.n_width, dtype=torch.float64, device="cpu")
        gone = torch.cat([torch.zeros(self._cost.n_depth, device="cpu"), self._left_out]).double()
        self._computed = name_costs(self._cost(opened, gone[None])[0])
        sizes = [self._container.original_sizes[group.name] for group in channel_graph.groups]
        is_cut = channel_graph.group_sizes() < torch.tensor(sizes, dtype=torch.long, device="cpu")
        equal = self._equal_blocks
        self._alike = find_alike(self._container, self._left_out, equal_blocks=equal)
        self._is_cut = _join(is_cut, self._alike)
        can_go = find_sliceable(self._owner, channel_graph)
        gates = [group.channels for group in channel_graph.groups]
        self._can_go = can_go[torch.cat([*gates, channel_graph.root[:0]])]
        inner = learnable.inner_groups()
        self._inner = inner[:, self._cost.group]
        self._inside = find_inside(learnable, inner)
        is_coarse = channel_graph.coarse_groups()[self._cost.group]
        self._is_large = torch.cat([is_coarse, torch.ones_like(gone, dtype=torch.bool)])
        self._has_large = bool(is_coarse.any()) or self._cost.n_branches > 0
        self._neuron_counts = NeuronCounts(learnable)
        groups = {group.name: index for index, group in enumerate(channel_graph.groups)}
        counts = [(index, gate.numel()) for index, gate in enumerate(self._container.gates())]
        probes = self._container.probes().items()
        counts += [(groups[name], probe.numel()) for name, probe in probes]
        places, sizes = torch.tensor(counts, dtype=torch.long, device="cpu").view(-1, 2).unbind(1)
        self._parameter_of_gate = torch.repeat_interleave(places, sizes)
        self._rates: Tensor | None = None

    def _set_limits(self, budget: Budget | None) -> None:
        """Read the budget, and refuse one that cannot be reached, before anything is trained."""
        container, cost = self._container, self._cost
        device = container.gates()[0].device
        opened, gone = self._state()
        present = name_costs(cost(opened[None], gone[None])[0])
        start, least = cost.extremes(self._least, self._protected)
        start |= container.original_costs or {}
        limits = dict.fromkeys(cost.names, math.inf)
        self._budget, self._whole_latency = budget, start.get(LATENCY, math.inf)
        if budget is not None:
            container.budget = read_budget(budget, start, self._n_examples)
            check_reachable(container.budget, least, present, self._n_examples)
            warn_of_no_limit(container.budget, start, self._n_examples)
            limits |= container.budget
        self._has_default_budget = budget is None and self._width_cost is None
        self._cheapest = least
        self._limits = torch.tensor([*limits.values()], dtype=torch.float64, device=device)
        self._begin_with([*present.values()])

    def _begin_with(self, costs: list[float]) -> None:
        """Let the path to the budget start at these costs, which checkpoints keep."""
        self.param_groups[0]["start"] = costs
        self._start = torch.tensor(costs, dtype=torch.float64, device=self._limits.device)
        if self._has_default_budget:
            index = COSTS.index("multiply_adds")
            self._limits[index] = math.floor((costs[index] + self._cheapest[COSTS[index]]) / 2)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore
        """Take down the gradients of this step and, every now and then, close or open gates."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._on_weights is not None:
            self._on_weights.step()
            return loss
        self._step()  # pyright: ignore[reportAttributeAccessIssue]
        return loss

    def observe(self) -> None:
        """Read the gradients of gates on weights now, and take those of closed channels out.

        In front of clipping, so that closed channels do not count in the norm; or with `step()`
        behind the optimiser's, where its hooks are not called: behind a replayed CUDA graph, or
        with an optimiser that is none of torch's.
        """
        if self._on_weights is None:
            raise InputError("gates on activations have gradients of their own; call step() alone")
        self._on_weights.observe()

    @torch.compiler.disable  # hides the type of what it decorates, so `step` stays without
    def _step(self) -> None:
        self.observe_()
        self.advance()

    @torch.no_grad()
    def observe_(self) -> None:
        """Add this step's gradients to what is known of each gate; a CUDA graph may hold this.

        Raises:
            InputError: If there are none, `shrink_` was not given this optimiser, or another one
                has been made for the same gates since.
        """
        group, gates = self.param_groups[0], self.param_groups[0]["params"]
        if self._learnable is not self._container.learnable:
            raise InputError(
                "channels were cut out of the model by a shrink_ that was not given this "
                "GateOptimizer; give it all optimisers: archlearn.shrink_(model, optimizer, gates)"
            )
        if self._number != self._container.n_learners:
            raise InputError(
                "another GateOptimizer has been made for these gates since, and two would undo "
                "each other's decisions; step the last one alone"
            )
        is_spent = not (self._cost.n_width or self._cost.n_depth) and bool(self._left_out.all())
        if group["frozen"] or is_spent:
            return
        if self._rates is not None and self._rates.device != gates[0].device:
            self._follow_branches_()
        rates = self._rates
        if self._on_weights is not None:
            self._on_weights.write_gradients_(gates)
            rates = self._on_weights.rates(rates, self.schedule.memory)
        observe_(gates, self.state, self.schedule, rates)

    @torch.no_grad()
    def advance(self, n_steps: int = 1) -> None:
        """Count steps whose gradients have been observed; decide where a decision is due."""
        group = self.param_groups[0]
        before, group["step"] = group["step"], group["step"] + n_steps
        self._put_back_()
        if before < max(_WEIGHTS_MOVE_BY, self._begin) <= group["step"]:
            self._check_loop()
        if before < 2 * self._total_steps <= group["step"]:
            _log.warning(
                "gates.step() was called %d times, but total_steps is %d, so gates were decided by "
                "step %d; give total_steps the steps of the whole run, not its epochs",
                *(group["step"], self._total_steps, self._end),
            )
        if group["step"].bit_length() > before.bit_length():
            # From half of the time on before which no gate may close.
            may_judge = 2 * group["step"] >= self._begin
            note_growth_(self._branches, self.state, self._weight_seen(), may_judge=may_judge)
        if group["frozen"] or group["step"] < self._begin:
            return
        self._make_linear_(last=False)
        if group["step"] // self._look_interval > before // self._look_interval:
            self._may_pay = True
        if group["step"] >= self._end:
            self.finish()
        elif group["step"] // self._interval > before // self._interval:
            self._decide_(last=False)
            if self._latency_check and self.costs()[LATENCY] <= _FALLEN * self._checked_at:
                self._scale_latency_(self._time_network())

    @torch.no_grad()
    def finish(self) -> None:
        """Cut to the budget now, and let gates stand still from here on.

        For a run that ends before its `total_steps`. Where no gradient was ever seen, the gates'
        own values say which channels go.
        """
        if not self.param_groups[0]["frozen"]:
            self._make_linear_(last=True)
            self._decide_(last=True)
            for _ in range(_LAST_CHECKS if self._latency_check else 0):
                off = self._time_network()
                if abs(off - 1.0) <= _NEAR:
                    break  # scaled by noise alone, the table would say that the budget was missed
                self._scale_latency_(off)
                self._decide_(last=True)
            self.param_groups[0]["frozen"] = True
            self._may_pay = True

    def _make_linear_(self, *, last: bool) -> None:
        """Let layers be as linear as the depth path says by now.

        At the last decision those are linear whose turn has come, and those without which the
        budget cannot be met.
        """
        group, slopes = self.param_groups[0], dict[int, float]()
        step = group["step"] - group["step"] % self._every
        duration = max(1, round(SLOPE * (self._end - self._begin)))
        for merge in itertools.starmap(Merge, group["merges"]):
            if merge.begin <= step or (last and merge.is_needed):
                slope = slope_at(step, merge.begin, duration)
                slopes[merge.layer] = LINEAR if last or slope == 1.0 else slope
        if slopes == self._slopes:
            return
        self._slopes = slopes
        every = [slopes.get(layer, LINEAR) for layer in range(self._cost.n_depth)]
        self._container.slope.copy_(torch.tensor(every, dtype=torch.float64, device="cpu"))
        gates = [*self._container.depth_gates().values()]
        for layer in slopes:
            gates[layer].fill_(1.0)
        self._remember()

    @torch.no_grad()
    def closed_for_good(self) -> dict[str, Tensor]:
        """Return which gates of each group never act again and can be cut out by `shrink_`.

        Those inside a branch that is closed for good are among them, whether open or not. As many
        others are not as make the rest of their group a multiple that suits the hardware.
        """
        closed, branches = self._find_closed()
        closed |= (branches[:, None] & self._inner).any(0)
        closed &= self._can_go
        groups = self._container.channel_graph.groups
        multiple = math.lcm(self._multiple_of, _GPU_MULTIPLE if closed.is_cuda else 1)
        steps = width_steps(self._container, multiple).tolist()
        pieces = closed.split([len(group.channels) for group in groups])
        flags: dict[str, Tensor] = {}
        for group, piece, step in zip(groups, pieces, steps, strict=True):
            n_missing = (~piece).sum().neg() % step
            flags[group.name] = piece & (piece.cumsum(0) > n_missing)
        return flags

    @torch.no_grad()
    def branches_closed_for_good(self) -> list[str]:
        """Return the branches that never act again; waits for the device."""
        return list(compress(self._container.learnable.branches, self._find_closed()[1].tolist()))

    def _find_closed(self) -> tuple[Tensor, Tensor]:
        """Return which width gates, and which branches, are closed for good."""
        opened, gone = self._state()
        self._follow_device(opened.device)
        closed = torch.cat([opened == 0, gone[self._cost.n_depth :] > 0])
        if not self.param_groups[0]["frozen"]:
            closed &= torch.cat(self._for_good())
        closed, branches = closed.tensor_split([len(opened)])
        return closed, branches | self._left_out

    @torch.no_grad()
    def can_shrink(self) -> bool:
        """Return whether `shrink_` would pay now; call it as often as you like.

        It pays a few times in a run: whenever what is closed for good costs a good part of what is
        computed now, and once more when all gates stand still. It looks seldom, for it waits for
        the device then.
        """
        if not (self._may_pay and self._shrinks):
            return False
        self._may_pay = False
        if self.param_groups[0]["frozen"]:
            return True
        n_left = self.schedule.cuts - self._container.n_shrinks
        if n_left <= 0:
            return False
        none = self._container.group_of_gate[:0].bool()  # there may be branches alone
        gone = torch.cat([none, *self.closed_for_good().values()]).double()
        states = torch.stack([torch.ones_like(gone), 1.0 - gone])
        others = gone.new_zeros(2, self._cost.n_depth + self._cost.n_branches)
        branches = torch.stack([self._left_out, self._find_closed()[1]])
        others[:, self._cost.n_depth :] = branches.double()
        now, then = self._cost(states, others)
        self._follow_device(now.device)
        # Equal shares of the way that is left, the last of them when gates stand still.
        share = (self._limits / now).clamp(max=1.0) ** (1.0 / (n_left + 1))
        pays = then <= now * share.nan_to_num(posinf=1.0).clamp(max=_LEAST_GAIN)
        limited = self._limits.isfinite()
        return bool((pays & limited).any() if bool(limited.any()) else pays.any())

    def learns(self, model: nn.Module) -> bool:
        """Return whether the gates are those of this model."""
        return self._owner is model

    def stop_shrinking(self) -> None:
        """Let `can_shrink` say no from here on."""
        self._shrinks = False

    def follow_model(self) -> None:
        """Go on with a model whose channels `shrink_` has cut out."""
        self._take_costs()
        self._stood = None
        sizes = self._container.channel_graph.group_sizes().to(self._least.device)
        self._least = torch.minimum(self._least, sizes)
        self._remember()

    def accept_gates(self) -> None:
        """Take the gates as they are: whoever moved them was allowed to."""
        self._remember()

    def resume_at(self, step: int) -> None:
        """Go on behind so many steps; gates and what is known of them have been put back."""
        group = self.param_groups[0]
        group["step"], group["frozen"] = step, step >= self._end
        self._remember()

    def can_stand_still(self) -> bool:
        """Return whether gates never move again, and what is learnt does without their gradients.

        Where all weights are frozen, a backward pass needs at least the gates.
        """
        gates = {id(gate) for gate in self.param_groups[0]["params"]}
        weights = [p for p in self._owner.parameters() if id(p) not in gates]
        return self.param_groups[0]["frozen"] and any(p.requires_grad for p in weights)

    def describe(self) -> dict[str, object]:
        """Return what each cost with a budget may be now, and the price; waits for the device.

        The price is what the next channel to go earned for what it costs, at the last decision.
        What is trained costs more than what `compact` would leave, until `shrink_` cuts it out.
        """
        limits = name_costs(self._limits_now(last=False), self._n_examples)
        trained = [(name, self._computed[name]) for name in COSTS]
        path = {name: limit for name, limit in limits.items() if math.isfinite(limit)}
        price = self.state[self.param_groups[0]["params"][0]].get("price")
        return {
            **({LATENCY: self.costs()[LATENCY]} if self._latency else {}),
            "budget_path": path,
            "price": 0.0 if price is None else price.item(),
            "trained": {name: n / unit_of(name, self._n_examples) for name, n in trained},
        }

    def fits(self) -> bool:
        """Return whether the network is within its budget now; waits for the device."""
        opened, gone = self._state()
        self._follow_device(opened.device)
        return bool((self._cost(opened[None], gone[None])[0] <= self._limits).all())

    def costs(self) -> dict[str, float]:
        """Return what the network would cost, compacted now; multiply-adds of one example."""
        opened, gone = self._state()
        return name_costs(self._cost(opened[None], gone[None])[0], self._n_examples)

    def state_dict(self) -> dict[str, Any]:
        """Return what is known of each gate; of gates on weights also their values aside."""
        state: dict[str, Any] = super().state_dict()
        if self._on_weights is not None:
            state[_ON_WEIGHTS] = self._on_weights.state_dict(self._gates)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; numbers stay in the precision they were kept in.

        Raises:
            InputError: If it is of something else, or of a model that other channels have been cut
                out of.
        """
        saved: Any = state_dict
        groups = saved.get("param_groups") if isinstance(saved, Mapping) else None
        if not groups or "frozen" not in groups[0]:
            raise InputError(
                "the state is of no GateOptimizer; give what its state_dict() returned"
            )
        if (self._on_weights is not None) != (_ON_WEIGHTS in saved):
            here, there = ("weights", "activations")[:: 1 if self._on_weights else -1]
            raise InputError(
                f"the state is of gates on {there}, and the model's act on {here}; give the state "
                f'of a run with add_gates(..., on="{here}")'
            )
        gates: list[Tensor] = self.param_groups[0]["params"]
        for gate, state in zip(gates, map(state_dict["state"].get, range(len(gates))), strict=True):
            mean = (state or {}).get("mean", gate)
            if mean.shape != gate.shape:
                raise InputError(
                    f"the state is of {mean.numel()} gates where the model has {gate.numel()}: "
                    "other channels have been cut out of one than of the other; first bring the "
                    "model to where it was by archlearn.shrink_(model, optimizer, gates, like=...) "
                    "with the model's own state_dict"
                )
        super().load_state_dict(state_dict)
        for number, state in state_dict["state"].items():
            gate = self.param_groups[0]["params"][number]
            self.state[gate] = {k: v.to(gate.device, copy=True) for k, v in state.items()}
        if self._on_weights is not None:
            self._on_weights.load_state_dict(state_dict[_ON_WEIGHTS], self._gates)
        start = self.param_groups[0].get("start", self._start.tolist())
        if self._latency is not None and LATENCY in self.param_groups[0]:
            self._latency = LatencyTable.from_json(self.param_groups[0][LATENCY])
            self._take_costs()
            self._set_limits(self._budget)
        self._begin_with(start)
        self._slopes = {}
        if self._stood is not None and self.param_groups[0]["frozen"]:  # woken for nothing
            let_stand_(self._owner, self._container, self._stood)
            renew_wrappers_(self._owner)
        self._remember()

    def _decide_(self, *, last: bool) -> None:
        """Rank all gates, close or open as the budget says, and write the gates."""
        cost, schedule = self._cost, self.schedule
        n_width = cost.n_width
        opened, gone = self._state()
        self._follow_device(opened.device)
        limits = self._limits_now(last=last)
        widths, branches = self._for_good()
        self._sort_heads_(opened, widths)
        earned = self._earned()
        earned[n_width:] /= torch.where(gone > 0, schedule.stay_linear, 1.0)
        if self._width_cost is None:
            prices, overshoots = find_savings(cost, opened, gone, self._limits)
            earned[n_width + cost.n_depth :] *= torch.where(overshoots, LAST_RESORT, 1.0)
            prices = torch.where(prices > 0, self._weigh_prices(prices, opened, gone), prices)
        else:
            prices = self._neurons(opened, gone)
        # Under a budget the depth path decides which layers are linear.
        depths = (gone[: cost.n_depth] > 0) & (self._width_cost is None)
        for_good = torch.cat([widths, depths, branches])
        held = self._find_held(last=last) & ~for_good[n_width:]
        for_good |= earned.isneginf()
        earned.masked_fill_(for_good, -torch.inf)  # first to go, and never to come back
        prices.masked_fill_(for_good, 1.0)
        kept = torch.cat([opened > 0, gone == 0])
        group = self._container.group_of_gate[:n_width]
        of_groups = self._least, self._steps, self._alike, self._is_cut
        holds = Holds(group, *of_groups, self._inner, held)
        ranking = rank_gates(earned, prices, kept, holds, schedule.stay)
        if self._width_cost is not None:
            count = (ranking.ratio < self._width_cost * self._done(last=last)).sum()
        elif self._has_large:
            ranking, count = use_room(ranking, self._is_large, cost, limits)
        else:
            count, _ = fit(ranking, cost, limits)
        is_open, is_gone = (state[0] for state in ranking.states(count[None], n_width))
        if last and self._width_cost is None:
            ranked = ranking, earned[:n_width]
            is_open = fill_up(*ranked, (is_open, is_gone), cost, limits)
            is_open = exchange(*ranked, (is_open, is_gone), cost, limits)
        bound = torch.where(ranking.rank >= count, ranking.ratio, torch.inf).amin()
        bound = bound.nan_to_num(posinf=0.0)
        self.state[self.param_groups[0]["params"][0]]["price"] = bound
        closable = torch.cat([is_open, 1.0 - is_gone[cost.n_depth :]])
        count_closed_(self._closable, self.state, closable, holds, schedule.patience)
        is_kept = torch.cat([is_open, 1.0 - is_gone])
        values = is_kept if last else ranking.distances(bound, is_kept)
        widths, depths, branches = values.tensor_split([n_width, n_width + cost.n_depth])
        self._write_(torch.cat([widths, 1.0 - depths, branches]))

    def _sort_heads_(self, opened: Tensor, closed: Tensor) -> None:
        """Let each head's channels that earn most stand for the gates that are open.

        So that channels go together which are the weakest of their heads. Those whose gates are
        closed for good stay there.
        """
        orders, probes = self._container.orders(), self._container.probes()
        if not probes:
            return
        groups = self._container.channel_graph.groups
        sizes = [len(group.channels) for group in groups]
        states = zip(groups, opened.split(sizes), closed.split(sizes), strict=True)
        for group, is_open, for_good in states:
            state = self.state[probes[group.name]] if group.name in probes else {}
            if "mean" in state:
                sort_heads_(orders[group.name], state["mean"], is_open, for_good, self.schedule)

    def _time_network(self) -> float:
        """Time the network that gates leave; return how many times as long as by the table."""
        assert self._latency_check is not None
        opened, gone = self._state()
        expected = self._cost(opened[None], gone[None])[0, -1].item()
        off = self._latency_check.share() * self._whole_latency / expected
        return min(max(off, 1.0 / _MOST_OFF), _MOST_OFF)

    def _scale_latency_(self, off: float) -> None:
        """Scale the table of latencies by how far it was off."""
        self._cost.time_scale *= off
        self._checked_at = self.costs()[LATENCY]

    def _find_held(self, *, last: bool) -> Tensor:
        """Return which layers and branches must stay: growing branches are not judged yet."""
        if last or not self._branches or self.schedule.signal == "signed":
            return self._protected
        held = self._protected.clone()
        held[self._cost.n_depth :] |= find_growing(self._branches, self.state)
        return held

    def _for_good(self) -> tuple[Tensor, Tensor]:
        """Return which width gates, and which branches, have been closed too long to open again."""
        closed = find_closed_for_good(
            self._closable, self.state, self._container.group_of_gate.device
        )
        widths, branches = closed.tensor_split([self._cost.n_width])
        return widths, branches | self._left_out

    def _limits_now(self, *, last: bool) -> Tensor:
        if last:
            return self._limits
        fall = (1.0 - self._done(last=False)) ** self.schedule.power
        above = (self._start - self._limits).clamp(min=0.0).nan_to_num(posinf=0.0)
        return self._limits + above * fall

    def _done(self, *, last: bool) -> float:
        """Return how much of the time in which gates decide is over."""
        if last:
            return 1.0
        done = (self.param_groups[0]["step"] - self._begin) / (self._end - self._begin)
        return min(1.0, max(0.0, done))

    def _follow_device(self, device: torch.device) -> None:
        """Bring what was prepared to where the model is now."""
        names = ("_limits", "_start", "_least", "_steps", "_alike", "_is_cut", "_units", "_inner")
        for name in (*names, "_can_go", "_protected", "_left_out", "_is_large"):
            setattr(self, name, getattr(self, name).to(device))

    def _weigh_prices(self, prices: Tensor, opened: Tensor, gone: Tensor) -> Tensor:
        """Return prices so that a dear channel counts for more than it costs.

        A gate that stands for many neurons is dear because they are many: each of them counts as
        if it went alone.
        """
        depths, branches = gone.tensor_split([self._cost.n_depth])
        widths, inside = self._neuron_counts(opened, branches)
        neurons = torch.cat([widths, torch.ones_like(depths), inside])
        cost_power, size_power = self.schedule.powers(self._budget or ("multiply_adds",))
        return prices.abs() ** cost_power / neurons**size_power

    def _neurons(self, opened: Tensor, gone: Tensor) -> Tensor:
        """Return how many neurons go with each gate: what a price is paid for."""
        neurons = self._container.numbers("prices", torch.float64)[0, : self._cost.n_width]
        if not len(gone):
            return neurons
        states = torch.cat([gone[None], flip_each(gone)])
        now, flipped = self._cost(opened.expand(len(states), -1), states)[:, 0].tensor_split([1])
        saves = torch.where(gone > 0, now < flipped, flipped < now)
        return torch.cat([neurons, self._units * saves])

    def _earned(self) -> Tensor:
        """Return what each gate earns; in units of the loss where there is a price."""
        others = self._cost.n_depth, self._cost.n_branches
        means = {gate: self.state[gate].get("mean") for gate in self._gates}
        for name, probe in self._container.probes().items():
            if "mean" in self.state[probe]:  # of single channels, which may have been sorted anew
                gate = self._container.width_gates()[name]
                means[gate] = self.state[probe]["mean"].sum(0)
        earned = estimate_earnings(means, self.schedule, *others)
        if self._width_cost is None:
            return earned
        earned /= self._weight_seen()
        return earned.sqrt() if self.schedule.signal == "square" else earned

    def _weight_seen(self) -> float:
        """Return by what averages are too small, for they began at zero."""
        return 1.0 - self.schedule.memory ** max(1, self.param_groups[0]["step"])

    def _state(self) -> tuple[Tensor, Tensor]:
        """Return which width gates are open, and which layers and branches are gone now."""
        container = self._container
        acting = open_flat(join_gates(container.gates()), container.rows, container.pairs).double()
        ends = [self._cost.n_width, self._cost.n_width + self._cost.n_depth]
        widths, depths, branches = acting.tensor_split(ends)
        return widths, torch.cat([depths, 1.0 - branches])

    def _write_(self, flat: Tensor) -> None:
        values = flat.to(self._gates[0].dtype)
        if self._on_weights is not None:
            values = self._on_weights.agree(values)
        torch._foreach_copy_(self._gates, split_gates(values, self._gates))
        self._remember()
        if self._on_weights is not None:
            self._on_weights.follow(*self._state())

    def _sum_weights(self) -> float:
        """Return a number that changes when the weights do."""
        gates = {id(gate) for gate in self.param_groups[0]["params"]}
        weights = [p for p in self._owner.parameters() if p.requires_grad and id(p) not in gates]
        sums = [weight.detach().sum(dtype=torch.float64) for weight in weights]
        return float(torch.stack(sums).sum()) if sums else math.nan

    def _check_loop(self) -> None:
        """Say so if no weight has moved (an optimiser of other ones), or no gradient was seen."""
        means = [state["mean"] for state in self.state.values() if "mean" in state]
        if means and not bool(join_gates(means).any()):
            _log.warning(
                "in %d steps all gradients of gates were 0 or not finite, so channels would go at "
                "random: call gates.step() behind loss.backward() and in front of "
                "zero_grad(set_to_none=False), and look at the loss",
                self.param_groups[0]["step"],
            )
        if self._sum_weights() == self._weight_sum:
            _log.warning(
                "no weight of the model has changed in %d steps: give your optimiser "
                "archlearn.weights(model); parameters of the network that add_gates copied are "
                "others",
                self.param_groups[0]["step"],
            )

    def _remember(self) -> None:
        """Remember the gates as they are, so that it is noticed when somebody else moves them."""
        gates: list[Tensor] = self.param_groups[0]["params"]
        self._written = join_gates(gates).detach()
        self._versions = [gate._version for gate in gates]
        self._n_loads = self._container.n_loads
        self._follow_branches_()

    def _follow_branches_(self) -> None:
        """Let what is known of gates inside closed branches stand still: no gradient gets there."""
        if not self._branches:
            return
        gates: list[Tensor] = self.param_groups[0]["params"]
        device, number_format = gates[0].device, torch.promote_types(gates[0].dtype, torch.float32)
        closed = join_gates(self._branches).detach() < THRESHOLD
        hidden = (closed[:, None] & self._inside.to(device)).any(0)
        rates = (1.0 - self.schedule.memory) * ~hidden[self._parameter_of_gate.to(device)]
        if self._rates is None or self._rates.device != device:
            self._rates = rates.to(number_format)
        else:
            self._rates.copy_(rates)  # in place, for a CUDA graph may hold it

    def _put_back_(self) -> None:
        """Undo what another optimiser did to the gates; what a checkpoint did stays."""
        gates: list[Tensor] = self.param_groups[0]["params"]
        if self._n_loads != self._container.n_loads:
            self._remember()
        if [gate._version for gate in gates] == self._versions:
            return
        written = self._written.to(gates[0])
        # DDP writes gates without moving them.
        if not self._has_warned and not torch.equal(join_gates(gates), written):
            self._has_warned = True
            warnings.warn(
                "gates were moved by something else than the GateOptimizer, and are put back: give "
                "the other optimiser archlearn.weights(model), not model.parameters()",
                stacklevel=4,
            )
        torch._foreach_copy_(gates, split_gates(written, gates))
        self._versions = [gate._version for gate in gates]


def _join(numbers: Tensor, alike: Tensor) -> Tensor:
    """Return for each group the largest number of those that it is alike."""
    return numbers.scatter_reduce(0, alike, numbers, "amax")[alike]
