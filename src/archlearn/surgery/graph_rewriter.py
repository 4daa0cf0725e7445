"""Rewrite the calls of a graph that hold sizes of narrowed tensors.

`x / x.shape[1]` divides by the channels there were. In `x.numel()` the channels are one factor; the
batch and the image are others, and stay what they are at each call.

The narrowed labels are sent through each call that only moves data. Where the call as it
stands gives the labels that it should, it stays; where it does not, it is rewritten.
"""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from archlearn.analysis.channel_graph import ChannelGraph
from archlearn.analysis.channel_labels import FIXED, Labels, line_along, varying, without_repeats
from archlearn.analysis.propagation_rules import elementwise, reshape, rule_for
from archlearn.analysis.propagation_rules.reshape import as_selection
from archlearn.analysis.rule_api import name_of, opaque
from archlearn.errors import SurgeryError
from archlearn.op_table import KIND
from archlearn.surgery.reshape_rewriter import Cuts, Move, rewrite_move
from archlearn.surgery.special_layers import SpecialCall
from archlearn.tracing.block_hooks import MARKS, erase_marks_of_
from archlearn.tracing.example_inputs import CHECKS, check_argument
from archlearn.tracing.fx_utils import call_on_labels, leaves_of, size_of, source_of
from archlearn.tracing.shape_guards import topic_of

