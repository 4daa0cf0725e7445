"""Decide which layers merge: those where it saves parameters or multiply-adds."""

import math
from typing import Any, Protocol

from torch import nn

from archlearn.analysis.mergeable_layers import MergeablePair
from archlearn.costs import Costs
from archlearn.module_utils import find_module
from archlearn.surgery.plan import Merge


class Sizes(Protocol):
    """What is known of layers before they change."""

    model: nn.Module

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape after narrowing."""
        ...

    def has_bias(self, layer: str) -> bool:
        """Return whether a layer will have a bias."""
        ...

    def applied(self, layer: str) -> int:
        """Return at how many places a layer's weight is applied."""
        ...


def plan_merges(
    links: dict[str, MergeablePair], linear: tuple[str, ...], sizes: Sizes, pay: str
) -> tuple[Merge, ...]:
    """Return for each run of linear links the cheapest way to merge its layers.

    A run of layers may merge wholly, in parts or not at all; all ways are compared. A merge
    must lower what the user counts, and may not raise the other cost.
    """
    merges: list[Merge] = []
    for run in chain_links([links[site] for site in linear if site in links]):
        merges.extend(_split(run, sizes, pay))
    return tuple(merges)


def separate_costs(merge: Merge, sizes: Sizes) -> Costs:
    """Return what the layers of a merge and the norms between them cost apart."""
    parameters = macs = 0
    for layer in merge.layers:
        weight = math.prod(sizes.shape(f"{layer}.weight"))
        parameters += weight + sizes.shape(f"{layer}.weight")[0] * sizes.has_bias(layer)
        macs += weight * sizes.applied(layer)
    for norm in merge.norms:
        module: Any = find_module(sizes.model, norm)
        parameters += sum(sizes.shape(f"{norm}.{n}")[0] for n, _ in module.named_parameters())
    return Costs(parameters, macs)


def merged_costs(merge: Merge, sizes: Sizes) -> Costs:
    """Return what the one layer costs that a merge makes."""
    first, last = merge.layers[0], merge.layers[-1]
    n_in, n_out = sizes.shape(f"{first}.weight")[1], sizes.shape(f"{last}.weight")[0]
    weight = n_in * n_out * math.prod(merged_kernel(merge.layers, sizes))
    has_bias = bool(merge.norms) or any(sizes.has_bias(layer) for layer in merge.layers)
    return Costs(weight + n_out * has_bias, weight * sizes.applied(last))


def merged_kernel(layers: tuple[str, ...], sizes: Sizes) -> list[int]:
    """Return the kernel size of the convolution that a run of convolutions becomes."""
    first: Any = find_module(sizes.model, layers[0])
    if isinstance(first, nn.Linear):
        return []
    kernel, dilation, stride = list(first.kernel_size), list(first.dilation), list(first.stride)
    for layer in layers[1:]:
        module: Any = find_module(sizes.model, layer)
        for i, (k, d, s) in enumerate(
            zip(module.kernel_size, module.dilation, module.stride, strict=True)
        ):
            step = stride[i] * d
            parts = [dilation[i]] * (kernel[i] > 1) + [step] * (k > 1)
            spacing = math.gcd(*parts) if parts else 1
            reach = dilation[i] * (kernel[i] - 1) + step * (k - 1)
            kernel[i], dilation[i], stride[i] = reach // spacing + 1, spacing, stride[i] * s
    return kernel


def chain_links(links: list[MergeablePair]) -> list[list[MergeablePair]]:
    """Return links that follow on one another as runs."""
    by_first = {link.first: link for link in links}
    seconds = {link.second for link in links}
    runs: list[list[MergeablePair]] = []
    for link in links:
        if link.first not in seconds:
            run = [link]
            while run[-1].second in by_first:
                run.append(by_first[run[-1].second])
            runs.append(run)
    return runs


def _split(run: list[MergeablePair], sizes: Sizes, pay: str) -> list[Merge]:
    """Return the partition of a run with the least cost, by dynamic programming."""
    n = len(run) + 1
    best: list[tuple[int, list[tuple[int, int]]]] = [(0, [])]
    for end in range(1, n + 1):
        options: list[tuple[int, list[tuple[int, int]]]] = []
        for start in range(end):
            if end - start > 1 and not _may_merge(run, start, end, sizes):
                continue
            cost = _segment_cost(run, start, end, sizes, pay)
            options.append((best[start][0] + cost, [*best[start][1], (start, end)]))
        # of equal costs the one with fewer merges: a merge must lower the cost
        best.append(min(options, key=lambda option: (option[0], -len(option[1]))))
    merges = [
        _merge(run, start, end, sizes, pay, made=True)
        for start, end in best[n][1]
        if end - start > 1
    ]
    return merges or [_merge(run, 0, n, sizes, pay, made=False)]


def _segment_cost(run: list[MergeablePair], start: int, end: int, sizes: Sizes, pay: str) -> int:
    merge = _merge(run, start, end, sizes, pay, made=True)
    norms_behind = run[end - 1].norms if end <= len(run) else ()
    kept = separate_costs(Merge((), norms_behind, (), 0, 0, made=False), sizes)
    return (merge.after if end - start > 1 else merge.before) + getattr(kept, pay)


def _may_merge(run: list[MergeablePair], start: int, end: int, sizes: Sizes) -> bool:
    """Return whether a merge is exact and raises neither of the two costs."""
    if not _is_exact(run, start, end, sizes):
        return False
    draft = _merge(run, start, end, sizes, "parameters", made=True)
    old, new = separate_costs(draft, sizes), merged_costs(draft, sizes)
    return new.parameters <= old.parameters and new.multiply_adds <= old.multiply_adds


def _is_exact(run: list[MergeablePair], start: int, end: int, sizes: Sizes) -> bool:
    """A padded convolution merges with what is in front only if that is a 1×1 without bias."""
    layers = _layers(run)[start:end]
    for place in range(1, len(layers)):
        module: Any = find_module(sizes.model, layers[place])
        if isinstance(module, nn.Linear) or not any(module.padding):
            continue
        kernel = merged_kernel(tuple(layers[:place]), sizes)
        in_front: list[Any] = [find_module(sizes.model, layer) for layer in layers[:place]]
        pads = any(any(m.padding) for m in in_front)
        biased = any(sizes.has_bias(layer) for layer in layers[:place])
        norms = any(link.norms for link in run[start : start + place])
        if any(k > 1 for k in kernel) or pads or biased or norms:
            return False
    return True


def _layers(run: list[MergeablePair]) -> list[str]:
    return [run[0].first, *[link.second for link in run]]


def _merge(
    run: list[MergeablePair], start: int, end: int, sizes: Sizes, pay: str, made: bool
) -> Merge:
    inside = run[start : end - 1]
    draft = Merge(
        layers=tuple(_layers(run)[start:end]),
        norms=tuple(norm for link in inside for norm in link.norms),
        sites=tuple(link.site for link in inside),
        before=0,
        after=0,
        made=made,
    )
    old, new = separate_costs(draft, sizes), merged_costs(draft, sizes)
    before, after = getattr(old, pay), getattr(new, pay)
    return Merge(draft.layers, draft.norms, draft.sites, before, after, made)
