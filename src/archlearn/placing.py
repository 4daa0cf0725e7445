"""A width gate acts where that is cheapest: behind its activation, or on the next weights.

Where all that reads a site's channels are linear layers, scaling their input columns by the
binary gate computes the same function, and the gate's gradient is the same number. That is
work on weights instead of on activations.
"""

import math
from dataclasses import dataclass

from torch import Tensor, fx, nn

from archlearn.graphs.blueprint import Blueprint
from archlearn.graphs.labels import Labels, core
from archlearn.graphs.linear_ops import LinearOp, is_linear_op, read_linear_op
from archlearn.graphs.links import shares_parameters
from archlearn.graphs.rules import elementwise, movement, spatial
from archlearn.graphs.rules.registry import rule_for
from archlearn.graphs.sites import Site

# A training batch is taken to be at least this large; example inputs are often a single one.
ASSUMED_BATCH = 32
_TRANSPARENT = (spatial.pool, movement.move, elementwise.keep)


@dataclass(frozen=True, slots=True)
class Reader:
    """A layer that reads gated channels.

    Attributes:
        node: Its call.
        op: What it computes.
        channels: The channel that each of its input columns belongs to.
    """

    node: fx.Node
    op: LinearOp
    channels: Tensor


def find_readers(
    blueprint: Blueprint, net: nn.Module, place: int, site: Site
) -> list[Reader] | None:
    """Return the layers whose weights can carry a site's gates, or None if none can.

    They can if every path from the site leads to a plain linear layer through nothing but
    pooling, dropout and changes of shape, and if they weigh less than the activations.
    """
    graph = blueprint.graphs[place]
    start = next(node for node in graph.nodes if node.name == site.node)
    readers: list[Reader] = []
    waiting, seen = list(start.users), set[fx.Node]()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if is_linear_op(node, net):
            reader = _as_reader(blueprint, net, place, node)
            if reader is None:
                return None
            readers.append(reader)
        elif node.op.startswith("call") and _passes(node, net):
            waiting.extend(node.users)
        else:
            return None
    return readers if readers and _pays(blueprint, net, place, site, readers) else None


def _passes(node: fx.Node, net: nn.Module) -> bool:
    return rule_for(node, net) in _TRANSPARENT and len(node.all_input_nodes) == 1


def _as_reader(blueprint: Blueprint, net: nn.Module, place: int, node: fx.Node) -> Reader | None:
    op = read_linear_op(node, net)
    labels = blueprint.followed[place].values[node.all_input_nodes[0].name]
    if op is None or not op.is_module or op.groups > 1 or not isinstance(labels, Labels):
        return None
    calls = sum(n.op == "call_module" and n.target == node.target for n in node.graph.nodes)
    if calls > 1 or shares_parameters(net, op.layer) or not _is_plain(net, op):
        return None
    ids, _ = core(labels.ids, labels.state, labels.ids.dim() + op.channel_dim)
    return Reader(node, op, blueprint.root[ids[0]])


def _is_plain(net: nn.Module, op: LinearOp) -> bool:
    return "weight" in net.get_submodule(op.layer)._parameters


def _pays(
    blueprint: Blueprint, net: nn.Module, place: int, site: Site, readers: list[Reader]
) -> bool:
    shape = blueprint.followed[place].values[site.node].shape
    activations = math.prod(shape[1:]) * max(shape[0], ASSUMED_BATCH)
    weights = sum(net.get_parameter(reader.op.weight).numel() for reader in readers)
    return weights < activations
