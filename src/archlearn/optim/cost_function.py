"""The cost of the compact network as a function of the open gates, computed on the device.

It equals what `plan` foretells, weight by weight: narrowed parameters, biases that constants make
new, activations that go, layers that merge, and branches that are left out with all that only they
need. Nothing is read back, so no device is waited for.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from archlearn.analysis.mergeable_layers import MergeablePair
from archlearn.costs import COSTS, LATENCY, combine_costs, unit_of
from archlearn.gating.selection import LearnableSites
from archlearn.module_utils import evaluating, find_module
from archlearn.nn.functional import is_concrete
from archlearn.optim.cost_terms import CostTerms, as_indices, as_numbers
from archlearn.optim.latency import LatencyTable
from archlearn.surgery.merging import chain_links, count_bare, count_layer, layers_of, merged_kernel

_IMPOSSIBLE = 2.0**50
"""What an impossible merge costs; sums of it stay exact in double precision."""


def merge_savings(
    t: dict[str, Tensor],
    dims: Tensor,
    new_bias: Tensor,
    is_linear: Tensor,
    made_plain: Tensor,
) -> Tensor:
    """Return by how much merging changes parameters and multiply-adds: the best of partitions.

    `made_plain` is what a merge saves beside by making the computed weights of a layer plain.
    """
    padded = torch.cat([new_bias, new_bias.new_zeros(len(dims), 1)], 1)
    bias = torch.maximum(t["layer_bias"], padded[:, t["layer_fold"]])
    n_out = dims[:, t["layer_out"]]
    norms = dims[:, t["norm_dims"]] if len(t["norm_dims"]) else dims[:, :0]
    norms = add_up(norms, t["norm_link"], len(t["link_site"]))
    known = t["layer_kernel"], bias, t["layer_applied"] * dims[:, t["layer_beside"]]
    apart = torch.stack(count_layer(dims[:, t["layer_in"]], n_out, *known), -1)
    inside = torch.stack([norms, torch.zeros_like(norms)], -1)
    old = _between(apart, t["seg_first"], t["seg_last"])
    old = old + _between(inside, t["seg_first"], t["seg_last"] - 1)
    has_bias = _between(bias[..., None], t["seg_first"], t["seg_last"])[..., 0] > 0
    has_bias = has_bias | t["seg_has_norm"]
    known = t["seg_kernel"], has_bias, t["seg_applied"] * dims[:, t["seg_beside"]]
    whole = count_layer(dims[:, t["seg_in"]], dims[:, t["seg_out"]], *known)
    change = torch.stack(whole, -1) - old
    straight = is_linear[:, t["link_site"]]
    broken = _between(1.0 - straight[..., None], t["seg_first"], t["seg_last"] - 1)[..., 0] > 0
    barred = _between(padded[:, t["layer_fold"]][..., None], t["seg_first"], t["seg_bare"])
    raises = (torch.stack(combine_costs(*change.unbind(-1)), -1) > 0).any(-1)
    impossible = broken | (barred[..., 0] > 0) | raises
    change = torch.where(impossible[..., None], _IMPOSSIBLE, change)
    beside = torch.cat([made_plain, made_plain.new_zeros(len(dims), 1)], 1)
    beside = beside[:, t["layer_computed"]][..., None]
    change = torch.cat([change, _between(beside, t["seg_first"], t["seg_last"])], -1)
    best = _best_partition(change, t["seg_table"])
    return torch.stack([best[:, 0] + best[:, 2], best[:, 1]], 1)


def _best_partition(change: Tensor, table: Tensor) -> Tensor:
    """Return the least change of costs over all ways to cut each chain into segments.

    The number of parameters decides, then fewer merges, as in `plan_merges`.

    Args:
        change: What each segment changes, `(states, segments, 3)`; the first number decides.
        table: The segment of each end, chain and start: a place in `change`, one behind its end
            for a single layer, two behind for none.
    """
    single, none = change.new_zeros(1, 3), change.new_full((1, 3), _IMPOSSIBLE)
    extra = torch.cat([single, none])[None].expand(len(change), -1, -1)
    change = torch.cat([change, extra], 1)
    # Of equal costs the partition with more segments: a merge must lower the cost.
    key = change[..., 0] * 1024.0 - 1.0
    n_chains = table.shape[1]
    keys = [change.new_zeros(len(change), n_chains)]
    totals = [change.new_zeros(len(change), n_chains, 3)]
    for end in range(len(table)):
        segments = table[end, :, : end + 1]
        options = torch.stack(keys, -1) + key[:, segments]
        best, place = options.min(-1)
        reached = torch.stack(totals, 2) + change[:, segments]
        keys.append(best)
        totals.append(reached.gather(2, place[..., None, None].expand(-1, -1, 1, 3))[:, :, 0])
    return totals[-1].sum(1)


def _between(values: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Return the sums of `values[:, first:last + 1]` for several first and last places."""
    start = values.new_zeros(len(values), 1, values.shape[-1])
    sums = torch.cat([start, values.cumsum(1)], 1)
    return sums[:, last + 1] - sums[:, first]


