"""Rewrite view, split, pad and permutations of channels for narrowed tensors."""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from archlearn.analysis.channel_labels import (
    Labels,
    core,
    line_along,
    select,
    varying,
    without_repeats,
)
from archlearn.module_utils import find_module
from archlearn.op_table import spec_of
from archlearn.tracing.example_inputs import check_argument
from archlearn.tracing.fx_utils import leaves_of, map_leaves, source_of


@dataclass(slots=True)
class Cuts:
    """Cuts channels that are dropped, by their smallest atoms, out of tensors.

    Atoms `in_heads` are places within heads each of which may keep others.
    """

    dropped: Tensor
    root: Tensor
    in_heads: Tensor
    reduced: dict[int, Tensor | None] = field(default_factory=dict)

    def reduce_all(self, full: Any) -> Any:
        """Return the ids that stay of all that a call returned.

        None where they are no box, and other values as they are.
        """
        return map_leaves(self._reduce, full)

    def _reduce(self, value: Any) -> Any:
        if not isinstance(value, Labels):
            return value
        key = id(value.ids)  # calls that change nothing hand on the same ids
        if key not in self.reduced:
            self.reduced[key] = self.cut(value, value.ids)
        return self.reduced[key]

    def cut(self, labels: Labels, tensor: Tensor) -> Tensor | None:
        """Return the part of a tensor with these labels that stays, None if it is no box.

        It is one where each head keeps others, but equally many.
        """
        ids = labels.ids
        repeated = [dim for dim, stride in enumerate(ids.stride()) if stride == 0]
        for dim in repeated:
            if ids.shape[dim] > 1:
                ids = ids.narrow(dim, 0, 1)
        gone, is_free = self.dropped[self.root[ids]], self.in_heads[ids]
        if not bool(gone.any()):
            return tensor
        is_empty = bool(gone.all())
        for dim, size in enumerate(ids.shape):
            if dim not in repeated and (size > 1 or is_empty):
                whole = gone.movedim(dim, 0).reshape(gone.shape[dim], -1).all(1)
                kept = torch.nonzero(~whole).flatten()
                gone, tensor = gone.index_select(dim, kept), select(tensor, dim, kept)
                is_free = is_free.index_select(dim, kept)
        if not bool(gone.any()):
            return tensor
        return _cut_heads(gone, tensor) if bool(is_free[gone].all()) else None

    def kept_along(self, labels: Labels, dim: int) -> Tensor:
        """Return the indices of a dimension at which something stays."""
        lines, _ = core(labels.ids, labels.ids, dim)
        return torch.nonzero(~self.dropped[self.root[lines]].all(0)).flatten()

    def touches(self, full: Any) -> bool:
        """Return whether anything of what calls returned is dropped."""
        return any(
            bool(self.dropped[self.root[without_repeats(leaf.ids)]].any())
            for leaf in leaves_of(full)
            if isinstance(leaf, Labels)
        )


def _cut_heads(gone: Tensor, tensor: Tensor) -> Tensor | None:
    """Return what stays where each head loses other channels, None unless equally many.

    Places within heads lie behind the heads: along the last dimension that varies.
    """
    dim = varying(gone)[-1]
    counts = (~gone).sum(dim)
    n_kept = int(counts.flatten()[0])
    if not bool((counts == n_kept).all()):
        return None
    index = gone.to(torch.uint8).argsort(dim=dim, stable=True).narrow(dim, 0, n_kept)
    shape = list(tensor.shape)
    shape[dim] = n_kept
    return tensor.gather(dim, index.expand(shape))


@dataclass(frozen=True, slots=True)
class Move:
    """A call to be rewritten.

    Attributes:
        narrowed: The labels that stay, or other values, of each node so far.
        source: The places of the input's elements that stay.
        expected: The places that the call should return.
        found: The places that it returns as it stands, or None if it does not run.
        full: The labels that it returned before anything was dropped.
        shape: The shape that its input had then.
        kept: Gives a number of the graph as it was before anything was dropped, and its value then.
    """

    net: nn.Module
    graph: fx.Graph
    node: fx.Node
    narrowed: dict[fx.Node, Any]
    source: Any
    expected: Any
    result: Any
    full: Any
    shape: torch.Size
    kept: Callable[[fx.Node], tuple[Any, Any]]


def rewrite_move(move: Move) -> fx.Node | None:
    """Return a new call that gives what is expected, or None if there is no simple one."""
    spec = spec_of(move.node, move.net)
    if spec is None or not spec.narrowed_by or not isinstance(move.source, Tensor):
        return None
    with move.graph.inserting_before(move.node):
        return _WRITERS[spec.narrowed_by](move)


def _reshape(move: Move) -> fx.Node | None:
    """Reshape to the narrowed sizes: what stays keeps its order, so this is the same move."""
    if move.source.numel() != move.expected.numel():
        return None
    sizes = _sizes(move)
    _guard_tail(move, sizes)
    return move.graph.call_method("reshape", (move.node.all_input_nodes[0], *sizes))


