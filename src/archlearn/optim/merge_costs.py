"""What merging layers saves, for any state of the gates: the best partition of each chain.

As `surgery/merging.py` decides, but for many states at once and on the device.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from archlearn.analysis.mergeable_layers import MergeablePair
from archlearn.gating.cost_kinds import combine_costs
from archlearn.module_utils import find_module
from archlearn.optim.cost_terms import CostTerms, as_indices, as_numbers
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
    known = t["layer_kernel"], bias, t["layer_applied"]
    apart = torch.stack(count_layer(dims[:, t["layer_in"]], n_out, *known), -1)
    inside = torch.stack([norms, torch.zeros_like(norms)], -1)
    old = _between(apart, t["seg_first"], t["seg_last"])
    old = old + _between(inside, t["seg_first"], t["seg_last"] - 1)
    has_bias = _between(bias[..., None], t["seg_first"], t["seg_last"])[..., 0] > 0
    has_bias = has_bias | t["seg_has_norm"]
    known = t["seg_kernel"], has_bias, t["seg_applied"]
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
        "layer_applied": as_numbers([terms.sizes.applied(name) for name in layers]),
        "link_site": torch.tensor([site_of[link.site] if link else 0 for link in links]),
        "seg_first": as_indices([s.first for s in segments]),
        "seg_last": as_indices([s.last for s in segments]),
        "seg_bare": as_indices([s.bare for s in segments]),
        "seg_in": as_indices([slot(f"{s.layers[0]}.weight", 1) for s in segments]),
        "seg_out": as_indices([slot(f"{s.layers[-1]}.weight", 0) for s in segments]),
        "seg_kernel": as_numbers([s.kernel for s in segments]),
        "seg_applied": as_numbers([terms.sizes.applied(s.layers[-1]) for s in segments]),
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
