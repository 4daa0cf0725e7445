"""The cost of the compact network as a function of the open gates, computed on the device.

It equals what `plan` foretells, weight by weight: narrowed parameters, biases that constants make
new, layers that merge, and branches that are left out with all that only they need. Nothing is
read back, so no device is waited for.
"""

import functools
import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlearn.analysis.mergeable_layers import MergeablePair
from archlearn.costs import COSTS, LATENCY, combine_costs, unit_of
from archlearn.gating.selection import LearnableSites
from archlearn.module_utils import evaluating, find_module
from archlearn.optim.cost_terms import CostTerms, as_indices, as_numbers
from archlearn.optim.latency import LatencyTable
from archlearn.surgery.merging import chain_pairs, count_bare, count_layer, layers_of, merged_kernel

_IMPOSSIBLE = 2.0**50
"""What an impossible merge costs; sums of it stay exact in double precision."""


def merge_savings(
    t: dict[str, Tensor],
    dims: Tensor,
    new_bias: Tensor,
    is_linear: Tensor,
    made_plain: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return by how much merging changes parameters and multiply-adds: the best of partitions.

    `made_plain` is what a merge saves beside by making the computed weights of a layer plain.
    """
    bias, of_segment = t["layer_bias"].expand(len(dims), -1), t["layers_of_segment"]
    # All between the layers must be linear, and none of the bare ones may get a bias.
    bars = (1.0 - is_linear[:, t["pair_site"]]) @ t["links_of_segment"]
    if new_bias.shape[1]:
        folded = F.pad(new_bias, (0, 1))[:, t["layer_fold"]]
        bias = torch.maximum(bias, folded)
        bars = bars + folded @ t["bare_of_segment"]
    has_bias = torch.addmm(t["seg_has_norm"], bias, of_segment) > 0
    n_in, n_out, n_beside = dims[:, t["apart_and_whole"]].unbind(1)
    shapes = t["kernels"], torch.cat([bias, has_bias], 1), t["applied"] * n_beside
    counts = torch.stack(count_layer(n_in, n_out, *shapes), 1)
    apart, whole = counts.tensor_split([len(of_segment)], 2)
    change = whole - apart @ of_segment
    if len(t["norm_dims"]):
        change[:, 0] -= dims[:, t["norm_dims"]] @ t["norms_of_segment"]
    raises = (torch.stack(combine_costs(*change.unbind(1)), 1) > 0).any(1)
    change = change.masked_fill(((bars > 0) | raises)[:, None], _IMPOSSIBLE)
    if made_plain.shape[1]:
        plain = F.pad(made_plain, (0, 1))[:, t["layer_computed"]] @ of_segment
        change = torch.cat([change, plain[:, None]], 1)
    best = _best_partition(change, t["seg_table"])
    parameters, multiply_adds, *plain = best.unbind(1)
    return sum(plain, parameters), multiply_adds


def _best_partition(change: Tensor, table: Tensor) -> Tensor:
    """Return the least change of costs over all ways to cut each chain into segments.

    The number of parameters decides, then fewer merges, as in `plan_merges`.

    Args:
        change: What each segment changes, `(states, numbers, segments)`; the first number decides.
        table: The segment of each end, chain and start: a place in `change`, one behind its end
            for a single layer, two behind for none.
    """
    change = F.pad(F.pad(change, (0, 1)), (0, 1), value=_IMPOSSIBLE)
    # Of equal costs the partition with more segments: a merge must lower the cost.
    change = torch.cat([change[:, :1] * 1024.0 - 1.0, change], 1)
    first = change[:, :, table[0, :, 0]]
    totals = [torch.zeros_like(first), first]
    for end in range(1, len(table)):
        reached = torch.stack(totals, -1) + change[:, :, table[end, :, : end + 1]]
        best = reached[:, :1].argmin(-1, keepdim=True)
        totals.append(reached.take_along_dim(best, -1)[..., 0])
    return totals[-1][:, 1:].sum(-1)


def flip_each(is_gone: Tensor) -> Tensor:
    """Return a state for each layer or branch: it there if it is gone, or gone if it is there."""
    eye = torch.eye(len(is_gone), dtype=is_gone.dtype, device=is_gone.device)
    return (is_gone - eye).abs()


def add_up(values: Tensor, places: Tensor, size: int) -> Tensor:
    """Return the sums of the columns of `values` that have the same place."""
    return values.new_zeros(len(values), size).index_add(1, places, values)


class _Segment(NamedTuple):
    """Layers of a chain that may become one; places count layers of all chains."""

    first: int
    last: int
    layers: tuple[str, ...]
    has_norm: bool
    bare: int
    """Up to here no layer may get a bias, or the merge would not be exact."""


def merge_tables(terms: CostTerms) -> dict[str, Tensor]:
    """Return every run of layers that may become one, and what it would cost, as tables."""
    chains = chain_pairs(list(terms.learnable.mergeable.values()))
    site_of = {site: index for index, site in enumerate(terms.learnable.mergeable)}
    mergeable = [pair for chain in chains for pair in (*chain, None)]
    layers = [name for chain in chains for name in layers_of(chain)]
    segments, table = _find_segments(terms, chains)
    none = len(terms.fold_layers)
    modules: list[Any] = [find_module(terms.model, name) for name in layers]
    norms = [
        (terms.slot(f"{norm}.{key}", 0), index)
        for index, pair in enumerate(mergeable)
        if pair is not None
        for norm in pair.norms
        for key, _ in find_module(terms.model, norm).named_parameters()
    ]
    norm_table = torch.tensor(norms, dtype=torch.long, device="cpu").view(-1, 2)
    runs = [*((name,) for name in layers), *(segment.layers for segment in segments)]
    slot = terms.slot
    applied = {name: terms.applied(name) for name in layers}
    firsts = [pair.first for pair in terms.learnable.mergeable.values()]
    position = torch.arange(len(layers), device="cpu")[:, None]
    first = as_indices([s.first for s in segments])
    last, bare = as_indices([s.last for s in segments]), as_indices([s.bare for s in segments])
    is_inside = (first <= position) & (position < last)
    return {
        "norm_dims": norm_table[:, 0],
        "norms_of_segment": is_inside[norm_table[:, 1]].double(),
        "pair_presence": as_indices(
            [terms.presence_of_tensor(f"{name}.weight") for name in firsts]
        ),
        "layer_bias": as_numbers([getattr(m, "bias", None) is not None for m in modules]),
        "layer_computed": as_indices([terms.computed_owner.get(name, -1) for name in layers]),
        "layer_fold": as_indices([terms.fold_layers.get(name, none) for name in layers]),
        "apart_and_whole": as_indices(
            [
                [slot(f"{names[0]}.weight", 1) for names in runs],
                [slot(f"{names[-1]}.weight", 0) for names in runs],
                [applied[names[-1]][0] for names in runs],
            ]
        ),
        "kernels": as_numbers([math.prod(merged_kernel(names, terms.sizes)) for names in runs]),
        "applied": as_numbers([applied[names[-1]][1] for names in runs]),
        "pair_site": as_indices([site_of[pair.site] if pair else 0 for pair in mergeable]),
        "layers_of_segment": ((first <= position) & (position <= last)).double(),
        "links_of_segment": is_inside.double(),
        "bare_of_segment": ((first <= position) & (position <= bare)).double(),
        "seg_has_norm": as_numbers([s.has_norm for s in segments]),
        "seg_table": table,
    }


def _find_segments(
    terms: CostTerms, chains: list[list[MergeablePair]]
) -> tuple[list[_Segment], Tensor]:
    """Return all segments, and which one each end, chain and start has (`_best_partition`)."""
    segments: list[_Segment] = []
    longest = max(len(chain) for chain in chains) + 1
    table = torch.full((longest, len(chains), longest), -1, device="cpu")
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
    has_norm = any(pair.norms for pair in inside)
    return _Segment(start + first, start + last, layers, has_norm, start + first + n_bare - 1)


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
        self, model: nn.Module, learnable: LearnableSites, latency: LatencyTable | None = None
    ) -> None:
        self.names: tuple[str, ...] = COSTS if latency is None else (*COSTS, LATENCY)
        self.time_scale = 1.0
        self.n_depth, self.n_branches = len(learnable.mergeable), len(learnable.branches)
        self.n_width = sum(len(group.channels) for group in learnable.channel_graph.groups)
        sizes = learnable.channel_graph.group_sizes()
        self._least = torch.tensor(
            [g.least for g in learnable.channel_graph.groups], dtype=torch.long, device="cpu"
        )
        self.group = torch.repeat_interleave(torch.arange(len(sizes), device="cpu"), sizes)
        self._tables: dict[torch.device, dict[str, Tensor]] = {}
        with evaluating(model):  # in training, to read a weight under spectral_norm moves buffers
            terms = CostTerms(model, learnable, None if latency is None else latency.calls)
            merges = merge_tables(terms) if learnable.mergeable else {}
            self._own = terms.tables() | merges

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
        n_sizes, n_folds = len(t["most"]), len(t["fold_full"])
        kept, unfolded, times = (self._count_kinds(t, is_open) @ t["columns"]).tensor_split(
            [n_sizes, n_sizes + n_folds], 1
        )
        dims = torch.addmm(t["constants"], kept.clamp(max=t["most"]), t["dims"])
        present = self._present(t, is_closed)
        new_bias = made_plain = present[:, :0]
        if n_folds:
            new_bias = (unfolded < t["fold_full"]) * present[:, t["fold_presence"]]
        factors = torch.cat([dims, present, new_bias], 1)
        sizes = functools.reduce(torch.mul, factors[:, t["entries"]].unbind(1))
        counts = torch.addmm(t["fixed"], sizes, t["entry_weights"])
        parameters, multiply_adds, *others = counts.unbind(1)
        if len(t["computed_before"]):
            touched, saved = self._computed(t, dims, new_bias)
            saved = saved * present[:, t["computed_presence"]]
            parameters, made_plain = parameters + (saved * touched).sum(1), saved * ~touched
        merged = multiply_adds
        if "seg_table" in t:
            is_linear = is_linear * present[:, t["pair_presence"]]  # what is gone does not merge
            changes = merge_savings(t, dims, new_bias, is_linear, made_plain)
            parameters, merged = parameters + changes[0], multiply_adds + changes[1]
        costs = combine_costs(parameters, merged)
        for time in others:
            of_gates = (times * present[:, t["gate_times_presence"]]).sum(1)
            of_merges = t["merge_time"] * (merged - multiply_adds)
            costs.append((time + of_gates + of_merges) * self.time_scale)
        return torch.stack(costs, 1)

    def extremes(
        self, least_widths: Tensor | None = None, held: Tensor | None = None
    ) -> tuple[Named, Named]:
        """Return the costs with all gates open, and those of the smallest network there can be.

        Of each group `least_widths` stay open: one, or two where a norm reads them. Layers and
        branches that are `held` stay, too.
        """
        opened, gone = self.least_state(least_widths, held)
        whole = torch.ones_like(opened), torch.zeros_like(gone)
        start, least = self(torch.stack([whole[0], opened]), torch.stack([whole[1], gone]))
        return name_costs(start), name_costs(least)

    def least_state(
        self, least_widths: Tensor | None = None, held: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return which gates the smallest network has open, and which layers are gone then."""
        sizes = self.group.bincount()
        if least_widths is None:
            least_widths = self._least
        rank = torch.arange(len(self.group), device="cpu") - (sizes.cumsum(0) - sizes)[self.group]
        n_others = self.n_depth + self.n_branches
        goes = torch.ones(n_others, device="cpu") if held is None else ~held.cpu()
        return (rank < least_widths.cpu()[self.group]).double(), goes.double()

    def _tables_on(self, device: torch.device) -> dict[str, Tensor]:
        if device not in self._tables:
            self._tables[device] = {name: t.to(device) for name, t in self._own.items()}
        return self._tables[device]

    def _count_kinds(self, t: dict[str, Tensor], is_open: Tensor) -> Tensor:
        """Return how many gates of each kind are open; several of a channel are when all are."""
        counts = t["kinds"].expand(len(is_open), -1)
        counts = counts.index_add(1, t["kind_of_gate"], is_open)
        if not len(t["kind_of_pair"]):
            return counts
        one, two, three = F.pad(is_open, (0, 1), value=1.0)[:, t["pairs"]].unbind(1)
        return counts.index_add(1, t["kind_of_pair"], one * two * three)

    def _present(self, t: dict[str, Tensor], is_closed: Tensor) -> Tensor:
        """Return 1 for what is still there, for each kind of things that go with the same branches.

        The first kind is always there.
        """
        if not self.n_branches:
            return is_closed.new_ones(len(is_closed), t["gone_with_set"].shape[1])
        is_whole = (is_closed @ t["sets"] == t["set_sizes"]).to(is_closed.dtype)
        return (is_whole @ t["gone_with_set"] == 0).to(is_closed.dtype)

    def _computed(
        self, t: dict[str, Tensor], dims: Tensor, new_bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return which layers with computed weights (weight_norm) change, and what that saves."""
        n_owners = len(t["computed_before"])
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
