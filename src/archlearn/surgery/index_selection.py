"""A run of moves that scrambles channels on its way may amount to a selection of them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from archlearn.analysis.labels import Labels, varying
from archlearn.analysis.rules.reshape import as_selection
from archlearn.errors import SurgeryError
from archlearn.surgery.slices import Cuts
from archlearn.tracing.example_inputs import check_argument
from archlearn.tracing.fx_utils import call_node
from archlearn.tracing.source_location import source_of


@dataclass(frozen=True, slots=True)
class Scrambled:
    """A tensor whose narrowed form is no box: it lives only inside a run of moves.

    Attributes:
        source: The node that the run starts from.
        places: For each element, where it stood in the source.
    """

    source: fx.Node
    places: Tensor


@dataclass(frozen=True, slots=True)
class Selections:
    """Follows the places of elements through runs of moves.

    Attributes:
        values: What each node returned before anything was dropped.
        nodes: The nodes of the graph that is rewritten, by their names before.
        narrowed: What stays of what each of those returns.
    """

    net: nn.Module
    graph: fx.Graph
    values: dict[str, Any]
    nodes: dict[str, fx.Node]
    narrowed: dict[fx.Node, Any]
    cuts: Cuts

    def _source(self, old: fx.Node, node: fx.Node) -> tuple[fx.Node, Tensor] | None:
        source = node.all_input_nodes[0] if node.all_input_nodes else None
        if source is None:
            return None
        known = self.narrowed.get(source)
        if isinstance(known, Scrambled):
            return known.source, known.places
        full = self.values[old.all_input_nodes[0].name]
        if not isinstance(full, Labels):
            return None
        return source, torch.arange(full.ids.numel()).reshape(full.shape)

    def _moved_places(self, old: fx.Node, places: Tensor) -> Any:
        values = self.values
        first = old.all_input_nodes[0]
        args, kwargs = map_arg(
            (old.args, old.kwargs), lambda n: places if n is first else values[n.name]
        )
        try:
            return call_node(old, self.net, args, kwargs)
        except (RuntimeError, NotImplementedError):  # some kernels know no integers
            moved = call_node(old, self.net, (places.double(), *args[1:]), kwargs)
            return moved.long() if isinstance(moved, Tensor) else None

    def scramble(self, old: fx.Node, node: fx.Node) -> Scrambled:
        """Go on with a run of moves whose narrowed form is no box yet."""
        found = self._source(old, node)
        moved = None if found is None else self._moved_places(old, found[1])
        if found is None or not isinstance(moved, Tensor):
            raise SurgeryError(cannot_narrow(node))
        return Scrambled(found[0], moved)

    def select(self, old: fx.Node, node: fx.Node, expected: Any) -> fx.Node | None:
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
        root, dropped = self.cuts.root, self.cuts.dropped
        line = full_source.ids.movedim(dim, -1)[(0,) * (full_source.ids.dim() - 1)]
        stays = ~dropped[root[line]]
        new_place = torch.cumsum(stays, 0) - 1
        narrowed = new_place[index[stays[index]]]
        with self.graph.inserting_before(node):
            rank = self.graph.call_method("dim", (source,))
            what = f"the number of dimensions at {source_of(old) or old.name}"
            self.graph.call_function(check_argument, (rank, full_source.ids.dim(), what))
            name = self._keep(narrowed)
            return self.graph.call_function(
                torch.index_select, (source, dim, self.graph.get_attr(name))
            )

    def _full_of(self, node: fx.Node) -> Labels | None:
        for old_name, new in self.nodes.items():
            if new is node:
                value = self.values[old_name]
                return value if isinstance(value, Labels) else None
        return None

    def _keep(self, index: Tensor) -> str:
        n = sum(1 for name in self.net._buffers if name.startswith("archlearn_index_"))
        name = f"archlearn_index_{n}"
        reference = next(iter(self.net.parameters()), index)
        self.net.register_buffer(name, index.to(reference.device))
        return name


def cannot_narrow(node: fx.Node) -> str:
    """Return what to say where nothing fits."""
    return (
        f"cannot narrow through {node.name} ({node.target}): it mixes channels with other "
        "dimensions; mark the module that calls it in leaves=[...]"
    )