def _guard_tail(move: Move, sizes: list[Any]) -> None:
    """Refuse images of other sizes where `view(-1, 800)` would take pieces of channels."""
    if -1 not in sizes or not all(isinstance(size, int) for size in sizes):
        return
    # As it was: of a single channel that is left nothing would show that it is part of a block.
    shape, block = move.shape, math.prod(move.full.shape[sizes.index(-1) + 1 :])
    fitting = [n for n in range(1, len(shape) + 1) if math.prod(shape[-n:]) == block]
    if not fitting or fitting[0] == 1:
        return
    tail = slice(-fitting[0], None)
    whole = move.graph.call_function(getattr, (move.node.all_input_nodes[0], "shape"))
    sizes_of_tail = move.graph.call_function(operator.getitem, (whole, tail))
    what = f"the shape at {source_of(move.node) or move.node.name}"
    move.graph.call_function(check_argument, (sizes_of_tail, tuple(move.source.shape[tail]), what))


def _unflatten(move: Move) -> fx.Node | None:
    """Spread the same dimension over narrowed sizes; all others are as they may be."""
    if move.source.numel() != move.expected.numel():
        return None
    if move.node.op == "call_module":
        dim: Any = getattr(find_module(move.net, str(move.node.target)), "dim", None)
    else:
        dim = move.node.kwargs.get("dim", move.node.args[1] if len(move.node.args) > 1 else None)
    if not isinstance(dim, int):
        return None
    start = dim % move.source.dim()
    n = move.expected.dim() - move.source.dim() + 1
    shape = list(move.expected.shape[start : start + n])
    sizes_written: Any = move.node.kwargs.get("sizes", [*move.node.args, (), ()][2])
    sizes = _fit(move, list(sizes_written) or shape, shape)
    return move.graph.call_method("unflatten", (move.node.all_input_nodes[0], dim, tuple(sizes)))


def _expand(move: Move) -> fx.Node | None:
    sizes = _sizes(move, infer=False)
    return move.graph.call_method("expand", (move.node.all_input_nodes[0], *sizes))


