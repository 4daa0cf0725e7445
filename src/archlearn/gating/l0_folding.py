"""Fold real (L0) gates into the weights of the layer that writes their channel.

For a number s of zero or more, `act(s x) = s act(x)` holds for ReLU and its leaky relatives, and
for pooling. So a gate behind the activation can be multiplied into the weights in front of it, and
what is left of it is whether it is zero.
"""

import torch
from torch import Tensor, fx, nn

from archlearn.analysis.channel_graph import ChannelGraph
from archlearn.analysis.gate_sites import Site
from archlearn.analysis.linear_ops import is_called_again
from archlearn.errors import InputError
from archlearn.gating.gate_container import find_container
from archlearn.module_utils import copy_model, evaluating, find_module
from archlearn.nn.functional import join_gates, open_flat
from archlearn.op_table import ACTIVATE, CONV, LINEAR, spec_of


def find_writers(channel_graph: ChannelGraph, net: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the layers into which real gates can go, one for each gated site.

    Each with the place of the gate of each of its rows among all width gates; -1 for none.
    """
    place_of = channel_graph.gate_places()
    writers: list[tuple[str, Tensor]] = []
    covered = torch.zeros(int(channel_graph.group_sizes().sum()), dtype=torch.long)
    nodes = {node.name: node for node in channel_graph.graphs[0].nodes}
    for site in channel_graph.sites[0]:
        channels = channel_graph.channels_of(0, site)
        if channels is None or site.node not in channel_graph.gated[0]:
            continue
        places = place_of[channels]
        if bool((places >= 0).any()):
            layer = _find_writer(nodes[site.node], site, channel_graph, net)
            writers.append((layer, place_of[channel_graph.dims[f"{layer}.weight", 0]]))
            covered[torch.unique(places[places >= 0])] += 1
    _check_covered(channel_graph, covered)
    return writers


@torch.no_grad()
def fold_gates_into_weights(model: nn.Module) -> nn.Module:
    """Return a copy with binary gates that computes what the model computes in evaluation mode.

    The model's own gates are real numbers; they are multiplied into the layers in front.
    """
    made = copy_model(model)
    container = find_container(made)
    assert container is not None
    gates = list(container.width_gates().values())
    with evaluating(made):
        scale = join_gates(container()[: len(gates)])
    for layer, places in find_writers(container.channel_graph, made):
        rows = scale.new_ones(len(places))
        rows[places >= 0] = scale[places[places >= 0]]
        for parameter in made.get_submodule(layer)._parameters.values():
            if parameter is not None:
                parameter.mul_(rows.reshape(-1, *[1] * (parameter.dim() - 1)))
    opened = open_flat(join_gates(gates), container.rows)
    for gate, binary in zip(gates, opened.split([len(gate) for gate in gates]), strict=True):
        gate.copy_(binary)
    container.kind = "binary"
    return made


def _find_writer(node: fx.Node, site: Site, channel_graph: ChannelGraph, net: nn.Module) -> str:
    spec = spec_of(node, net)
    if spec is None or not spec.homogeneous:
        raise _refusal(site.name, f"its activation is {site.activation}")
    source = node.all_input_nodes[0]
    while _passes(source, net) and len(source.users) == 1:
        source = source.all_input_nodes[0]
    if not _can_be_scaled(source, net):
        raise _refusal(site.name, f"no plain layer stands in front of it, but {source.name!r}")
    name = str(source.target)
    if len(source.users) > 1 or is_called_again(source) or name in channel_graph.sharing:
        raise _refusal(site.name, f"something else uses {name!r}, too")
    return name


def _can_be_scaled(node: fx.Node, net: nn.Module) -> bool:
    """Return whether a module's parameters have a row for each channel that it writes."""
    spec = spec_of(node, net) if node.op == "call_module" else None
    if spec is None or find_module(net, str(node.target))._parameters.get("weight") is None:
        return False
    return spec.foldable or (spec.product is not None and spec.product[0] in (LINEAR, CONV))


def _passes(node: fx.Node, net: nn.Module) -> bool:
    """Return whether a call only moves, pools or drops elements of each channel."""
    spec = spec_of(node, net)
    return spec is not None and spec.homogeneous and spec.rule != ACTIVATE


def _check_covered(channel_graph: ChannelGraph, covered: Tensor) -> None:
    parts = covered.split(channel_graph.group_sizes().tolist())
    for group, times in zip(channel_graph.groups, parts, strict=True):
        if not bool((times == 1).all()):
            raise _refusal(group.name, "its channels pass several activations, or none of them")


def _refusal(name: str, why: str) -> InputError:
    return InputError(
        f"a real gate behind {name!r} cannot become part of a layer: {why}; leave it out with "
        f"learn={{'*': Learn.WIDTH, {name!r}: Learn.NOTHING}}, or use kind='binary'"
    )
