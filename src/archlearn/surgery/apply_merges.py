"""Linear activations are left out, and layers that a plan merges become one."""

from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from archlearn.analysis.layer_pairs import Link
from archlearn.gating.selection import Choice
from archlearn.module_utils import find_module
from archlearn.nn.tristate import TriState
from archlearn.surgery.merging import fold_batch_norm, merge_convolutions, merge_linear
from archlearn.surgery.plan import Merge, Plan


@dataclass(slots=True)
class Carrier:
    """Carries out what a plan says of depth.

    Where all calls concerned are modules called once, `nn.Identity` takes their place, and the
    user's own `forward` still serves; otherwise the graph changes.

    Attributes:
        changed: Whether the user's own `forward` would compute something else now.
    """

    net: nn.Module
    plan: Plan
    choice: Choice
    graphs: list[fx.Graph]
    changed: bool = False

    def run(self) -> None:
        """Merge layers, then leave out what has become linear."""
        merged: set[str] = set()
        for merge in self.plan.merges:
            if merge.made:
                self._merge(merge)
                merged |= set(merge.sites)
        for place, graph in enumerate(self.graphs):
            for site in self.choice.blueprint.sites[place]:
                if site.name in self.plan.linear and site.name not in merged:
                    node = next(n for n in graph.nodes if n.name == site.node)
                    self._leave_out(graph, [node])
        for name, module in list(self.net.named_modules()):
            if isinstance(module, TriState):
                self._set(name, module.activation)

    def _merge(self, merge: Merge) -> None:
        links = [self.choice.links[site] for site in merge.sites]
        layer: Any = find_module(self.net, links[0].first)
        for link in links:
            layer = self._join(layer, link)
        for place, graph in enumerate(self.graphs):
            by_name = {n.name: n for n in graph.nodes}
            names = [name for link in links for name in link.nodes[place]]
            self._leave_out(graph, [by_name[name] for name in names if name in by_name])
        self._set(links[0].first, layer)

    def _join(self, layer: Any, link: Link) -> Any:
        for norm in link.norms:
            layer = fold_batch_norm(layer, find_module(self.net, norm))
        second: Any = find_module(self.net, link.second)
        if isinstance(layer, nn.Linear):
            return merge_linear(layer, second)
        return merge_convolutions(layer, second)

    def _leave_out(self, graph: fx.Graph, nodes: list[fx.Node]) -> None:
        for node in nodes:
            if node.op == "call_module" and _is_called_once(graph, node):
                self._set(str(node.target), nn.Identity())
            else:
                self.changed = True
            node.replace_all_uses_with(node.all_input_nodes[0])
            graph.erase_node(node)

    def _set(self, name: str, module: nn.Module) -> None:
        owner, _, attribute = name.rpartition(".")
        setattr(find_module(self.net, owner), attribute, module)


def _is_called_once(graph: fx.Graph, node: fx.Node) -> bool:
    return sum(n.op == "call_module" and n.target == node.target for n in graph.nodes) == 1
