"""Merge layers with nothing but linear maps between them: which merges pay, and the algebra."""

import copy
import functools
import math
from collections.abc import Container
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from archlearn.analysis.channel_graph import ChannelGraph
from archlearn.analysis.cost_model import count_positions
from archlearn.analysis.mergeable_layers import (
    AT_THE_BORDER,
    MergeablePair,
    refuse_convolutions,
)
from archlearn.costs import COSTS, Costs
from archlearn.errors import SurgeryError
from archlearn.module_utils import find_module, find_tensor, first_names
from archlearn.surgery.plan import Fold, Merge, Narrowing

_CONVS: tuple[Any, ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class PlannedSizes:
    """Shapes of parameters as they will be, and how often each weight is applied."""

    def __init__(
        self,
        model: nn.Module,
        channel_graph: ChannelGraph,
        narrowings: tuple[Narrowing, ...] = (),
        folds: tuple[Fold, ...] = (),
        gone: Container[str] = (),
        dropped: Tensor | None = None,
    ) -> None:
        self.model = model
        self.kept = {(n.name, n.dim): len(n.kept) for n in narrowings}
        self.positions = count_positions(channel_graph, model, gone, dropped)
        self.names = first_names(model)
        self.new_biases = {
            f.layer for f in folds if getattr(find_module(model, f.layer), "bias", None) is None
        }

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape after narrowing."""
        name = self.names.get(name, name)
        shape = find_tensor(self.model, name).shape
        return tuple(self.kept.get((name, dim), size) for dim, size in enumerate(shape))

    def has_bias(self, layer: str) -> bool:
        """Return whether a layer will have a bias."""
        old = getattr(find_module(self.model, layer), "bias", None)
        return old is not None or layer in self.new_biases

    def applied(self, layer: str) -> int:
        """Return at how many places a layer's weight is applied."""
        return int(self.positions.get(f"{layer}.weight", 0))


class Grid(NamedTuple):
    """Where the weights of a convolution stand along one dimension."""

    kernel: int
    dilation: int
    stride: int

    def then(self, other: "Grid") -> "Grid":
        """Return the grid of the one convolution that this one and another behind it make."""
        step = self.stride * other.dilation
        parts = [self.dilation] * (self.kernel > 1) + [step] * (other.kernel > 1)
        spacing = math.gcd(*parts) if parts else 1
        reach = self.dilation * (self.kernel - 1) + step * (other.kernel - 1)
        return Grid(reach // spacing + 1, spacing, self.stride * other.stride)


def _grids(conv: Any) -> list[Grid]:
    settings = zip(conv.kernel_size, conv.dilation, conv.stride, strict=True)
    return [Grid(*numbers) for numbers in settings]


def _join_grids(first: list[Grid], second: list[Grid]) -> list[Grid]:
    return [one.then(two) for one, two in zip(first, second, strict=True)]


def plan_merges(
    mergeable: dict[str, MergeablePair], linear: tuple[str, ...], sizes: PlannedSizes, pay: str
) -> tuple[Merge, ...]:
    """Return for each run of linear mergeable the cheapest way to merge its layers.

    A run of layers may merge wholly, in parts or not at all; all ways are compared. A merge
    must lower what the user counts, and may not raise any other cost.
    """
    merges: list[Merge] = []
    for run in chain_pairs([mergeable[site] for site in linear if site in mergeable]):
        merges.extend(_split(run, sizes, pay))
    return tuple(merges)


def count_layer(n_in: Any, n_out: Any, kernel: Any, has_bias: Any, applied: Any) -> tuple[Any, Any]:
    """Return the parameters and multiply-adds of a layer, of numbers or of tensors of them.

    `kernel` is how many weights a pair of channels has, `applied` at how many places they are.
    """
    weights = n_in * n_out * kernel
    return weights + n_out * has_bias, weights * applied


def count_apart(merge: Merge, sizes: PlannedSizes) -> tuple[int, int]:
    """Return the parameters and multiply-adds of the layers of a merge and the norms between."""
    parameters = multiply_adds = 0
    for layer in merge.layers:
        n_out, n_in, *kernel = sizes.shape(f"{layer}.weight")
        counts = sizes.has_bias(layer), sizes.applied(layer)
        of_layer = count_layer(n_in, n_out, math.prod(kernel), *counts)
        parameters, multiply_adds = parameters + of_layer[0], multiply_adds + of_layer[1]
    for norm in merge.norms:
        module: Any = find_module(sizes.model, norm)
        parameters += sum(sizes.shape(f"{norm}.{n}")[0] for n, _ in module.named_parameters())
    return parameters, multiply_adds


def count_merged(merge: Merge, sizes: PlannedSizes) -> tuple[int, int]:
    """Return the parameters and multiply-adds of the one layer that a merge makes."""
    first, last = merge.layers[0], merge.layers[-1]
    n_in, n_out = sizes.shape(f"{first}.weight")[1], sizes.shape(f"{last}.weight")[0]
    has_bias = bool(merge.norms) or any(sizes.has_bias(layer) for layer in merge.layers)
    kernel = math.prod(merged_kernel(merge.layers, sizes))
    return count_layer(n_in, n_out, kernel, has_bias, sizes.applied(last))


def merged_kernel(layers: tuple[str, ...], sizes: PlannedSizes) -> list[int]:
    """Return the kernel size of the convolution that a run of convolutions becomes."""
    modules = [find_module(sizes.model, layer) for layer in layers]
    if isinstance(modules[0], nn.Linear):
        return []
    return [grid.kernel for grid in functools.reduce(_join_grids, map(_grids, modules))]


def chain_pairs(mergeable: list[MergeablePair]) -> list[list[MergeablePair]]:
    """Return mergeable that follow on one another as runs."""
    by_first = {pair.first: pair for pair in mergeable}
    seconds = {pair.second for pair in mergeable}
    runs: list[list[MergeablePair]] = []
    for pair in mergeable:
        if pair.first not in seconds:
            run = [pair]
            while run[-1].second in by_first:
                run.append(by_first[run[-1].second])
            runs.append(run)
    return runs


def _split(run: list[MergeablePair], sizes: PlannedSizes, pay: str) -> list[Merge]:
    """Return the partition of a run with the least cost, by dynamic programming."""
    n = len(run) + 1
    best: list[tuple[int, list[Merge]]] = [(0, [])]
    for end in range(1, n + 1):
        norms_behind = run[end - 1].norms if end < n else ()
        behind = count_apart(Merge((), norms_behind, (), 0, 0, made=False), sizes)
        kept = getattr(Costs.of(*behind), pay)
        options: list[tuple[int, list[Merge]]] = []
        for start in range(end):
            segment = _weigh(run, start, end, sizes, pay)
            is_single = end - start == 1
            if is_single or segment.made:
                cost = best[start][0] + kept + (segment.before if is_single else segment.after)
                options.append((cost, [*best[start][1], segment]))
        # of equal costs the one with fewer merges: a merge must lower the cost
        best.append(min(options, key=lambda option: (option[0], -len(option[1]))))
    merges = [segment for segment in best[n][1] if segment.sites]
    return merges or [replace(_weigh(run, 0, n, sizes, pay), made=False)]


def _weigh(run: list[MergeablePair], start: int, end: int, sizes: PlannedSizes, pay: str) -> Merge:
    """Return what some layers cost apart and as one; made if exact, and no cost is raised."""
    inside = run[start : end - 1]
    layers = tuple(layers_of(run)[start:end])
    norms = tuple(norm for pair in inside for norm in pair.norms)
    merge = Merge(layers, norms, tuple(pair.site for pair in inside), 0, 0, made=False)
    old, new = Costs.of(*count_apart(merge, sizes)), Costs.of(*count_merged(merge, sizes))
    n_bare = count_bare(layers, inside, sizes)
    is_exact = n_bare is not None and not any(map(sizes.has_bias, layers[:n_bare]))
    raises = any(getattr(new, name) > getattr(old, name) for name in COSTS)
    before, after = getattr(old, pay), getattr(new, pay)
    return replace(merge, before=before, after=after, made=is_exact and not raises)


def count_bare(
    layers: tuple[str, ...], mergeable: list[MergeablePair], sizes: PlannedSizes
) -> int | None:
    """Return how many layers at the start may have no bias; None if no merge is exact at all.

    A padded convolution merges with what is in front only if that is a 1×1 without bias.
    """
    n_bare = 0
    for position in range(1, len(layers)):
        module: Any = find_module(sizes.model, layers[position])
        if isinstance(module, nn.Linear) or not any(module.padding):
            continue
        in_front: list[Any] = [find_module(sizes.model, layer) for layer in layers[:position]]
        is_point = all(k == 1 for k in merged_kernel(layers[:position], sizes))
        if not is_point or any(any(m.padding) for m in in_front):
            return None
        if any(pair.norms for pair in mergeable[:position]):
            return None
        n_bare = position
    return n_bare


def layers_of(run: list[MergeablePair]) -> list[str]:
    """Return the layers of mergeable that follow on one another."""
    return [run[0].first, *[pair.second for pair in run]]


@torch.no_grad()
def merge_linear(first: nn.Linear, second: nn.Linear) -> nn.Linear:
    """Return the single layer that computes `second(first(x))` for every `x`.

    Neither argument is changed.
    """
    if first.out_features != second.in_features:
        raise SurgeryError(
            f"cannot merge: the first layer gives {first.out_features} features "
            f"but the second takes {second.in_features}"
        )
    parts: tuple[Any, ...] = (first, second)  # torch says that a bias is never None
    has_bias = any(part.bias is not None for part in parts)
    merged = nn.Linear(
        first.in_features,
        second.out_features,
        bias=has_bias,
        device=second.weight.device,
        dtype=second.weight.dtype,
    )
    merged.weight.copy_(second.weight @ first.weight)
    if has_bias:
        merged.bias.copy_(bias_or_zero(second) + second.weight @ bias_or_zero(first))
    return _freeze_as_(merged, first, second)


@torch.no_grad()
def merge_convolutions(first: Any, second: Any) -> Any:
    """Return the single convolution that computes `second(first(x))` for every `x`.

    Neither argument is changed. Exact where the second does not pad, or where the first is a
    1×1 without bias and padding.
    """
    check_convolutions(first, second)
    grids = _join_grids(_grids(first), _grids(second))
    kernel = _compose(first, second, grids)
    pads = any(second.padding)
    padding = _times(first.stride, second.padding) if pads else first.padding
    has_bias = first.bias is not None or second.bias is not None
    merged = type(second)(
        first.in_channels,
        second.out_channels,
        tuple(grid.kernel for grid in grids),
        stride=tuple(grid.stride for grid in grids),
        padding=padding,
        dilation=tuple(grid.dilation for grid in grids),
        bias=has_bias,
        padding_mode=second.padding_mode if pads else first.padding_mode,
        device=second.weight.device,
        dtype=second.weight.dtype,
    )
    merged.weight.copy_(kernel)
    if has_bias:
        summed = second.weight.flatten(2).sum(2)
        merged.bias.copy_(bias_or_zero(second) + summed @ bias_or_zero(first))
    return _freeze_as_(merged, first, second)


@torch.no_grad()
def fold_batch_norm(layer: Any, norm: Any) -> Any:
    """Return the single layer that computes `norm(layer(x))` in evaluation mode.

    Neither argument is changed.
    """
    if norm.running_mean is None:
        raise SurgeryError(
            "cannot fold a BatchNorm without running statistics: it depends on the batch; "
            "use track_running_stats=True"
        )
    statistics = norm.running_mean, norm.running_var, norm.eps
    folded = copy.deepcopy(layer)
    folded.weight, folded.bias = fuse_conv_bn_weights(
        layer.weight, layer.bias, *statistics, norm.weight, norm.bias
    )
    return _freeze_as_(folded, layer, norm)


def check_convolutions(first: Any, second: Any) -> None:
    """Raise if two convolutions cannot be merged exactly."""
    if not isinstance(first, _CONVS) or type(first).__name__ != type(second).__name__:
        raise SurgeryError(f"cannot merge a {type(first).__name__} into a {type(second).__name__}")
    if first.out_channels != second.in_channels:
        raise SurgeryError(
            f"cannot merge: the first layer gives {first.out_channels} channels "
            f"but the second takes {second.in_channels}"
        )
    has_bias = first.bias is not None
    why = refuse_convolutions(first, second, "the second convolution", has_bias=has_bias)
    if why:
        advice = "; use padding=0 there" if why.endswith(AT_THE_BORDER) else ""
        raise SurgeryError(f"cannot merge: {why}{advice}, or learn width only")


def bias_or_zero(layer: Any) -> Tensor:
    """Return a layer's bias, or zeros."""
    if layer.bias is not None:
        return layer.bias.detach()
    n_out = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
    return layer.weight.new_zeros(n_out)


def _freeze_as_(merged: Any, *parts: nn.Module) -> Any:
    """Let a merged layer learn if any of its parts did."""
    return merged.requires_grad_(any(p.requires_grad for part in parts for p in part.parameters()))


def _compose(first: Any, second: Any, grids: list[Grid]) -> Tensor:
    """Return the kernel of both: at each place of the second's, the first's is added."""
    steps = _times(first.stride, second.dilation)
    apart = [grid.dilation for grid in grids]
    spread, step = ([max(a // b, 1) for a, b in zip(numbers, apart, strict=True)]
                    for numbers in (first.dilation, steps))  # fmt: skip
    none = [0] * len(grids)
    one, two = first.weight.transpose(0, 1), second.weight.transpose(0, 1)
    both = torch.convolution(one, two, None, spread, none, step, True, none, 1)
    return both.transpose(0, 1)


def _times(first: Any, second: Any) -> tuple[int, ...]:
    return tuple(a * b for a, b in zip(first, second, strict=True))
