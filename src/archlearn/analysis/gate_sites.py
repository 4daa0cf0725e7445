"""Sites of gates: behind activations, or where channels without an activation are read."""

from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from archlearn.analysis.linear_ops import is_linear_op, layer_of
from archlearn.analysis.propagation_rules.elementwise import activation_name
from archlearn.op_table import ACTIVATE, spec_of
from archlearn.tracing.fx_utils import source_of

NO_ACTIVATION = "(none)"
ATTENTION = "(attention)"


@dataclass(frozen=True, slots=True)
class Site:
    """One call of an activation, or the first that reads channels without one.

    Attributes:
        name: The layer in front, with `#2`, `#3` where that stands before several calls. Of
            channels without an activation, the layer that writes them first.
        node: Name of the call in the graph.
        module: Name of the activation's module, or '' for a function or a method.
        squashing: Whether it often is a gate itself, and so is gated only if need be.
    """

    name: str
    node: str
    module: str
    activation: str
    source: str
    squashing: bool


@dataclass(frozen=True, slots=True)
class Stream:
    """Channels that are gated where they are read: linear bottlenecks, residual streams.

    The site is the first call that reads them, named by the layer that writes them first.
    """

    site: Site
    channels: Tensor


def find_sites(graph: fx.Graph, net: nn.Module) -> tuple[Site, ...]:
    """Return the sites of a graph in the order of their calls."""
    order = {node: position for position, node in enumerate(graph.nodes)}
    used: dict[str, int] = {}
    sites: list[Site] = []
    for node in graph.nodes:
        spec = spec_of(node, net)
        if spec is not None and spec.rule == ACTIVATE:
            layer = _layer_in_front(node, net, order) or node.name
            used[layer] = used.get(layer, 0) + 1
            name = layer if used[layer] == 1 else f"{layer}#{used[layer]}"
            module = str(node.target) if node.op == "call_module" else ""
            activation, source = activation_name(node, net), source_of(node)
            sites.append(Site(name, node.name, module, activation, source, spec.squashing))
    return tuple(sites)


def find_trained(graph: fx.Graph) -> frozenset[str]:
    """Return the names of all calls that a gradient of the model's output reaches."""
    waiting = [node for node in graph.nodes if node.op == "output"]
    trained: set[fx.Node] = set()
    while waiting:
        node = waiting.pop()
        is_detached = node.target in ("detach", "detach_", torch.detach, torch.detach_)
        is_detached |= node.target is getattr and node.args[1] == "data"
        if node not in trained and not is_detached:
            trained.add(node)
            waiting.extend(node.all_input_nodes)
    return frozenset(node.name for node in trained)


def _layer_in_front(node: fx.Node, net: nn.Module, order: dict[fx.Node, int]) -> str | None:
    waiting, seen = list(node.all_input_nodes), set[fx.Node]()
    while waiting:
        latest = max(waiting, key=lambda n: order[n])
        waiting.remove(latest)
        if is_linear_op(latest, net):
            return layer_of(latest)
        if latest not in seen:
            seen.add(latest)
            waiting.extend(n for n in latest.all_input_nodes if n not in seen)
    return None