_COUNTS = ("numel", "nelement")
_FAILED = "failed"
_MOVES = (
    reshape.move, reshape.shuffle_pixels, reshape.pick, reshape.pad, reshape.attribute,
    reshape.expand_as, elementwise.new,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _DeferredPermutation:
    """A tensor whose narrowed form is no box: it lives only inside a run of moves.

    Each element has its place in the source that the run starts from.
    """

    source: fx.Node
    places: Tensor


@dataclass(slots=True)
class Rewriter:
    """Sends narrowed labels through a copy of a graph and rewrites what does not fit."""

    net: nn.Module
    channel_graph: ChannelGraph
    graph_index: int
    dropped: Tensor
    graph: fx.Graph
    nodes: dict[str, fx.Node]
    changed: bool = False
    narrowed: dict[fx.Node, Any] = field(default_factory=dict)
    replaced: set[fx.Node] = field(default_factory=set)
    selected: dict[tuple[fx.Node, int, tuple[int, ...]], fx.Node] = field(default_factory=dict)
    cuts: Cuts = field(init=False)

    def __post_init__(self) -> None:
        self.cuts = Cuts(self.dropped, self.channel_graph.root, self.channel_graph.in_free_heads())

    @property
    def values(self) -> dict[str, Any]:
        """What each node returned before anything was dropped."""
        return self.channel_graph.followed[self.graph_index].values

    def run(self) -> None:
        """Rewrite the graph."""
        for old in self.channel_graph.graphs[self.graph_index].nodes:
            node = self.nodes.get(old.name)
            if node is not None and node.op != "output":
                self.narrowed[node] = self._visit(old, node)
        self._erase_dead()

    def narrow_special(self, done: set[str]) -> None:
        """Narrow what is not seen in parameters: groups, and local response windows.

        `done` are the modules that have been narrowed already, for another graph or call.
        """
        for old in self.channel_graph.graphs[self.graph_index].nodes:
            node = self.nodes.get(old.name)
            if node is not None and old.op.startswith("call"):
                source = self.values[old.all_input_nodes[0].name] if old.all_input_nodes else None
                call = SpecialCall(
                    self.net,
                    node,
                    source,
                    self.values[old.name],
                    self.channel_graph.root,
                    self.dropped,
                    is_gated=old.name in self.channel_graph.followed[self.graph_index].reads,
                    is_whole=self.channel_graph.whole_groups.get(old.name, False),
                )
                self.changed |= call.narrow_(done)

    def _erase_dead(self) -> None:
        for node in reversed(list(self.graph.nodes)):
            value = self.narrowed.get(node)
            idle = (
                isinstance(value, int | float | _DeferredPermutation | torch.Size)
                or node in self.replaced
            )
            is_read = any(user.target not in MARKS for user in node.users)
            if idle and not is_read and node.op.startswith("call"):
                erase_marks_of_(node)
                self.graph.erase_node(node)

    def _visit(self, old: fx.Node, node: fx.Node) -> Any:
        full = self.values[old.name]
        if not node.op.startswith("call"):
            return self.cuts.reduce_all(full)
        rule = rule_for(old, self.net)
        has_labels = any(isinstance(leaf, Labels) for leaf in leaves_of(full))
        is_move = rule in _MOVES and not self._is_indexed(old)
        if is_move and has_labels and isinstance(full, Labels | tuple | list):
            return self._visit_move(old, node, full)
        if not has_labels:
            return self._visit_number(old, node, full)
        for source in node.all_input_nodes:
            if isinstance(self.narrowed.get(source), _DeferredPermutation):
                raise SurgeryError(_cannot_narrow(source))
        self._bake_numbers(old, node)
        if rule in elementwise.COMBINING and isinstance(full, Labels):
            self._select_fixed(old, node, full)
        return self.cuts.reduce_all(full) if self._is_looked_at(old, node) else None

    def _select_fixed(self, old: fx.Node, node: fx.Node, full: Labels) -> None:
        """Let a tensor without channels (angles of positions) lose what those beside it lose."""
        if not self.cuts.touches(full):
            return
        for before, now in _inputs_of(old, node):
            labels = self.values[before.name]
            if not isinstance(labels, Labels) or bool((labels.ids != FIXED).any()):
                continue
            for behind in range(-labels.ids.dim(), 0):
                kept = self.cuts.kept_along(full, full.ids.dim() + behind)
                if labels.shape[behind] == full.shape[behind] > len(kept):
                    part = self._select(now, behind, kept, node)
                    node.replace_input_with(now, part)
                    now, self.changed = part, True

    def _select(self, source: fx.Node, dim: int, kept: Tensor, user: fx.Node) -> fx.Node:
        """Return a selection of a tensor in front of the first call that reads it."""
        key = source, dim, tuple(kept.tolist())
        if key not in self.selected:
            with self.graph.inserting_before(user):
                index = self.graph.get_attr(self._keep_index(kept))
                self.selected[key] = self.graph.call_function(
                    torch.index_select, (source, dim, index)
                )
        return self.selected[key]

    def _is_indexed(self, old: fx.Node) -> bool:
        """Return whether a call is x[index] with a tensor in the index: no channel lies along."""
        index = leaves_of(old.args[1]) if old.target is operator.getitem else []
        nodes = [part for part in index if isinstance(part, fx.Node)]
        return any(isinstance(self.values[part.name], Labels) for part in nodes)

    def _is_looked_at(self, old: fx.Node, node: fx.Node) -> bool:
        """Return whether what stays of a tensor must be known: something moves or measures it."""
        before = {self.nodes.get(user.name) for user in old.users}
        if not before.issuperset(node.users):  # it took the place of the sum of a closed branch
            return True
        return any(
            rule_for(user, self.net) in _MOVES or not isinstance(self.values[user.name], Labels)
            for user in old.users
            if user.op.startswith("call")
        )

    def _visit_number(self, old: fx.Node, node: fx.Node, full: Any) -> Any:
        """Return a number as it is for narrowed tensors; leave out a check that it fails."""
        if _is_about_kind(old):  # labels are integers, tensors are not
            return full
        of_tensors = any(isinstance(self.values[n.name], Labels) for n in old.all_input_nodes)
        if rule_for(old, self.net) is opaque and of_tensors:
            return full
        number = _try(node, self.net, self.narrowed.get, failed=_FAILED)
        if number is _FAILED and node.target in CHECKS:
            self.graph.erase_node(node)
            del self.nodes[old.name]
        if number is _FAILED and isinstance(full, int | float) and not of_tensors:
            return math.nan  # no number at all, such as (width // heads) ** -0.5 where that is 0
        return full if number is _FAILED or number is None else number

    def _visit_move(self, old: fx.Node, node: fx.Node, full: Any) -> Any:
        expected = self.cuts.reduce_all(full)
        is_whole = not any(
            isinstance(self.narrowed.get(n), _DeferredPermutation) for n in node.all_input_nodes
        )
        read = [full, *[self.values[n.name] for n in old.all_input_nodes]]
        if is_whole and not self.cuts.touches(read):
            self._bake_numbers(old, node)  # they may be another tensor's
            return expected
        if any(leaf is None for leaf in leaves_of(expected)):
            return self._defer(old, node)
        if rule_for(old, self.net) is reshape.pad and self._pads_space(old, full):
            return expected
        if isinstance(self.values[old.all_input_nodes[0].name], tuple | list):
            result = _try(node, self.net, self.narrowed.get)
            return expected if result is None else result
        tracked = self._track(old, node, full)
        if tracked is not None and _is_same(tracked.result, tracked.expected):
            return expected
        rewritten = None if tracked is None else rewrite_move(tracked)
        rewritten = rewritten or self._select_channels(old, node, expected)
        if rewritten is None:
            return self._defer(old, node)
        self.changed = True
        node.replace_all_uses_with(rewritten)
        self.replaced.add(node)
        self.narrowed[rewritten] = expected
        self.nodes[old.name] = rewritten
        return expected

    def _pads_space(self, old: fx.Node, full: Labels) -> bool:
        source = self.values[old.all_input_nodes[0].name]
        before, after = without_repeats(source.ids), without_repeats(full.ids)
        return bool(torch.isin(after, before).all())

    def _track(self, old: fx.Node, node: fx.Node, full: Any) -> Move | None:
        """Send the place of every element through the call, before and after narrowing.

        Labels would not do: elements of one channel have the same label, and may change places.
        """
        whole: dict[fx.Node, Tensor] = {}
        parts: dict[fx.Node, Any] = {}
        start = 0
        same: dict[fx.Node, Tensor] = {}
        for before, now in _inputs_of(old, node):
            labels = self.values[before.name]
            if isinstance(self.narrowed.get(now), _DeferredPermutation):
                return None
            if now in same:  # a sum whose branch is closed, and what it was added to
                whole[before] = same[now]
            elif isinstance(labels, Labels):
                n = labels.ids.numel()
                places = torch.arange(start, start + n, dtype=torch.float64, device="cpu")
                places = places.reshape(labels.shape)
                whole[before] = same[now] = places
                parts[now] = self.cuts.cut(labels, places)
                start += n
        moved = _try(old, self.net, lambda n: whole.get(n, self.values[n.name]))
        computed = _try(node, self.net, lambda n: parts.get(n, self.narrowed.get(n)))
        if rule_for(old, self.net) is reshape.pad:  # what is put in has no place before
            # By the labels the inputs had: one may stand for the sum of a closed branch by now.
            read = [(now, self.values[before.name]) for before, now in _inputs_of(old, node)]
            parts = {n: self.cuts.reduce_all(v) for n, v in read if isinstance(v, Labels)}
            moved = full.ids
            computed = _try(node, self.net, lambda n: parts.get(n, self.narrowed.get(n)))
        labels_out, moved_out = leaves_of(full), leaves_of(moved)
        if len(labels_out) != len(moved_out):
            return None
        cut = [self.cuts.cut(x, y) for x, y in zip(labels_out, moved_out, strict=True)]
        expected = cut[0] if isinstance(full, Labels) else cut
        source = parts.get(node.all_input_nodes[0])
        shape = getattr(self.values[old.all_input_nodes[0].name], "shape", torch.Size())
        return Move(
            self.net, self.graph, node, self.narrowed, source, expected, computed, full, shape,
            partial(self._find_kept, node),
        )  # fmt: skip

    def _find_kept(self, user: fx.Node, number: fx.Node) -> tuple[Any, Any]:
        """Return a number as it was before anything was dropped, and its value then."""
        for old in self.channel_graph.graphs[self.graph_index].nodes:
            if self.nodes.get(old.name) is number:
                return self._keep_number(old, user), self.values[old.name]
        return number, self.narrowed[number]

    def _find_run(self, old: fx.Node, node: fx.Node) -> tuple[fx.Node, Tensor] | None:
        """Return what a run of moves up to a call starts from, and the places it has moved."""
        narrowed = self.narrowed.get(node.all_input_nodes[0])
        if isinstance(narrowed, _DeferredPermutation):
            source, places = narrowed.source, narrowed.places
        else:
            full = self.values[old.all_input_nodes[0].name]
            if not isinstance(full, Labels):
                return None
            source = node.all_input_nodes[0]
            places = torch.arange(full.ids.numel(), device="cpu").reshape(full.shape)
        first, exact = old.all_input_nodes[0], places.double()  # some kernels know no integers
        args, kwargs = map_arg(
            (old.args, old.kwargs), lambda n: exact if n is first else self.values[n.name]
        )
        moved = call_on_labels(old, self.net, args, kwargs)
        return (source, moved.long()) if isinstance(moved, Tensor) else None

    def _defer(self, old: fx.Node, node: fx.Node) -> _DeferredPermutation:
        """Go on with a run of moves whose narrowed form is no box yet."""
        run = self._find_run(old, node)
        if run is None:
            raise SurgeryError(_cannot_narrow(node))
        return _DeferredPermutation(*run)

    def _select_channels(self, old: fx.Node, node: fx.Node, expected: Any) -> fx.Node | None:
        """Return the selection of channels that a run of moves amounts to, if it is one."""
        run = self._find_run(old, node)
        if run is None or not isinstance(expected, Tensor):
            return None
        source, moved = run
        names = [name for name, new in self.nodes.items() if new is source]
        full = self.values[names[0]] if names else None
        if not isinstance(full, Labels):
            return None
        chosen = as_selection(full.shape, moved, varying(full.ids))
        if chosen is None:
            return None
        dim, index = chosen
        stays = ~self.dropped[self.channel_graph.root[line_along(full.ids, dim)]]
        new_place = torch.cumsum(stays, 0) - 1
        narrowed = new_place[index[stays[index]]]
        with self.graph.inserting_before(node):
            rank = self.graph.call_method("dim", (source,))
            what = f"the number of dimensions at {source_of(old) or old.name}"
            self.graph.call_function(check_argument, (rank, full.ids.dim(), what))
            kept = self.graph.get_attr(self._keep_index(narrowed))
            return self.graph.call_function(torch.index_select, (source, dim, kept))

    def _keep_index(self, index: Tensor) -> str:
        """Give the model an index as a buffer; return its name."""
        n = sum(1 for name in self.net._buffers if name.startswith("archlearn_index_"))
        name = f"archlearn_index_{n}"
        reference = next(iter(self.net.parameters()), index)
        self.net.register_buffer(name, index.to(reference.device))
        return name

    def _bake_numbers(self, old: fx.Node, node: fx.Node) -> None:
        """A number, or a shape, that was read off a channel count keeps the value it had."""
        for before, now in _inputs_of(old, node):
            was, is_now = self.values[before.name], self.narrowed.get(now)
            if _is_numbers(was) and was != is_now:
                node.replace_input_with(now, self._keep_number(before, node))
                self.changed = True

    def _keep_number(self, old: fx.Node, user: fx.Node) -> Any:
        """Return what a number is to be replaced by where it is used, in front of a call."""
        node = self.nodes[old.name]
        was: Any = self.values[old.name]
        now: Any = self.narrowed.get(node)
        if isinstance(was, Labels) or was == now:
            return node
        if size_of(old) and isinstance(was, int):
            return was
        with user.graph.inserting_before(user):
            if name_of(old) in _COUNTS:
                share = Fraction(was, now)
                times = user.graph.call_function(operator.mul, (node, share.numerator))
                return user.graph.call_function(operator.floordiv, (times, share.denominator))
            if isinstance(was, tuple) and _is_shape(old):
                pick = user.graph.call_function
                return tuple(
                    size if size != now[dim] else pick(operator.getitem, (node, dim))
                    for dim, size in enumerate(was)
                )
        if old.op != "call_function" or _is_shape(old):
            raise SurgeryError(
                f"cannot narrow: {old.name} ({source_of(old)}) is a number that depends on how "
                "many channels there are; write it as a number, or mark its module in leaves=[...]"
            )
        args, kwargs = map_arg((old.args, old.kwargs), lambda n: self._keep_number(n, user))
        if not any(isinstance(leaf, fx.Node) for leaf in leaves_of((args, kwargs))):
            return was
        target: Any = old.target
        with user.graph.inserting_before(user):
            return user.graph.call_function(target, args, kwargs)


def _inputs_of(old: fx.Node, node: fx.Node) -> list[tuple[fx.Node, fx.Node]]:
    """Return what a call read before beside what it reads now, numbers that were baked left out."""
    one, two = leaves_of((old.args, old.kwargs)), leaves_of((node.args, node.kwargs))
    pairs = dict.fromkeys(zip(one, two, strict=False))
    return [(a, b) for a, b in pairs if isinstance(a, fx.Node) and isinstance(b, fx.Node)]


def _cannot_narrow(node: fx.Node) -> str:
    return (
        f"cannot narrow through {node.name} ({node.target}): it mixes channels with other "
        "dimensions; mark the module that calls it in leaves=[...]"
    )


def _try(
    node: fx.Node, net: nn.Module, value_of: Callable[[fx.Node], Any], failed: Any = None
) -> Any:
    """Make a call with other arguments; say so if it does not run on them."""
    args, kwargs = map_arg((node.args, node.kwargs), value_of)
    try:
        return call_on_labels(node, net, args, kwargs)
    except Exception:  # literal sizes do not fit narrowed tensors
        return failed


def _is_numbers(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(isinstance(part, int) for part in value)
    return isinstance(value, int | float)


def _is_about_kind(old: fx.Node) -> bool:
    """Return whether a call asks for the type or device of a tensor, or checks that."""
    asked = old.args[0] if old.target in CHECKS else old
    return isinstance(asked, fx.Node) and topic_of(asked) == KIND


def _is_same(result: Any, expected: Any) -> bool:
    one, two = leaves_of(result), leaves_of(expected)
    return len(one) == len(two) and all(
        isinstance(a, Tensor) and torch.equal(a, b) for a, b in zip(one, two, strict=True)
    )


def _is_shape(old: fx.Node) -> bool:
    """Return whether a node is the whole shape of a tensor."""
    if old.target == "size":
        return len(old.args) + len(old.kwargs) == 1
    return old.target is getattr and old.args[1] == "shape"
