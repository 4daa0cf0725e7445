"""Calls that hold a literal size are written anew; all others stay as they are.

The narrowed labels are sent through each call that only moves data. Where the call as it
stands gives the labels that it should, it stays; where it does not, it is rewritten.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from archlearn.errors import SurgeryError
from archlearn.graphs.blueprint import Blueprint
from archlearn.graphs.inputs import check_argument
from archlearn.graphs.labels import Labels, select, varying, without_repeats
from archlearn.graphs.rules import movement
from archlearn.graphs.rules.movement import as_selection
from archlearn.graphs.rules.registry import rule_for
from archlearn.graphs.step import call_node, leaves_of, map_leaves, opaque
from archlearn.surgery.moves import Move, rewrite_move
from archlearn.surgery.special import Seen, narrow_call_

_FAILED = "failed"
_MOVES = (movement.move, movement.pick, movement.pad, movement.attribute)


@dataclass(frozen=True, slots=True)
class Scrambled:
    """A tensor whose narrowed form is no box: it lives only inside a run of moves.

    Attributes:
        source: The node that the run starts from.
        places: For each element, where it stood in the source.
    """

    source: fx.Node
    places: Tensor


@dataclass(slots=True)
class Rewriter:
    """Sends narrowed labels through a copy of a graph and rewrites what does not fit.

    Attributes:
        changed: Whether any call was rewritten.
    """

    net: nn.Module
    blueprint: Blueprint
    place: int
    dropped: Tensor
    graph: fx.Graph
    nodes: dict[str, fx.Node]
    changed: bool = False
    narrowed: dict[fx.Node, Any] = field(default_factory=dict)
    replaced: set[fx.Node] = field(default_factory=set)
    cuts: dict[int, Tensor | None] = field(default_factory=dict)

    def run(self) -> None:
        """Rewrite the graph."""
        for old in self.blueprint.graphs[self.place].nodes:
            node = self.nodes.get(old.name)
            if node is not None and node.op != "output":
                self.narrowed[node] = self._visit(old, node)
        self._erase_dead()

    def narrow_special(self, done: set[str]) -> None:
        """Narrow what is not seen in parameters: groups, and local response windows.

        Args:
            done: Modules that have been narrowed already, for another graph or call.
        """
        for old in self.blueprint.graphs[self.place].nodes:
            node = self.nodes.get(old.name)
            if node is not None and old.op.startswith("call"):
                self.changed |= narrow_call_(self.net, self._seen(old), node, self.dropped, done)

    def _seen(self, old: fx.Node) -> Seen:
        values = self.blueprint.followed[self.place].values
        source = values[old.all_input_nodes[0].name] if old.all_input_nodes else None
        return Seen(source, values[old.name], self.blueprint.root)

    def _erase_dead(self) -> None:
        for node in reversed(list(self.graph.nodes)):
            value = self.narrowed.get(node)
            idle = isinstance(value, int | float | Scrambled | torch.Size) or node in self.replaced
            if idle and not node.users and node.op.startswith("call"):
                self.graph.erase_node(node)

    def _visit(self, old: fx.Node, node: fx.Node) -> Any:
        full = self.blueprint.followed[self.place].values[old.name]
        if not node.op.startswith("call"):
            return self._reduce_all(full)
        rule = rule_for(old, self.net)
        has_labels = any(isinstance(leaf, Labels) for leaf in leaves_of(full))
        if rule in _MOVES and has_labels and isinstance(full, Labels | tuple | list):
            return self._visit_move(old, node, full)
        if not has_labels:
            return self._visit_number(old, node, full)
        for source in node.all_input_nodes:
            if isinstance(self.narrowed.get(source), Scrambled):
                raise SurgeryError(_cannot_narrow(source))
        self._bake_numbers(old, node)
        return self._reduce_all(full)

    def _visit_number(self, old: fx.Node, node: fx.Node, full: Any) -> Any:
        """Return a number as it is for narrowed tensors; leave out a check that it fails."""
        values = self.blueprint.followed[self.place].values
        of_tensors = any(isinstance(values[n.name], Labels) for n in old.all_input_nodes)
        if rule_for(old, self.net) is opaque and of_tensors:
            return full
        found = _try(node, self.net, self.narrowed.get, failed=_FAILED)
        if found is _FAILED and node.target is check_argument:
            self.graph.erase_node(node)
            del self.nodes[old.name]
        return full if found is _FAILED or found is None else found

    def _visit_move(self, old: fx.Node, node: fx.Node, full: Any) -> Any:
        expected = map_leaves(self._reduce_labels, full)
        values = self.blueprint.followed[self.place].values
        if not self._touches([full, *[values[n.name] for n in old.all_input_nodes]]):
            return expected
        if any(leaf is None for leaf in leaves_of(expected)):
            return self._scramble(old, node)
        if rule_for(old, self.net) is movement.pad and self._pads_space(old, full):
            return expected
        if isinstance(values[old.all_input_nodes[0].name], tuple | list):
            return self._evaluate(node, expected)
        tracked = self._track(old, node, full)
        if tracked is not None and self._same(tracked.found, tracked.expected):
            return expected
        made = None if tracked is None else rewrite_move(tracked)
        made = made or self._select(old, node, expected)
        if made is None:
            return self._scramble(old, node)
        self.changed = True
        node.replace_all_uses_with(made)
        self.replaced.add(node)
        self.narrowed[made] = expected
        self.nodes[old.name] = made
        return expected

    def _pads_space(self, old: fx.Node, full: Labels) -> bool:
        source = self.blueprint.followed[self.place].values[old.all_input_nodes[0].name]
        before, after = without_repeats(source.ids), without_repeats(full.ids)
        return bool(torch.isin(after, before).all())

    def _track(self, old: fx.Node, node: fx.Node, full: Any) -> Move | None:
        """Send the place of every element through the call, before and after narrowing.

        Labels would not do: elements of one channel have the same label, and may change places.
        """
        values = self.blueprint.followed[self.place].values
        whole: dict[fx.Node, Tensor] = {}
        parts: dict[fx.Node, Any] = {}
        start = 0
        for before, now in zip(old.all_input_nodes, node.all_input_nodes, strict=True):
            labels = values[before.name]
            if isinstance(self.narrowed.get(now), Scrambled):
                return None
            if isinstance(labels, Labels):
                n = labels.ids.numel()
                places = torch.arange(start, start + n, dtype=torch.float64).reshape(labels.shape)
                whole[before], parts[now] = places, self._cut(labels, places)
                start += n
        moved = _try(old, self.net, lambda n: whole.get(n, values[n.name]))
        found = _try(node, self.net, lambda n: parts.get(n, self.narrowed.get(n)))
        if rule_for(old, self.net) is movement.pad:  # what is put in has no place before
            moved, found, parts = map_leaves(_ids, full), self._evaluate(node, None), self.narrowed
        labels_out, moved_out = leaves_of(full), leaves_of(moved)
        if len(labels_out) != len(moved_out):
            return None
        cut = [self._cut(x, y) for x, y in zip(labels_out, moved_out, strict=True)]
        expected = cut[0] if isinstance(full, Labels) else cut
        source = parts.get(node.all_input_nodes[0])
        return Move(self.net, self.graph, node, self.narrowed, source, expected, found, full)

    def _evaluate(self, node: fx.Node, default: Any) -> Any:
        found = _try(node, self.net, self.narrowed.get)
        return default if found is None else found

    def _reduce_all(self, full: Any) -> Any:
        return map_leaves(self._reduce_labels, full)

    def _reduce_labels(self, value: Any) -> Any:
        """Return the ids that stay, None where they are no box, other values as they are."""
        if not isinstance(value, Labels):
            return value
        key = id(value.ids)  # calls that change nothing hand on the same ids
        if key not in self.cuts:
            self.cuts[key] = self._cut(value, value.ids)
        return self.cuts[key]

    def _cut(self, labels: Labels, tensor: Tensor) -> Tensor | None:
        """Return the part of a tensor with these labels that stays, None if it is no box."""
        ids = labels.ids
        repeated = [dim for dim in range(ids.dim()) if ids.stride(dim) == 0]
        for dim in repeated:
            ids = ids.narrow(dim, 0, min(1, ids.shape[dim]))
        gone = self.dropped[self.blueprint.root[ids]]
        if not bool(gone.any()):
            return tensor
        for dim in range(ids.dim()):
            if dim not in repeated:
                whole = gone.movedim(dim, 0).reshape(gone.shape[dim], -1).all(1)
                kept = torch.nonzero(~whole).flatten()
                gone, tensor = gone.index_select(dim, kept), select(tensor, dim, kept)
        return None if bool(gone.any()) else tensor

    def _touches(self, full: Any) -> bool:
        return any(
            bool(self.dropped[self.blueprint.root[without_repeats(leaf.ids)]].any())
            for leaf in leaves_of(full)
            if isinstance(leaf, Labels)
        )

    def _same(self, found: Any, expected: Any) -> bool:
        one, two = leaves_of(found), leaves_of(expected)
        return len(one) == len(two) and all(
            isinstance(a, Tensor) and a.shape == b.shape and torch.equal(a, b)
            for a, b in zip(one, two, strict=True)
        )

    def _bake_numbers(self, old: fx.Node, node: fx.Node) -> None:
        """A number that was read off a channel count keeps the value it had."""
        values = self.blueprint.followed[self.place].values
        for before, now in zip(old.all_input_nodes, node.all_input_nodes, strict=False):
            was, is_now = values[before.name], self.narrowed.get(now)
            if isinstance(was, int | float) and was != is_now:
                node.replace_input_with(now, was)  # pyright: ignore[reportArgumentType]
                self.changed = True

    def _source(self, old: fx.Node, node: fx.Node) -> tuple[fx.Node, Tensor] | None:
        source = node.all_input_nodes[0] if node.all_input_nodes else None
        if source is None:
            return None
        known = self.narrowed.get(source)
        if isinstance(known, Scrambled):
            return known.source, known.places
        full = self.blueprint.followed[self.place].values[old.all_input_nodes[0].name]
        if not isinstance(full, Labels):
            return None
        return source, torch.arange(full.ids.numel()).reshape(full.shape)

    def _moved_places(self, old: fx.Node, places: Tensor) -> Any:
        values = self.blueprint.followed[self.place].values
        first = old.all_input_nodes[0]
        args, kwargs = map_arg(
            (old.args, old.kwargs), lambda n: places if n is first else values[n.name]
        )
        try:
            return call_node(old, self.net, args, kwargs)
        except (RuntimeError, NotImplementedError):  # some kernels know no integers
            moved = call_node(old, self.net, (places.double(), *args[1:]), kwargs)
            return moved.long() if isinstance(moved, Tensor) else None

    def _scramble(self, old: fx.Node, node: fx.Node) -> Any:
        found = self._source(old, node)
        moved = None if found is None else self._moved_places(old, found[1])
        if found is None or not isinstance(moved, Tensor):
            raise SurgeryError(_cannot_narrow(node))
        return Scrambled(found[0], moved)

    def _select(self, old: fx.Node, node: fx.Node, expected: Any) -> fx.Node | None:
        """Return the selection of channels that a run of moves amounts to, if it is one."""
        found = self._source(old, node)
        if found is None or not isinstance(expected, Tensor):
            return None
        source, places = found
        moved = self._moved_places(old, places)
        full_source = self._full_of(source)
        if not isinstance(moved, Tensor) or full_source is None:
            return None
        chosen = as_selection(full_source.shape, moved, varying(full_source.ids))
        if chosen is None:
            return None
        dim, index = chosen
        root, dropped = self.blueprint.root, self.dropped
        line = full_source.ids.movedim(dim, -1)[(0,) * (full_source.ids.dim() - 1)]
        stays = ~dropped[root[line]]
        new_place = torch.cumsum(stays, 0) - 1
        narrowed = new_place[index[stays[index]]]
        with self.graph.inserting_before(node):
            name = self._keep(narrowed)
            return self.graph.call_function(
                torch.index_select, (source, dim, self.graph.get_attr(name))
            )

    def _full_of(self, node: fx.Node) -> Labels | None:
        for old_name, new in self.nodes.items():
            if new is node:
                value = self.blueprint.followed[self.place].values[old_name]
                return value if isinstance(value, Labels) else None
        return None

    def _keep(self, index: Tensor) -> str:
        n = sum(1 for name in self.net._buffers if name.startswith("archlearn_index_"))
        name = f"archlearn_index_{n}"
        reference = next(iter(self.net.parameters()), index)
        self.net.register_buffer(name, index.to(reference.device))
        return name


def _try(
    node: fx.Node, net: nn.Module, value_of: Callable[[fx.Node], Any], failed: Any = None
) -> Any:
    """Make a call with other arguments; say so if it does not run on them."""
    args, kwargs = map_arg((node.args, node.kwargs), value_of)
    try:
        return call_node(node, net, args, kwargs)
    except Exception:  # literal sizes do not fit narrowed tensors
        return failed


def _ids(leaf: Any) -> Any:
    return leaf.ids if isinstance(leaf, Labels) else leaf


def _cannot_narrow(node: fx.Node) -> str:
    return (
        f"cannot narrow through {node.name} ({node.target}): it mixes channels with other "
        "dimensions; mark the module that calls it in leaves=[...]"
    )
