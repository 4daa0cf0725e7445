"""`GateOptimizer`: learn the gates of a model under a budget, in anybody's training loop.

The paper moves gates by SGD against a fixed price. On deep networks the noise of a gate's gradient
is tens of times its price, and gates close at random until the network is dead. Here a gate is
judged by the mean square of its gradient, which tells how much the loss depends on its channel, for
what the channel costs; and the price is the one at which the network fits a budget that falls from
what the network costs to what was asked for. `docs/how-gates-learn.md` has the reasons, the
references and the ablation.
"""

import fnmatch
import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from archlearn.errors import InputError, lies_in
from archlearn.gating.container import STORE, GateContainer
from archlearn.gating.selection import LearnableSites
from archlearn.gating.strengths import COSTS, count_rows
from archlearn.nn.functional import THRESHOLD
from archlearn.optim.budgets import (
    Budget,
    Holds,
    check_reachable,
    fill_up,
    fit,
    rank_gates,
    read_budget,
)
from archlearn.optim.cost_function import CostFunction, name_costs
from archlearn.surgery.planning import find_sliceable
from archlearn.tracing.example_inputs import count_examples
from archlearn.tracing.generated_forward import unwrap

_LAST_RESORT = 1e30
"""What a layer seems to earn that goes only if nothing else makes the network fit."""
_LEAST_GAIN, _LEAST_LAST_GAIN = 0.88, 0.97
"""The part of its cost that must be left for a cut to pay, and for the last one."""
_LOOKS = 40
"""How often it is looked whether a cut pays."""
_MARGIN, _DOUBLINGS = 0.1, 3.0
"""Gates stay this far from one half; further out they say how many doublings the price is away."""
_FOR_GOOD = 2**24
"""Stands for the number of decisions since a gate closed when it never opens again."""
_RESERVE = 4
"""How many channels of each group, the last that closed, are never closed for good."""
_GROWTH = 2.0
"""A branch has grown once it no longer earns so many times what it earned in half the time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GateSchedule:
    """When gates decide, and by what. The defaults were chosen on validation data.

    Attributes:
        begin: The part of the run after which the first gate may close.
        end: The part of the run after which all gates stand still, and weights alone learn.
        power: How the budget falls: with this power of the time that is left.
        decisions: How often gates decide in between.
        memory: The decay of the mean square of gradients, by step.
        stay: How many times more a closed channel must earn than an open one to take its place.
        stay_linear: The same for a layer that has become linear, or a branch that is closed.
        branch_discount: What a branch's earnings are divided by; above 1 whole blocks go sooner, so
            that networks of the same cost become shallower, and faster, instead of narrower.
        patience: After how many decisions in a row a closed channel is closed for good.
        cuts: How often `can_shrink` says yes while gates decide; once more when they stand still.
            With more, torch.compile would give up compiling anew.
        signal: What a gate earns by: the mean square of its gradient, its mean size, or the signed
            gradient of the paper (for comparison; at rest it does no better than chance).
        cost_power: The power of its cost that a channel's earnings are divided by; with 0 costs do
            not count.
    """

    begin: float = 0.1
    end: float = 0.7
    power: float = 3.0
    decisions: int = 200
    memory: float = 0.98
    stay: float = 1.2
    stay_linear: float = 4.0
    branch_discount: float = 1.0
    patience: int = 20
    cuts: int = 5
    signal: Literal["square", "size", "signed"] = "square"
    cost_power: float = 1.5

    def __post_init__(self) -> None:
        if self.signal not in ("square", "size", "signed"):
            raise InputError(f"signal is {self.signal!r}; choose square, size or signed")
        if not 0 <= self.begin < self.end <= 1:
            raise InputError(
                f"begin is {self.begin!r} and end {self.end!r}; both are parts of the run, and the "
                "first comes before the second"
            )
        if not 0 <= self.memory < 1:
            raise InputError(f"memory is {self.memory!r}; a decay is from 0 to below 1")
        bounds = {"power": 0, "decisions": 1, "stay": 1, "stay_linear": 1, "cost_power": 0}
        bounds |= {"branch_discount": 1, "patience": 1, "cuts": 0}
        for name, least in bounds.items():
            if not lies_in(getattr(self, name), least, math.inf):
                raise InputError(
                    f"{name} is {getattr(self, name)!r}; give a number from {least} on"
                )


class GateOptimizer(torch.optim.Optimizer):
    """Learns gates beside any optimiser of the weights, from the task's loss alone.

    Call `step()` and `zero_grad()` after each backward pass, as for any optimiser. Give the other
    optimiser `archlearn.weights(model)`. Learning rates and their schedulers mean nothing here.
    """

    def __init__(
        self,
        model: nn.Module,
        total_steps: int,
        *,
        budget: Budget | None = None,
        width_cost: float | None = None,
        protect: Iterable[str] = (),
        least_width: int = 1,
        largest_cut: float = 1.0,
        schedule: GateSchedule | None = None,
        every: int = 1,
    ) -> None:
        """Prepare to learn the gates of `model`.

        Args:
            model: A model from `add_gates`, or one that contains such a model.
            total_steps: Steps of the whole run.
            budget: What the network may cost at the end: "parameters", "multiply_adds" (of one
                example) or both, as numbers or as percentages of the start. Of several the binding
                one lands, the others are at or under. Left out, without a `width_cost`, half of the
                multiply-adds that can go.
            width_cost: Instead of a budget, the least that a neuron must earn to stay, in units of
                the loss (the paper's lambda 3).
            protect: Layers (names or globs) that keep all their channels, and so their branches.
            least_width: The fewest channels that any group keeps, unless its branch is left out.
            largest_cut: The largest part of its channels that any group may lose, likewise.
            schedule: When gates decide, and by what; left out, what serves all networks tried.
            every: Decide only at multiples of so many steps.

        Raises:
            InputError: If the model has no gates of ours, or the budget cannot be reached.
        """
        self._owner = find_gated(model)
        self._store: GateContainer = getattr(self._owner, STORE)
        _check(total_steps, budget, width_cost, least_width, largest_cut)
        gates = [gate for gate in self._store.gates() if isinstance(gate, nn.Parameter)]
        super().__init__([{"params": gates, "lr": 1.0, "step": 0, "frozen": False}], {})
        self.schedule = schedule or GateSchedule()
        self._take_costs()
        self._n_examples = count_examples(self._store.choice.blueprint.inputs)
        self._width_cost = width_cost
        self._least = _least_widths(self._store, protect, least_width, largest_cut)
        choice = self._store.choice
        self._units = _count_units(choice)
        self._protected = _find_protected(choice, protect)
        self._branches = gates[len(gates) - self._cost.n_branches :]
        self._set_limits(budget)
        window = self.schedule
        self._begin = max(1, round(window.begin * total_steps))
        self._end = max(self._begin + 1, round(window.end * total_steps))
        self._end = math.ceil(self._end / every) * every
        interval = max(1, (self._end - self._begin) // window.decisions)
        self._interval = math.ceil(interval / every) * every
        self._look_interval = max(self._interval, (self._end - self._begin) // _LOOKS)
        self._may_pay = False
        self._written: list[Tensor] = []
        self._has_warned = False
        self._remember()

    def _take_costs(self) -> None:
        """Learn what the network costs, and which channels can be cut out while it is trained."""
        blueprint = self._store.choice.blueprint
        self._cost = CostFunction(self._owner, self._store.choice)
        self._computed, _ = self._cost.extremes()
        can_go = find_sliceable(self._owner, blueprint)
        gates = [group.channels for group in blueprint.groups]
        self._can_go = can_go[torch.cat([*gates, blueprint.root[:0]])]
        inner = self._store.choice.inner_groups()
        self._inner = inner[:, self._cost.group]
        self._inside = _find_inside(self._store.choice, inner)
        sizes = torch.tensor([gate.numel() for gate in self._store.gates()], dtype=torch.long)
        self._parameter_of_gate = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        self._rates: Tensor | None = None

    def _set_limits(self, budget: Budget | None) -> None:
        """Read the budget, and refuse one that cannot be reached, before anything is trained."""
        store, cost = self._store, self._cost
        device = store.gates()[0].device
        opened, gone = self._state()
        present = name_costs(cost(opened[None], gone[None])[0])
        start, least = cost.extremes(self._least)
        start = store.original_costs or start
        limits = dict.fromkeys(COSTS, math.inf)
        if budget is not None:
            store.budget = read_budget(budget, start, self._n_examples)
            check_reachable(store.budget, least, present, self._n_examples)
            limits |= store.budget
        self._has_default_budget = budget is None and self._width_cost is None
        self._cheapest = least
        self._limits = torch.tensor([*limits.values()], dtype=torch.float64, device=device)
        self._begin_with([*present.values()])

    def _begin_with(self, costs: list[float]) -> None:
        """Let the path to the budget start at these costs, which checkpoints keep."""
        self.param_groups[0]["start"] = costs
        self._start = torch.tensor(costs, dtype=torch.float64, device=self._limits.device)
        if self._has_default_budget:
            place = COSTS.index("multiply_adds")
            self._limits[place] = math.floor((costs[place] + self._cheapest[COSTS[place]]) / 2)

    @torch.compiler.disable
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore
        """Take down the gradients of this step and, every now and then, close or open gates."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.observe_()
        self.advance()
        return loss

    @torch.no_grad()
    def observe_(self) -> None:
        """Add this step's gradients to what is known of each gate; a CUDA graph may hold this.

        Raises:
            InputError: If there are none.
        """
        group = self.param_groups[0]
        if group["frozen"]:
            return
        seen = [gate for gate in group["params"] if gate.grad is not None]
        if not seen:
            raise InputError(
                "gates have no gradient: call gates.step() behind loss.backward() and in front of "
                "zero_grad(), of the model's as well as of gates"
            )
        for gate in seen:
            if "mean" not in self.state[gate]:
                number_format = torch.promote_types(gate.dtype, torch.float32)
                self.state[gate]["mean"] = torch.zeros_like(gate, dtype=number_format)
        means = [self.state[gate]["mean"] for gate in seen]
        # A batch that overflowed in half precision says nothing.
        found = [torch.nan_to_num(gate.grad.to(mean.dtype), 0.0, 0.0, 0.0)
                 for gate, mean in zip(seen, means, strict=True)]  # fmt: skip
        signal = self.schedule.signal
        if signal == "size":
            torch._foreach_abs_(found)
        elif signal == "square":
            torch._foreach_mul_(found, found)
        else:
            torch._foreach_neg_(found)
        if self._rates is None:
            torch._foreach_lerp_(means, found, 1.0 - self.schedule.memory)
            return
        if self._rates.device != found[0].device:
            self._follow_branches_()
        sizes = [gate.numel() for gate in group["params"]]
        rates = [
            rate.view(gate.shape)
            for rate, gate in zip(self._rates.split(sizes), group["params"], strict=True)
            if gate.grad is not None
        ]
        torch._foreach_sub_(found, means)
        torch._foreach_mul_(found, rates)
        torch._foreach_add_(means, found)

    @torch.no_grad()
    def advance(self, n_steps: int = 1) -> None:
        """Count steps whose gradients have been observed; decide where a decision is due."""
        group = self.param_groups[0]
        before, group["step"] = group["step"], group["step"] + n_steps
        self._put_back_()
        if group["step"].bit_length() > before.bit_length():
            self._note_growth()
        if group["frozen"] or group["step"] < self._begin:
            return
        if group["step"] // self._look_interval > before // self._look_interval:
            self._may_pay = True
        if group["step"] >= self._end:
            self.finish()
        elif group["step"] // self._interval > before // self._interval:
            self._decide_(last=False)

    @torch.no_grad()
    def finish(self) -> None:
        """Cut to the budget now, and let gates stand still from here on.

        For a run that ends before its `total_steps`. Where no gradient was ever seen, the gates'
        own values say which channels go.
        """
        if not self.param_groups[0]["frozen"]:
            self._decide_(last=True)
            self.param_groups[0]["frozen"] = True
            self._may_pay = True

    @torch.no_grad()
    def closed_for_good(self) -> dict[str, Tensor]:
        """Return which gates of each group never act again and can be cut out by `shrink_`.

        Those inside a branch that is closed for good are among them, whether open or not.
        """
        opened, gone = self._state()
        self._follow_device(opened.device)
        closed = torch.cat([opened == 0, gone[self._cost.n_depth :] > 0])
        if not self.param_groups[0]["frozen"]:
            closed &= self._times_closed() == _FOR_GOOD
        closed, branches = closed.tensor_split([len(opened)])
        closed |= (branches[:, None] & self._inner).any(0)
        closed &= self._can_go.to(opened.device)
        groups = self._store.choice.blueprint.groups
        pieces = closed.split([len(group.channels) for group in groups])
        return {group.name: piece for group, piece in zip(groups, pieces, strict=True)}

    @torch.no_grad()
    def can_shrink(self) -> bool:
        """Return whether `shrink_` would pay now; call it as often as you like.

        It pays a few times in a run: whenever what is closed for good costs a good part of what is
        computed now, and once more when all gates stand still. It looks seldom, for it waits for
        the device then.
        """
        if not self._may_pay:
            return False
        self._may_pay = False
        gone = torch.cat(list(self.closed_for_good().values())).double()
        states = torch.stack([torch.ones_like(gone), 1.0 - gone])
        others = gone.new_zeros(2, self._cost.n_depth + self._cost.n_branches)
        now, then = self._cost(states, others)
        n_left = self.schedule.cuts - self._store.n_shrinks
        if self.param_groups[0]["frozen"]:
            return n_left >= 0 and bool((then <= _LEAST_LAST_GAIN * now).any())
        if n_left <= 0:
            return False
        self._follow_device(now.device)
        # Equal shares of the way that is left, the last of them when gates stand still.
        share = (self._limits / now).clamp(max=1.0) ** (1.0 / (n_left + 1))
        pays = then <= now * share.nan_to_num(posinf=1.0).clamp(max=_LEAST_GAIN)
        limited = self._limits.isfinite()
        return bool((pays & limited).any() if bool(limited.any()) else pays.any())

    def follow_model(self) -> None:
        """Go on with a model whose channels `shrink_` has cut out."""
        self._take_costs()
        sizes = self._store.choice.blueprint.group_sizes().to(self._least.device)
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

    def describe(self) -> dict[str, object]:
        """Return what each cost with a budget may be now, and the price; waits for the device.

        The price is what the next channel to go earned for what it costs, at the last decision.
        What is trained costs more than what `compact` would leave, until `shrink_` cuts it out.
        """
        limits = name_costs(self._limits_now(last=False), self._n_examples)
        trained = self._computed.items()
        path = {name: limit for name, limit in limits.items() if math.isfinite(limit)}
        price = self.state[self.param_groups[0]["params"][0]].get("price")
        return {
            "budget_path": path,
            "price": 0.0 if price is None else price.item(),
            "trained": {name: n / count_rows(name, self._n_examples) for name, n in trained},
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

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; numbers stay in the precision they were kept in."""
        super().load_state_dict(state_dict)
        for number, state in state_dict["state"].items():
            gate = self.param_groups[0]["params"][number]
            self.state[gate] = {k: v.to(gate.device, copy=True) for k, v in state.items()}
        self._begin_with(self.param_groups[0].get("start", self._start.tolist()))
        self._remember()

    def _decide_(self, *, last: bool) -> None:
        """Rank all gates, close or open as the budget says, and write the gates."""
        cost, schedule = self._cost, self.schedule
        n_width = cost.n_width
        opened, gone = self._state()
        self._follow_device(opened.device)
        limits = self._limits_now(last=last)
        earned = self._earned()
        earned[n_width:] /= torch.where(gone > 0, schedule.stay_linear, 1.0)
        if self._width_cost is None:
            prices = self._costs_of_gates(opened, gone, earned)
        else:
            prices = self._neurons(opened, gone)
        widths, branches = self._for_good()
        depths = torch.zeros_like(gone[: cost.n_depth], dtype=torch.bool)
        for_good = torch.cat([widths, depths, branches])
        earned.masked_fill_(for_good, -torch.inf)  # first to go, and never to come back
        prices.masked_fill_(for_good, 1.0)
        kept = torch.cat([opened > 0, gone == 0])
        ranking = rank_gates(earned, prices, kept, self._find_holds(last=last), schedule.stay)
        if self._width_cost is None:
            count = fit(ranking, cost, limits)
        else:
            count = (ranking.ratio < self._width_cost * self._done(last=last)).sum()
        is_open, is_gone = (state[0] for state in ranking.states(count[None], n_width))
        if last and self._width_cost is None:
            is_open = fill_up(earned[:n_width], is_open, is_gone, cost, limits)
        bound = torch.where(ranking.rank == count, ranking.ratio, 0.0).nan_to_num(posinf=0.0).amax()
        self.state[self.param_groups[0]["params"][0]]["price"] = bound
        self._count_closed_(torch.cat([is_open, 1.0 - is_gone[cost.n_depth :]]))
        stand = _stand(ranking.ratio, bound, torch.cat([is_open, 1.0 - is_gone]), last=last)
        widths, depths, branches = stand.tensor_split([n_width, n_width + cost.n_depth])
        self._write_(torch.cat([widths, 1.0 - depths, branches]))

    def _find_holds(self, *, last: bool) -> Holds:
        """Return what must stay: branches that are growing are not judged yet."""
        group = self._store.group_of_gate[: self._cost.n_width]
        branches = self._protected if last else self._protected | self._is_growing()
        branches = branches & ~self._for_good()[1]
        return Holds(group, self._least, self._inner, branches)

    def _is_growing(self) -> Tensor:
        """Return which branches have not been seen yet to have grown.

        A branch whose last norm or layer scale starts at zero adds nothing at first, and so earns
        nothing; what it will be worth is seen when it has grown.
        """
        if self.schedule.signal == "signed":
            return torch.zeros_like(self._protected)
        states = [self.state[gate] for gate in self._branches]
        growing = [
            state["grown"] == 0 if "grown" in state else torch.full_like(gate, "mean" in state) > 0
            for state, gate in zip(states, self._branches, strict=True)
        ]
        return torch.stack(growing) if growing else self._protected

    def _note_growth(self) -> None:
        """Take down which branches earn something, and not far more than in half the time.

        That is looked at from half of the time on before which no gate may close.
        """
        for gate in self._branches:
            state, mean = self.state[gate], self._mean_of(gate)
            if mean is None:
                continue
            if "later" in state and 2 * self.param_groups[0]["step"] >= self._begin:
                grown = ((mean > 0) & (mean <= _GROWTH * state["later"])).to(mean.dtype)
                state["grown"] = torch.maximum(grown, state.get("grown", grown))
            state["later"] = mean.clone()

    def _mean_of(self, gate: Tensor) -> Tensor | None:
        """Return the mean that is known of a gate, as if it had not begun at zero."""
        mean = self.state[gate].get("mean")
        weight = 1.0 - self.schedule.memory ** max(1, self.param_groups[0]["step"])
        return None if mean is None else mean / weight

    def _times_closed(self) -> Tensor:
        """Return at how many decisions in a row each gate of width or a branch has been closed."""
        gates = [*self.param_groups[0]["params"][: self._n_groups()], *self._branches]
        counts = [self.state[gate].get("closed") for gate in gates]
        found = [torch.zeros_like(g, dtype=torch.int32) if n is None else n
                 for g, n in zip(gates, counts, strict=True)]  # fmt: skip
        return torch.cat([count.reshape(-1) for count in (*found, self._store.rows[:0].int())])

    def _for_good(self) -> tuple[Tensor, Tensor]:
        """Return which width gates, and which branches, have been closed too long to open again."""
        widths, branches = (self._times_closed() == _FOR_GOOD).tensor_split([self._cost.n_width])
        return widths, branches

    def _count_closed_(self, is_open: Tensor) -> None:
        """Count at how many decisions in a row gates have been closed, until it is for good.

        The last few of each group that closed may always come back: what fits of the budget in the
        end is filled up with them.
        """
        gates = [*self.param_groups[0]["params"][: self._n_groups()], *self._branches]
        times, n_width = self._times_closed(), self._cost.n_width
        counts = torch.where(is_open > 0, 0, (times + 1).clamp(max=_FOR_GOOD - 1))
        group = self._store.group_of_gate[:n_width].long()
        recent = torch.where(counts > 0, counts, _FOR_GOOD)[:n_width]
        order = torch.argsort(group * (_FOR_GOOD + 1) + recent, stable=True)
        first = torch.searchsorted(group[order], group[order])
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=order.device) - first
        may_return = torch.zeros_like(counts, dtype=torch.bool)
        may_return[:n_width] = place < _RESERVE
        is_long = (counts >= self.schedule.patience) & ~may_return
        counts = torch.where(is_long | (times == _FOR_GOOD), _FOR_GOOD, counts)
        for gate, count in zip(gates, counts.split([g.numel() for g in gates]), strict=True):
            self.state[gate]["closed"] = count.view(gate.shape).clone()

    def _n_groups(self) -> int:
        return len(self.param_groups[0]["params"]) - self._cost.n_depth - self._cost.n_branches

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
        for name in ("_limits", "_start", "_least", "_units", "_inner", "_protected"):
            setattr(self, name, getattr(self, name).to(device))

    def _costs_of_gates(self, opened: Tensor, gone: Tensor, earned: Tensor) -> Tensor:
        """Return what the network would save without each channel, layer and branch.

        A layer or branch that would take the network below its budget is made to go last. A channel
        inside a closed branch costs what it would if the branch were open.
        """
        cost, n_width = self._cost, self._cost.n_width
        weights = self._weigh(cost(opened[None], gone[None])[0])
        prices = cost.marginal(opened, gone, weights)
        if cost.n_branches:
            depths = torch.cat([gone[: cost.n_depth], torch.zeros_like(gone[cost.n_depth :])])
            prices = torch.where(prices > 0, prices, cost.marginal(opened, depths, weights))
        if len(gone):
            there, without = cost.flipped(opened, gone)
            prices = torch.cat([prices, (there - without).mv(weights)])
            overshoots = ((without < self._limits) | self._limits.isinf()).all(1)
            earned[n_width:] *= torch.where(overshoots, _LAST_RESORT, 1.0)
        return torch.where(prices > 0, prices.abs() ** self.schedule.cost_power, prices)

    def _neurons(self, opened: Tensor, gone: Tensor) -> Tensor:
        """Return how many neurons go with each gate: what a price is paid for."""
        neurons = self._store.numbers("prices", torch.float64)[0, : self._cost.n_width]
        if not len(gone):
            return neurons
        there, without = self._cost.flipped(opened, gone)
        return torch.cat([neurons, self._units * (without[:, 0] < there[:, 0])])

    def _weigh(self, present: Tensor) -> Tensor:
        """Return how much each cost counts: the more, the further it is above its limit.

        A cost without a limit never counts. Where all are within their limits, they count alike.
        """
        excess = (present / self._limits - 1.0).clamp(min=0.0) / present
        alike = self._limits.isfinite() / present
        weights = torch.where(excess.sum() > 0, excess, alike)
        return weights / weights.sum()

    def _earned(self) -> Tensor:
        """Return what each gate earns: widths, then depths, then branches.

        A depth gate's gradient is a sum over the units of its layer, whose signs are at random:
        their number (its root, where sizes are counted) makes up for what cancels.
        """
        gates: list[Tensor] = self.param_groups[0]["params"]
        n_width, n_depth = self._cost.n_width, self._cost.n_depth
        depths = range(self._n_groups(), self._n_groups() + n_depth)
        if any("mean" in self.state[gate] for gate in gates):
            values = [self.state[g].get("mean", torch.zeros_like(g)) for g in gates]
        else:  # nothing was observed: gates speak for themselves
            values = [1 - g.detach() if i in depths else g.detach() for i, g in enumerate(gates)]
        earned = torch.cat([value.reshape(-1).double() for value in values])
        squares = self.schedule.signal == "square"
        units = self._units[:n_depth]
        earned[n_width : n_width + n_depth] *= units if squares else units.sqrt()
        discount = self.schedule.branch_discount
        earned[n_width + n_depth :] /= discount if squares else discount**0.5
        if self._width_cost is None:
            return earned
        earned /= 1.0 - self.schedule.memory ** max(1, self.param_groups[0]["step"])
        return earned.sqrt() if squares else earned  # a price is in units of the loss

    def _state(self) -> tuple[Tensor, Tensor]:
        """Return which width gates are open, and which layers and branches are gone now."""
        acting = torch.cat([gate.detach().reshape(-1) for gate in self._store()]).double()
        ends = [self._cost.n_width, self._cost.n_width + self._cost.n_depth]
        widths, depths, branches = acting.tensor_split(ends)
        return widths, torch.cat([depths, 1.0 - branches])

    def _write_(self, flat: Tensor) -> None:
        gates: list[Tensor] = self.param_groups[0]["params"]
        pieces = flat.split([gate.numel() for gate in gates])
        shaped = [piece.view(gate.shape) for piece, gate in zip(pieces, gates, strict=True)]
        torch._foreach_copy_(gates, shaped)
        self._remember()

    def _remember(self) -> None:
        """Remember the gates as they are, so that it is noticed when somebody else moves them."""
        gates: list[Tensor] = self.param_groups[0]["params"]
        self._written = [gate.detach().clone() for gate in gates]
        self._versions = [gate._version for gate in gates]
        self._n_loads = self._store.n_loads
        self._follow_branches_()

    def _follow_branches_(self) -> None:
        """Let what is known of gates inside closed branches stand still: no gradient gets there."""
        if not self._branches:
            return
        gates: list[Tensor] = self.param_groups[0]["params"]
        device, number_format = gates[0].device, torch.promote_types(gates[0].dtype, torch.float32)
        closed = torch.stack([gate.detach() < THRESHOLD for gate in self._branches])
        hidden = (closed[:, None] & self._inside.to(device)).any(0)
        rates = (1.0 - self.schedule.memory) * ~hidden[self._parameter_of_gate.to(device)]
        if self._rates is None or self._rates.device != device:
            self._rates = rates.to(number_format)
        else:
            self._rates.copy_(rates)  # in place, for a CUDA graph may hold it

    def _put_back_(self) -> None:
        """Undo what another optimiser did to the gates; what a checkpoint did stays."""
        gates: list[Tensor] = self.param_groups[0]["params"]
        if self._n_loads != self._store.n_loads:
            self._remember()
        if [gate._version for gate in gates] == self._versions:
            return
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "gates were moved by something else than the GateOptimizer, and are put back: give "
                "the other optimiser archlearn.weights(model), not model.parameters()",
                stacklevel=4,
            )
        torch._foreach_copy_(gates, self._written)
        self._versions = [gate._version for gate in gates]


def _stand(ratio: Tensor, bound: Tensor, is_kept: Tensor, *, last: bool) -> Tensor:
    """Return numbers that say how far each gate is from the price; at the end, 0 or 1."""
    if last:
        return is_kept
    away = (ratio / bound).log2().abs().nan_to_num(nan=_DOUBLINGS, posinf=_DOUBLINGS)
    away = _MARGIN + (0.5 - _MARGIN) * (away / _DOUBLINGS).clamp(max=1.0)
    return 0.5 + (2.0 * is_kept - 1.0) * away


def _count_units(choice: LearnableSites) -> Tensor:
    """Return the neurons of each layer that may become linear, then those inside each branch."""
    rows = dict(choice.rows)
    counts = [len(rows[link.first]) for link in choice.links.values()]
    for branch in choice.branches.values():
        counts.append(sum(len(rows[layer]) for layer in branch.layers if layer in rows))
    return torch.tensor(counts, dtype=torch.float64)


def _find_protected(choice: LearnableSites, protect: Iterable[str]) -> Tensor:
    """Return which branches must stay: those with a protected layer, or protected by name."""
    patterns = [protect] if isinstance(protect, str) else list(protect)
    held = [
        any(fnmatch.fnmatch(name, p) for name in (branch.name, *branch.layers) for p in patterns)
        for branch in choice.branches.values()
    ]
    return torch.tensor(held, dtype=torch.bool)


def _find_inside(choice: LearnableSites, inner: Tensor) -> Tensor:
    """Return for each branch which groups, depth gates and branch gates are inside it."""
    gone = [
        choice.removals.gone_tensors(frozenset({place})) for place in range(len(choice.branches))
    ]
    calls = [
        choice.removals.gone_calls(0, frozenset({place})) for place in range(len(choice.branches))
    ]
    links = [[f"{link.first}.weight" in each for link in choice.links.values()] for each in gone]
    additions = [branch.additions[0].node for branch in choice.branches.values()]
    nested = [[node in each for node in additions] for each in calls]
    n_branches = len(choice.branches)
    return torch.cat(
        [
            inner,
            torch.tensor(links, dtype=torch.bool).view(n_branches, len(choice.links)),
            torch.tensor(nested, dtype=torch.bool).view(n_branches, n_branches),
        ],
        1,
    )


def find_gated(model: nn.Module) -> nn.Module:
    """Return the part of a model that `add_gates` made.

    Raises:
        InputError: If there is not just one, or its gates are drawn at random.
    """
    found = [module for module in unwrap(model).modules() if STORE in module._modules]
    if len(found) != 1:
        raise InputError(
            f"the model has {len(found)} sets of gates from add_gates; GateOptimizer learns those "
            "of one. Call add_gates on it, or on one part of it; for TriState placed by hand use "
            "parameter_groups and penalty"
        )
    store: Any = getattr(found[0], STORE)
    if store.kind != "binary":
        raise InputError(
            f"gates of the kind {store.kind!r} are drawn at random and learn by penalty; leave "
            "kind out in add_gates to learn by GateOptimizer"
        )
    return found[0]


def _check(
    total_steps: Any, budget: Any, width_cost: Any, least_width: Any, largest_cut: Any
) -> None:
    if not lies_in(total_steps, 1, math.inf) or total_steps != int(total_steps):
        raise InputError(f"total_steps is {total_steps!r}; give the number of steps of the run")
    if budget is not None and width_cost is not None:
        raise InputError("give a budget or a width_cost, not both: each says when to stop closing")
    if width_cost is not None and not lies_in(width_cost, 0, math.inf):
        raise InputError(f"width_cost is {width_cost!r}; a price is a number from 0 on")
    if not lies_in(least_width, 1, math.inf) or least_width != int(least_width):
        raise InputError(f"least_width is {least_width!r}; a layer keeps 1 channel or more")
    if not lies_in(largest_cut, 0, 1):
        raise InputError(f"largest_cut is {largest_cut!r}; give a part between 0 and 1")


def _least_widths(
    store: GateContainer, protect: Iterable[str], least_width: int, largest_cut: float
) -> Tensor:
    """Return how many gates of each group must stay open.

    Raises:
        InputError: If a protected layer is not there.
    """
    blueprint = store.choice.blueprint
    sizes = blueprint.group_sizes()
    least = torch.ceil(sizes * (1.0 - largest_cut) - 1e-9).long().clamp(min=least_width)
    least = torch.maximum(least, torch.tensor([group.least for group in blueprint.groups]).long())
    for pattern in [protect] if isinstance(protect, str) else protect:
        rows = [ids for name, ids in store.choice.rows if fnmatch.fnmatch(name, pattern)]
        held = [blueprint.count_by_group(channels) > 0 for channels in rows]
        held += [torch.tensor([fnmatch.fnmatch(g.name, pattern) for g in blueprint.groups])]
        is_branch = any(fnmatch.fnmatch(name, pattern) for name in store.choice.branches)
        if not is_branch and not bool(torch.stack(held).any()):
            known = ", ".join(name for name, _ in store.choice.rows)
            raise InputError(
                f"protect names {pattern!r}, but no layer is called so; there are {known}"
            )
        least = torch.where(torch.stack(held).any(0), sizes, least)
    return torch.minimum(least, sizes)