def add_up(values: Tensor, places: Tensor, size: int) -> Tensor:
    """Return the sums of the columns of `values` that have the same place."""
    return values.new_zeros(len(values), size).index_add(1, places, values)


class _Segment(NamedTuple):
    """Layers of a chain that may become one; places count layers of all chains."""

    first: int
    last: int
    layers: tuple[str, ...]
    kernel: float
    has_norm: bool
    bare: int
    """Up to here no layer may get a bias, or the merge would not be exact."""


def merge_tables(terms: CostTerms) -> dict[str, Tensor]:
    """Return every run of layers that may become one, and what it would cost, as tables."""
    chains = chain_links(list(terms.choice.links.values()))
    site_of = {site: place for place, site in enumerate(terms.choice.links)}
    links = [link for chain in chains for link in (*chain, None)]
    layers = [name for chain in chains for name in layers_of(chain)]
    segments, table = _find_segments(terms, chains)
    none = len(terms.fold_layers)
    modules: list[Any] = [find_module(terms.model, name) for name in layers]
    norms = [
        (terms.slot(f"{norm}.{key}", 0), place)
        for place, link in enumerate(links)
        if link is not None
        for norm in link.norms
        for key, _ in find_module(terms.model, norm).named_parameters()
    ]
    norm_table = torch.tensor(norms, dtype=torch.long).view(-1, 2)
    slot = terms.slot
    applied = {name: terms.applied(name) for name in layers}
    firsts = [link.first for link in terms.choice.links.values()]
    return {
        "norm_dims": norm_table[:, 0],
        "norm_link": norm_table[:, 1],
        "link_presence": as_indices(
            [terms.presence_of_tensor(f"{name}.weight") for name in firsts]
        ),
        "layer_bias": as_numbers([getattr(m, "bias", None) is not None for m in modules]),
        "layer_computed": as_indices([terms.computed_owner.get(name, -1) for name in layers]),
        "layer_fold": torch.tensor([terms.fold_layers.get(name, none) for name in layers]),
        "layer_in": torch.tensor([slot(f"{name}.weight", 1) for name in layers]),
        "layer_out": torch.tensor([slot(f"{name}.weight", 0) for name in layers]),
        "layer_kernel": as_numbers(
            [math.prod(merged_kernel((name,), terms.sizes)) for name in layers]
        ),
        "layer_beside": as_indices([applied[name][0] for name in layers]),
        "layer_applied": as_numbers([applied[name][1] for name in layers]),
        "link_site": torch.tensor([site_of[link.site] if link else 0 for link in links]),
        "seg_first": as_indices([s.first for s in segments]),
        "seg_last": as_indices([s.last for s in segments]),
        "seg_bare": as_indices([s.bare for s in segments]),
        "seg_in": as_indices([slot(f"{s.layers[0]}.weight", 1) for s in segments]),
        "seg_out": as_indices([slot(f"{s.layers[-1]}.weight", 0) for s in segments]),
        "seg_kernel": as_numbers([s.kernel for s in segments]),
        "seg_beside": as_indices([applied[s.layers[-1]][0] for s in segments]),
        "seg_applied": as_numbers([applied[s.layers[-1]][1] for s in segments]),
        "seg_has_norm": torch.tensor([s.has_norm for s in segments], dtype=torch.bool),
        "seg_table": table,
    }


