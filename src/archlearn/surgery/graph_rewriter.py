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
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from archlearn.analysis.channel_graph import ChannelGraph
from archlearn.analysis.channel_labels import FIXED, Labels, without_repeats
from archlearn.analysis.propagation_rules import elementwise, reshape, rule_for
from archlearn.analysis.rule_api import name_of, opaque
from archlearn.errors import SurgeryError
from archlearn.op_table import KIND
from archlearn.surgery.reshape_rewriter import (
    Cuts,
    DeferredPermutation,
    Move,
    Selections,
    cannot_narrow,
    rewrite_move,
)
from archlearn.surgery.special_layers import Seen, narrow_call_
from archlearn.tracing.block_hooks import MARKS, erase_marks_of_
from archlearn.tracing.example_inputs import CHECKS
from archlearn.tracing.fx_utils import call_node, leaves_of, source_of
from archlearn.tracing.shape_guards import topic_of

_COUNTS = ("numel", "nelement")
_FAILED = "failed"
_MOVES = (
    reshape.move, reshape.pick, reshape.pad, reshape.attribute, reshape.expand_as,
    elementwise.new,
)  # fmt: skip


@dataclass(slots=True)
class Rewriter:
    """Sends narrowed labels through a copy of a graph and rewrites what does not fit."""

    net: nn.Module
    blueprint: ChannelGraph
    place: int
    dropped: Tensor
    graph: fx.Graph
    nodes: dict[str, fx.Node]
    changed: bool = False
    narrowed: dict[fx.Node, Any] = field(default_factory=dict)
    replaced: set[fx.Node] = field(default_factory=set)
    selected: dict[tuple[fx.Node, int, tuple[int, ...]], fx.Node] = field(default_factory=dict)
    cuts: Cuts = field(init=False)
    selections: Selections = field(init=False)

    def __post_init__(self) -> None:
        self.cuts = Cuts(self.dropped, self.blueprint.root, self.blueprint.in_free_heads())
        self.selections = Selections(
            self.net, self.graph, self.values, self.nodes, self.narrowed, self.cuts
        )

    @property
    def values(self) -> dict[str, Any]:
        """What each node returned before anything was dropped."""
        return self.blueprint.followed[self.place].values

    def run(self) -> None:
        """Rewrite the graph."""
        for old in self.blueprint.graphs[self.place].nodes:
            node = self.nodes.get(old.name)
            if node is not None and node.op != "output":
                self.narrowed[node] = self._visit(old, node)
        self._erase_dead()

    def narrow_special(self, done: set[str]) -> None:
        """Narrow what is not seen in parameters: groups, and local response windows.

        `done` are the modules that have been narrowed already, for another graph or call.
        """
        for old in self.blueprint.graphs[self.place].nodes:
            node = self.nodes.get(old.name)
            if node is not None and old.op.startswith("call"):
                source = self.values[old.all_input_nodes[0].name] if old.all_input_nodes else None
                is_gated = old.name in self.blueprint.followed[self.place].reads
                is_whole = self.blueprint.whole_groups.get(old.name, False)
                out = self.values[old.name]
                seen = Seen(source, out, self.blueprint.root, is_gated, is_whole)
                self.changed |= narrow_call_(self.net, seen, node, self.dropped, done)

    def _erase_dead(self) -> None:
        for node in reversed(list(self.graph.nodes)):
            value = self.narrowed.get(node)
            idle = (
                isinstance(value, int | float | DeferredPermutation | torch.Size)
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
            if isinstance(self.narrowed.get(source), DeferredPermutation):
                raise SurgeryError(cannot_narrow(source))
        self._bake_numbers(old, node)
        if rule in elementwise.COMBINING and isinstance(full, Labels):
            self._select_fixed(old, node, full)
        return self.cuts.reduce_all(full) if self._is_looked_at(old, node) else None

    def _select_fixed(self, old: fx.Node, node: fx.Node, full: Labels) -> None:
        """Let a tensor without channels (angles of positions) lose what those beside it lose."""
        if not self.cuts.touches(full):
            return
        read = dict(zip(old.all_input_nodes, node.all_input_nodes, strict=False))
        if len(old.all_input_nodes) != len(node.all_input_nodes):  # some are numbers by now
            read = {before: self.nodes.get(before.name) for before in read}
        for before, now in read.items():
            labels = self.values[before.name]
            if not isinstance(labels, Labels) or bool((labels.ids != FIXED).any()):
                continue
            if now is None or now not in node.all_input_nodes:
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
                index = self.graph.get_attr(self.selections.keep_index(kept))
                self.selected[key] = self.graph.call_function(
                    torch.index_select, (source, dim, index)
                )
        return self.selected[key]

    def _is_indexed(self, old: fx.Node) -> bool:
        """Return whether a call is x[index] with a tensor as index, which no channel lies along."""
        index = old.args[1] if old.target is operator.getitem else None
        return isinstance(index, fx.Node) and isinstance(self.values[index.name], Labels)

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
        found = _try(node, self.net, self.narrowed.get, failed=_FAILED)
        if found is _FAILED and node.target in CHECKS:
            self.graph.erase_node(node)
            del self.nodes[old.name]
        if found is _FAILED and isinstance(full, int | float) and not of_tensors:
            return math.nan  # no number at all, such as (width // heads) ** -0.5 where that is 0
        return full if found is _FAILED or found is None else found

    def _visit_move(self, old: fx.Node, node: fx.Node, full: Any) -> Any:
        expected = self.cuts.reduce_all(full)
        is_whole = not any(
            isinstance(self.narrowed.get(n), DeferredPermutation) for n in node.all_input_nodes
        )
        read = [full, *[self.values[n.name] for n in old.all_input_nodes]]
        if is_whole and not self.cuts.touches(read):
            self._bake_numbers(old, node)  # they may be another tensor's
            return expected
        if any(leaf is None for leaf in leaves_of(expected)):
            return self.selections.scramble(old, node)
        if rule_for(old, self.net) is reshape.pad and self._pads_space(old, full):
            return expected
        if isinstance(self.values[old.all_input_nodes[0].name], tuple | list):
            found = _try(node, self.net, self.narrowed.get)
            return expected if found is None else found
        tracked = self._track(old, node, full)
        if tracked is not None and _is_same(tracked.found, tracked.expected):
            return expected
        made = None if tracked is None else rewrite_move(tracked)
        made = made or self.selections.select(old, node, expected)
        if made is None:
            return self.selections.scramble(old, node)
        self.changed = True
        node.replace_all_uses_with(made)
        self.replaced.add(node)
        self.narrowed[made] = expected
        self.nodes[old.name] = made
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
        for before, now in zip(old.all_input_nodes, node.all_input_nodes, strict=True):
            labels = self.values[before.name]
            if isinstance(self.narrowed.get(now), DeferredPermutation):
                return None
            if isinstance(labels, Labels):
                n = labels.ids.numel()
                places = torch.arange(start, start + n, dtype=torch.float64).reshape(labels.shape)
                whole[before], parts[now] = places, self.cuts.cut(labels, places)
                start += n
        moved = _try(old, self.net, lambda n: whole.get(n, self.values[n.name]))
        found = _try(node, self.net, lambda n: parts.get(n, self.narrowed.get(n)))
        if rule_for(old, self.net) is reshape.pad:  # what is put in has no place before
            moved, parts = full.ids, self._reduced_inputs(old, node)
            found = _try(node, self.net, lambda n: parts.get(n, self.narrowed.get(n)))
        labels_out, moved_out = leaves_of(full), leaves_of(moved)
        if len(labels_out) != len(moved_out):
            return None
        cut = [self.cuts.cut(x, y) for x, y in zip(labels_out, moved_out, strict=True)]
        expected = cut[0] if isinstance(full, Labels) else cut
        source = parts.get(node.all_input_nodes[0])
        return Move(self.net, self.graph, node, self.narrowed, source, expected, found, full)

    def _reduced_inputs(self, old: fx.Node, node: fx.Node) -> dict[fx.Node, Any]:
        """Return what stays of the inputs, by the labels they had.

        What is read now may have others: it took the place of the sum of a closed branch.
        """
        pairs = zip(old.all_input_nodes, node.all_input_nodes, strict=True)
        read = ((now, self.values[before.name]) for before, now in pairs)
        return {n: self.cuts.reduce_all(v) for n, v in read if isinstance(v, Labels)}

    def _bake_numbers(self, old: fx.Node, node: fx.Node) -> None:
        """A number, or a shape, that was read off a channel count keeps the value it had."""
        for before, now in zip(old.all_input_nodes, node.all_input_nodes, strict=False):
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
        if _is_size(old) and isinstance(was, int):
            return was
        with user.graph.inserting_before(user):
            if name_of(old) in _COUNTS:
                share = Fraction(was, now)
                times = user.graph.call_function(operator.mul, (node, share.numerator))
                return user.graph.call_function(operator.floordiv, (times, share.denominator))
            if isinstance(was, tuple) and _is_shape(old):
                pick = user.graph.call_function
                return tuple(
                    size if size != now[place] else pick(operator.getitem, (node, place))
                    for place, size in enumerate(was)
                )
        if old.op != "call_function" or _is_shape(old):
            raise SurgeryError(
                f"cannot narrow: {old.name} ({source_of(old)}) is a number that depends on how "
                "many channels there are; write it as a number, or mark its module in leaves=[...]"
            )
        args, kwargs = map_arg((old.args, old.kwargs), lambda n: self._keep_number(n, user))
        target: Any = old.target
        with user.graph.inserting_before(user):
            return user.graph.call_function(target, args, kwargs)


def _try(
    node: fx.Node, net: nn.Module, value_of: Callable[[fx.Node], Any], failed: Any = None
) -> Any:
    """Make a call with other arguments; say so if it does not run on them."""
    args, kwargs = map_arg((node.args, node.kwargs), value_of)
    try:
        return call_node(node, net, args, kwargs)
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


def _is_same(found: Any, expected: Any) -> bool:
    one, two = leaves_of(found), leaves_of(expected)
    return len(one) == len(two) and all(
        isinstance(a, Tensor) and torch.equal(a, b) for a, b in zip(one, two, strict=True)
    )


def _is_size(old: fx.Node) -> bool:
    """Return whether a node is one size of a tensor."""
    if old.target == "size":
        return len(old.args) + len(old.kwargs) > 1
    holder = old.args[0] if old.args else None
    is_pick = old.target is operator.getitem and isinstance(old.args[1], int)
    return is_pick and isinstance(holder, fx.Node) and _is_shape(holder)


def _is_shape(old: fx.Node) -> bool:
    """Return whether a node is the whole shape of a tensor."""
    if old.target == "size":
        return len(old.args) + len(old.kwargs) == 1
    return old.target is getattr and old.args[1] == "shape"
