"""The cost of the compact network as a function of the open gates, computed on the device.

It equals what `plan` foretells, weight by weight: narrowed parameters, biases that constants make
new, activations that go, layers that merge, and branches that are left out with all that only they
need. Nothing is read back, so no device is waited for.
"""

import torch
from torch import Tensor, nn

from archlearn.gating.penalty_prices import COSTS, LATENCY, unit_of
from archlearn.gating.selection import LearnableSites
from archlearn.nn.functional import can_read
from archlearn.optim.cost_terms import CostTerms
from archlearn.optim.latency import LatencyTable
from archlearn.optim.merge_costs import add_up, merge_savings, merge_tables

Named = dict[str, float]


class CostFunction:
    """Parameters and multiply-adds (one run on the example inputs) for any state of the gates.

    With a table of measured times also the latency, in nanoseconds. It is the sum over the calls of
    the compact network; where layers merge it is estimated.

    Attributes:
        names: The costs.
        time_scale: What latencies are multiplied by: how far the table is off.
        n_width: The number of width gates.
        n_depth: The number of depth gates.
        n_branches: The number of branch gates.
        group: The group of each width gate.
    """

    def __init__(
        self, model: nn.Module, choice: LearnableSites, latency: LatencyTable | None = None
    ) -> None:
        """Take down what each gate touches.

        Args:
            model: The gated model.
            choice: What is learnt in it.
            latency: What its calls take, if that is asked for.
        """
        self.names: tuple[str, ...] = COSTS if latency is None else (*COSTS, LATENCY)
        self.time_scale = 1.0
        self.n_depth, self.n_branches = len(choice.links), len(choice.branches)
        self.n_width = sum(len(group.channels) for group in choice.blueprint.groups)
        sizes = choice.blueprint.group_sizes()
        self._least = torch.tensor([g.least for g in choice.blueprint.groups], dtype=torch.long)
        self.group = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        self._tables: dict[torch.device, dict[str, Tensor]] = {}
        terms = CostTerms(model, choice, None if latency is None else latency.calls)
        merges = merge_tables(terms) if choice.links else {}
        self._own = terms.tables() | merges
        self._n_presences = int(self._own.pop("n_presences"))

    def __call__(self, is_open: Tensor, is_gone: Tensor) -> Tensor:
        """Return the costs of several states of the gates, `(states, costs)`, in double precision.

        The gradient with respect to an open width gate is what its channel costs.

        Args:
            is_open: For each state, 1 where a width gate is open; a group has at least one.
            is_gone: For each state, 1 where a depth gate makes its layer linear, and behind those
                where a branch is closed.
        """
        t = self._tables_on(is_open.device)
        is_linear, is_closed = is_gone.tensor_split([self.n_depth], 1)
        present = self._present(t, is_closed)
        opened = torch.cat([is_open, is_open.new_ones(len(is_open), 1)], 1)
        kept = opened[:, t["slice_gate"]] * t["slice_count"]
        kept = add_up(kept, t["slice_of_gate"], len(t["dim_of_slice"]))
        kept = torch.where(t["slice_is_single"], kept, kept.clamp(max=1.0))
        dims = add_up(kept, t["dim_of_slice"], len(t["full"]))
        dims = torch.cat([dims, t["constants"].expand(len(dims), -1)], 1)
        gone = add_up(1.0 - opened[:, t["fold_gate"]], t["fold_layer"], len(t["fold_out"])) > 0
        new_bias = gone * present[:, t["fold_presence"]]
        sizes = dims[:, t["entry_dims"]].prod(-1) * present[:, t["entry_presence"]]
        costs = t["fixed"] + sizes @ t["entry_weights"]
        parameters = (new_bias * dims[:, t["fold_out"]]).sum(1)
        parameters = parameters - self._left_out(t, sizes, is_linear, present)
        touched, saved = self._computed(t, dims, new_bias)
        saved = saved * present[:, t["computed_presence"]]
        parameters = parameters + (saved * touched).sum(1)
        changes = torch.stack([parameters, torch.zeros_like(parameters)], 1)
        if "seg_in" in t and not (can_read(is_linear) and not is_linear.any()):
            is_linear = is_linear * present[:, t["link_presence"]]  # what is gone does not merge
            changes = changes + merge_savings(t, dims, new_bias, is_linear, saved * ~touched)
        if LATENCY not in self.names:
            return costs + changes
        times = (opened @ t["gate_times"].T * present[:, t["gate_times_presence"]]).sum(1)
        times = (costs[:, -1] + times + t["merge_time"] * changes[:, 1]) * self.time_scale
        return torch.cat([costs[:, :-1] + changes, times[:, None]], 1)

    def extremes(self, least_widths: Tensor | None = None) -> tuple[Named, Named]:
        """Return the costs with all gates open, and those of the smallest network there can be.

        Args:
            least_widths: How many gates of each group must stay open; left out, one, or
                two where a norm reads them.
        """
        sizes = self.group.bincount()
        if least_widths is None:
            least_widths = self._least
        place = torch.arange(len(self.group)) - (sizes.cumsum(0) - sizes)[self.group]
        opened = torch.stack([place >= 0, place < least_widths[self.group]]).double()
        n_others = self.n_depth + self.n_branches
        gone = torch.stack([torch.zeros(n_others), torch.ones(n_others)]).double()
        start, least = self(opened, gone)
        return name_costs(start), name_costs(least)

    def marginal(self, is_open: Tensor, is_gone: Tensor, weights: Tensor) -> Tensor:
        """Return what one channel of each width gate costs now, all costs weighed together."""
        with torch.enable_grad():
            opened = is_open.detach().clone().requires_grad_()
            total = self(opened[None], is_gone[None]).mv(weights).sum()
            return torch.autograd.grad(total, opened)[0]

    def flipped(self, is_open: Tensor, is_gone: Tensor) -> tuple[Tensor, Tensor]:
        """Return the costs with each layer or branch there and gone, the others as they are."""
        now = is_gone.expand(len(is_gone), -1)
        eye = torch.eye(len(is_gone), dtype=now.dtype, device=now.device)
        both = torch.cat([now * (1 - eye), torch.maximum(now, eye)])
        costs = self(is_open.expand(len(both), -1), both)
        return costs[: len(is_gone)], costs[len(is_gone) :]

    def _tables_on(self, device: torch.device) -> dict[str, Tensor]:
        if device not in self._tables:
            self._tables[device] = {name: t.to(device) for name, t in self._own.items()}
        return self._tables[device]

    def _present(self, t: dict[str, Tensor], is_closed: Tensor) -> Tensor:
        """Return 1 for what is still there, for each kind of things that go with the same branches.

        The first kind is always there.
        """
        is_whole = is_closed @ t["set_branches"].T == t["set_branches"].sum(1)
        counts = add_up(is_whole.to(is_closed.dtype), t["set_presence"], self._n_presences)
        return (counts == 0).to(is_closed.dtype)

    def _left_out(
        self, t: dict[str, Tensor], sizes: Tensor, is_linear: Tensor, present: Tensor
    ) -> Tensor:
        """Return the parameters of activations all of whose calls have become linear, or are gone.

        The sizes of those that are gone themselves are 0.
        """
        if not len(t["left_entry"]):
            return sizes.new_zeros(len(sizes))
        idle = torch.maximum(is_linear[:, t["left_site"]], 1.0 - present[:, t["left_presence"]])
        counts = add_up(idle, t["left_of_site"], len(t["left_entry"]))
        is_gone = counts == t["left_calls"]
        return (sizes[:, t["left_entry"]] * is_gone).sum(1)

    def _computed(
        self, t: dict[str, Tensor], dims: Tensor, new_bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return which layers with computed weights (weight_norm) change, and what that saves."""
        n_owners = len(t["computed_before"])
        if not n_owners:
            nothing = dims.new_zeros(len(dims), 0)
            return nothing > 0, nothing
        n_tied = len(t["full"])
        lost = t["full"][t["touch_dim"]] - dims[:, :n_tied][:, t["touch_dim"]]
        touched = add_up(lost, t["touch_owner"], n_owners)
        touched = touched + add_up(new_bias[:, t["fold_touch"]], t["fold_owner"], n_owners)
        plain = dims[:, t["computed_dims"]].prod(-1) * t["computed_rest"]
        plain = add_up(plain, t["computed_owner"], n_owners)
        return touched > 0, plain - t["computed_before"]


def name_costs(costs: Tensor, n_examples: int | None = None) -> Named:
    """Return costs of a run on the example inputs by name; waits for the device.

    With the number of examples as they are told: multiply-adds of one, latency in milliseconds.
    """
    named: Named = dict(zip((*COSTS, LATENCY), costs.tolist(), strict=False))
    if n_examples is None:
        return named
    return {name: cost / unit_of(name, n_examples) for name, cost in named.items()}