def _repeat(move: Move) -> fx.Node | None:
    """Repeat less often what has one index along a dimension, or each index (keys for heads)."""
    n_new = move.expected.dim() - move.source.dim()
    sizes = list(zip((1,) * n_new + tuple(move.source.shape), move.expected.shape, strict=True))
    name, times = "repeat", [now // max(1, before) for before, now in sizes]
    if any(before not in (1, now) for before, now in sizes):
        dim = max(range(len(times)), key=times.__getitem__)
        name, times = "repeat_interleave", [times[dim], dim]
        if n_new or not torch.equal(move.source.repeat_interleave(*times), move.expected):
            return None
    return move.graph.call_method(name, (move.node.all_input_nodes[0], *times))


def _new(move: Move) -> fx.Node:
    first, rest = move.node.args[0], move.node.args[2:] if _is_sizes(move) else ()
    sizes = (tuple(_sizes(move, infer=False)), *rest)
    options = {name: value for name, value in move.node.kwargs.items() if name != "size"}
    return move.graph.call_method(str(move.node.target), (first, *sizes), options)


def _is_sizes(move: Move) -> bool:
    """Return whether all sizes are one argument, so that others may follow."""
    return len(move.node.args) > 1 and isinstance(_value(move, move.node.args[1]), tuple | list)


def _sizes(move: Move, infer: bool = True) -> list[Any]:
    """Return sizes as literals, except where the call got them from the input itself."""
    written = list(move.node.args[1:]) or [
        move.node.kwargs[name] for name in ("shape", "size") if name in move.node.kwargs
    ]
    if len(written) == 1 or _is_sizes(move):
        written = _each_size(move, written[0])
    shape = list(move.expected.shape)
    if len(written) != len(shape) or move.node.target in ("flatten", torch.flatten):
        written = list(shape)
        unchanged = move.full.shape[0] == shape[0]
        if infer and unchanged:
            written[0] = -1
    return _fit(move, written, shape, infer)


def _fit(move: Move, sizes_in: list[Any], shape: list[int], infer: bool = True) -> list[Any]:
    """Return the sizes that a call was given as they are for a narrowed shape."""
    sizes = [
        value if value == -1 or _value(move, value) == size else size
        for value, size in zip(sizes_in, shape, strict=True)
    ]
    lost = [
        i for i, value in enumerate(sizes_in) if isinstance(value, fx.Node) and sizes[i] != value
    ]
    if infer and len(lost) == 1 and -1 not in sizes:
        sizes[lost[0]] = -1
    else:
        for i in lost:
            sizes[i] = _scale(move, sizes_in[i], shape[i])
    return sizes


def _scale(move: Move, number: fx.Node, size: int) -> Any:
    """Return a size that was computed, of heads and of the batch perhaps: no literal, then."""
    kept, was = move.kept(number)
    if not isinstance(kept, fx.Node):
        return size
    times = move.graph.call_function(operator.mul, (kept, size))
    return move.graph.call_function(operator.floordiv, (times, was))


def _each_size(move: Move, sizes: Any) -> list[Any]:
    """Return sizes one by one, those of a shape that was computed (`size_out`) as new nodes.

    Or those of another tensor (`expand_as`).
    """
    if isinstance(sizes, tuple | list):
        return list(sizes)
    value = _value(move, sizes)
    if isinstance(value, Tensor):
        sizes = move.graph.call_function(getattr, (sizes, "shape"))
        value = tuple(value.shape)
    if not isinstance(value, tuple | list):
        return [sizes]
    nodes = [move.graph.call_function(operator.getitem, (sizes, i)) for i in range(len(value))]
    move.narrowed.update(zip(nodes, value, strict=True))
    return nodes


def _value(move: Move, value: Any) -> Any:
    return move.narrowed.get(value) if isinstance(value, fx.Node) else value


def _split(move: Move) -> fx.Node | None:
    parts = list(move.expected)
    source = move.source
    for dim in range(source.dim()):
        sizes = [part.shape[dim] for part in parts]
        if sum(sizes) == source.shape[dim]:
            pieces = source.split(sizes, dim)
            if all(torch.equal(a, b) for a, b in zip(pieces, parts, strict=True)):
                dim_written: Any = move.node.kwargs.get("dim", [*move.node.args, 0, 0][2])
                written = dim - source.dim() if dim_written < 0 else dim  # as it was counted
                return move.graph.call_method(
                    "split", (move.node.all_input_nodes[0], sizes, written)
                )
    return None


def _pad(move: Move) -> fx.Node | None:
    """Pad the channel dimension by as many zeros as stay."""
    source, expected = move.source, move.expected
    longer = [d for d in range(source.dim()) if source.shape[d] != expected.shape[d]]
    if len(longer) > 1:
        return None
    dim = longer[0] if longer else source.dim() - 1
    line, inner = line_along(expected, dim), line_along(source, dim)
    extra = len(line) - len(inner)
    start = next(
        (s for s in range(extra + 1) if torch.equal(line[s : s + len(inner)], inner)), None
    )
    if start is None:
        return None
    amounts = [0] * (2 * (source.dim() - dim))
    amounts[-2:] = [start, extra - start]
    options: dict[str, Any] = dict(zip(("mode", "value"), move.node.args[2:], strict=False))
    options |= {key: value for key, value in move.node.kwargs.items() if key != "pad"}
    if move.node.op == "call_module":
        options = {"value": find_module(move.net, str(move.node.target)).value}
    return move.graph.call_function(F.pad, (move.node.all_input_nodes[0], amounts), options)


def _slice(move: Move) -> fx.Node | None:
    """Take a contiguous part along the one dimension that differs, other indices as given."""
    source = move.source
    if not isinstance(move.full, Labels):
        return None
    index = move.node.args[1]
    shortened = list(index) if isinstance(index, tuple | list) else [index]
    if any(not isinstance(part, slice | int | None) for part in shortened if part is not ...):
        return None
    indices = _without_ellipsis(shortened, source.dim())
    for at, part in enumerate(indices):
        if not isinstance(part, slice):
            continue
        size = source.shape[at - indices[:at].count(None)]
        n_kept = move.expected.shape[at - sum(isinstance(item, int) for item in indices[:at])]
        for start in range(size - n_kept + 1):
            wanted = slice(start, start + n_kept)
            trial = [*indices[:at], wanted, *indices[at + 1 :]]
            sliced = source[tuple(_plain(move, item) for item in trial)]
            if sliced.shape == move.expected.shape and torch.equal(sliced, move.expected):
                first = move.node.all_input_nodes[0]
                written = tuple(_with_ellipsis(trial, shortened, at))
                return move.graph.call_function(operator.getitem, (first, written))
    return None


def _with_ellipsis(trial: list[Any], written: list[Any], dim: int) -> list[Any]:
    """Return indices as they were counted, from the front or behind an ellipsis."""
    if ... not in written:
        return trial[: max(len(written), dim + 1)]
    position = written.index(...)
    behind = len(trial) - (len(written) - position - 1)
    if position <= dim < behind:
        return trial
    return [*trial[:position], ..., *trial[behind:]]


def _without_ellipsis(indices: list[Any], n_dims: int) -> list[Any]:
    if ... in indices:
        position = indices.index(...)
        fill = [slice(None)] * (n_dims - len(indices) + indices.count(None) + 1)
        return [*indices[:position], *fill, *indices[position + 1 :]]
    return indices + [slice(None)] * (n_dims - len(indices) + indices.count(None))


def _plain(move: Move, part: slice | int | None) -> slice | int | None:
    if not isinstance(part, slice):
        return part
    return slice(*(_value(move, value) for value in (part.start, part.stop, part.step)))


_WRITERS: dict[str, Callable[[Move], fx.Node | None]] = {
    "reshape": _reshape,
    "unflatten": _unflatten,
    "expand": _expand,
    "repeat": _repeat,
    "new": _new,
    "split": _split,
    "pad": _pad,
    "slice": _slice,
}