def _find_segments(
    terms: CostTerms, chains: list[list[MergeablePair]]
) -> tuple[list[_Segment], Tensor]:
    """Return all segments, and which one each end, chain and start has (`_best_partition`)."""
    segments: list[_Segment] = []
    longest = max(len(chain) for chain in chains) + 1
    table = torch.full((longest, len(chains), longest), -1)
    start = 0
    for number, chain in enumerate(chains):
        for end in range(longest):
            # A chain that is shorter than the longest goes on with layers that are not there.
            table[end, number, end] = -2
        for last in range(1, len(chain) + 1):
            for first in range(last):
                segment = _find_segment(terms, chain, first, last, start)
                if segment is not None:
                    table[last, number, first] = len(segments)
                    segments.append(segment)
        start += len(chain) + 1
    n = len(segments)
    return segments, torch.where(table == -2, n, torch.where(table == -1, n + 1, table))


def _find_segment(
    terms: CostTerms, chain: list[MergeablePair], first: int, last: int, start: int
) -> _Segment | None:
    """Return the segment of these layers, or None if merging them is never exact."""
    layers = tuple(layers_of(chain)[first : last + 1])
    inside = chain[first:last]
    n_bare = count_bare(layers, inside, terms.sizes)
    modules: list[Any] = [find_module(terms.model, layer) for layer in layers[:n_bare]]
    if n_bare is None or any(module.bias is not None for module in modules):
        return None
    kernel = float(math.prod(merged_kernel(layers, terms.sizes)))
    has_norm = any(link.norms for link in inside)
    return _Segment(
        start + first, start + last, layers, kernel, has_norm, start + first + n_bare - 1
    )


Named = dict[str, float]


class CostFunction:
    """All costs (of one run on the example inputs) for any state of the gates.

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
        with evaluating(model):  # in training, to read a weight under spectral_norm moves buffers
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
        opened = torch.cat([opened, opened[:, t["pairs"][0]] * opened[:, t["pairs"][1]]], 1)
        kept = opened[:, t["slice_gate"]] * t["slice_count"]
        kept = add_up(kept, t["slice_of_gate"], len(t["dim_of_slice"]))
        kept = torch.where(t["slice_is_single"], kept, kept.clamp(max=1.0))
        dims = add_up(kept, t["dim_of_slice"], len(t["full"]))
        dims = torch.cat([dims, t["constants"].expand(len(dims), -1)], 1)
        gone = add_up(1.0 - opened[:, t["fold_gate"]], t["fold_layer"], len(t["fold_out"])) > 0
        new_bias = gone * present[:, t["fold_presence"]]
        sizes = dims[:, t["entry_dims"]].prod(-1) * present[:, t["entry_presence"]]
        counts = t["fixed"] + sizes @ t["entry_weights"]
        parameters = (new_bias * dims[:, t["fold_out"]]).sum(1)
        parameters = parameters - self._left_out(t, sizes, is_linear, present)
        touched, saved = self._computed(t, dims, new_bias)
        saved = saved * present[:, t["computed_presence"]]
        parameters = parameters + (saved * touched).sum(1)
        changes = torch.stack([parameters, torch.zeros_like(parameters)], 1)
        if "seg_in" in t and not (is_concrete(is_linear) and not is_linear.any()):
            is_linear = is_linear * present[:, t["link_presence"]]  # what is gone does not merge
            changes = changes + merge_savings(t, dims, new_bias, is_linear, saved * ~touched)
        costs = torch.stack(combine_costs(*(counts[:, :2] + changes).unbind(1)), 1)
        if LATENCY not in self.names:
            return costs
        times = (opened @ t["gate_times"].T * present[:, t["gate_times_presence"]]).sum(1)
        times = (counts[:, 2] + times + t["merge_time"] * changes[:, 1]) * self.time_scale
        return torch.cat([costs, times[:, None]], 1)

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
