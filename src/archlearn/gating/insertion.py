"""Gates are written into a copy of a graph, behind the calls they belong to."""

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from archlearn.analysis.sites import Site
from archlearn.gating.container import STORE, GateStore
from archlearn.gating.placement import Reader, place_gates
from archlearn.nn.tristate import gate_channels, mix_linear
from archlearn.tracing.block_hooks import mark_blocks_
from archlearn.tracing.traces import Traces

_OUT_OF_PLACE: dict[Any, Any] = {
    F.relu_: F.relu, torch.relu_: torch.relu, F.leaky_relu_: F.leaky_relu, F.elu_: F.elu,
    F.hardtanh_: F.hardtanh,
}  # fmt: skip


def insert_gates(net: nn.Module, store: GateStore, place: int) -> fx.Graph:
    """Return a copy of one of the model's graphs, with its gates.

    Activations in front of a depth gate no longer work in place.
    """
    blueprint = store.choice.blueprint
    graph, nodes = copy_with_marks(blueprint.traces, place)
    writer = _Writer(graph, net, store)
    # A real gate on the next weights would pass over what is not linear in between.
    on_weights = place_gates(blueprint, net, place) if store.kind == "binary" else {}
    for site in blueprint.sites[place]:
        node = nodes[site.node]
        if site.name in store.choice.links:
            node = writer.mix_linear(node, site)
        channels = blueprint.channels_of(place, site)
        if channels is None or site.node not in blueprint.gated[place]:
            continue
        if int(blueprint.group_of[channels[0]]) not in on_weights:
            followed = blueprint.followed[place]
            # Counted from behind: inputs may have more or fewer dimensions in front.
            dim = followed.sites[site.node].dim - followed.values[site.node].ids.dim()
            writer.gate_channels(node, channels, dim)
    for readers in on_weights.values():
        for reader in readers:
            writer.gate_columns(nodes[reader.node], reader)
    return graph


def copy_graph(graph: fx.Graph) -> tuple[fx.Graph, dict[str, fx.Node]]:
    """Return a copy of a graph, and its nodes by their names in the original."""
    made = fx.Graph()
    mapping: dict[fx.Node, fx.Node] = {}
    made.output(made.graph_copy(graph, mapping))
    return made, {old.name: new for old, new in mapping.items()}


def copy_with_marks(traces: Traces, place: int) -> tuple[fx.Graph, dict[str, fx.Node]]:
    """Return a copy of a graph with marks for the hooks of blocks, and its nodes by their names."""
    graph, nodes = copy_graph(traces.graphs[place])
    mark_blocks_(graph, traces.blocks[place] if traces.blocks else ())
    return graph, nodes


def assemble_gates(gates: list[Tensor], index: Tensor) -> Tensor:
    """Return the gates of a site that several groups pass; index 0 is always open."""
    return torch.cat([gates[0].new_ones(1), *gates])[index]


def call_gated(layer: nn.Module, x: Tensor, width: Tensor, dim: int) -> Tensor:
    """Call a layer with each input column of its weight multiplied by its width gate."""
    owner: Any = layer
    weight = gate_channels(owner.weight, width, dim)
    forward_hooks = owner._forward_hooks or owner._forward_pre_hooks
    if not (forward_hooks or owner._backward_hooks or owner._backward_pre_hooks):
        if isinstance(layer, nn.Linear):
            return F.linear(x, weight, layer.bias)
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            return owner._conv_forward(x, weight, owner.bias)
    return torch.func.functional_call(layer, {"weight": weight}, (x,))


class _Writer:
    """Writes gates into a graph."""

    def __init__(self, graph: fx.Graph, net: nn.Module, store: GateStore) -> None:
        self.graph, self.net, self.store = graph, net, store
        start = next(node for node in graph.nodes if node.op != "placeholder")
        with graph.inserting_before(start):
            self.acting = graph.call_module(STORE)

    def gate_channels(self, node: fx.Node, channels: Tensor, dim: int) -> None:
        """Put the width gates of a site behind a node."""
        groups, index = self.store.find(channels)
        if not groups:
            return
        with self.graph.inserting_after(node):
            gated = self.graph.call_function(gate_channels, (node,))
        with self.graph.inserting_before(gated):
            width = self._assemble(groups, index)
        node.replace_all_uses_with(gated, delete_user_cb=lambda user: user is not gated)
        gated.args = (node, width, dim)

    def gate_columns(self, node: fx.Node, reader: Reader) -> None:
        """Let a layer read its input through the gates, by scaling its weight."""
        groups, index = self.store.find(reader.channels)
        with self.graph.inserting_before(node):
            width = self._assemble(groups, index)
            layer = self.graph.get_attr(reader.op.layer)
            arguments = (layer, node.all_input_nodes[0], width, reader.op.in_dim)
            made = self.graph.call_function(call_gated, arguments)
        node.replace_all_uses_with(made)
        self.graph.erase_node(node)

    def mix_linear(self, node: fx.Node, site: Site) -> fx.Node:
        """Put the depth gate of a site behind a node."""
        make_out_of_place_(node, self.net)
        with self.graph.inserting_after(self.acting):
            depth = self._acting(self.store.place_of_site(site.name))
        with self.graph.inserting_after(node):
            mixed = self.graph.call_function(mix_linear, (node.args[0], node, depth))
        node.replace_all_uses_with(mixed, delete_user_cb=lambda user: user is not mixed)
        return mixed

    def _acting(self, place: int) -> fx.Node:
        return self.graph.call_function(operator.getitem, (self.acting, place))

    def _assemble(self, groups: list[str], index: Tensor | None) -> fx.Node:
        opened = [self._acting(self.store.place_of_group(group)) for group in groups]
        if index is None:
            return opened[0]
        place = self.graph.get_attr(self.store.keep_index(index))
        return self.graph.call_function(assemble_gates, (opened, place))


def make_out_of_place_(node: fx.Node, net: nn.Module) -> None:
    """Let a call leave its input alone."""
    if node.op == "call_module":
        module: Any = net.get_submodule(str(node.target))
        if hasattr(module, "inplace"):
            module.inplace = False
    elif node.op == "call_method":
        node.target = str(node.target).rstrip("_")
    else:
        target: Any = node.target
        node.target = _OUT_OF_PLACE.get(target, target)
        if "inplace" in node.kwargs:
            node.update_kwarg("inplace", False)
