"""A width gate acts where that is cheapest: behind its activations, or on the next weights.

Where all that reads a group's channels are linear layers, scaling their input columns by the
binary gates computes the same function: what a dropped channel holds is read by nobody. For a
channel that passes one activation the gradient of its gate is the same number, too. That is
work on weights instead of on activations.
"""

import math
from collections import Counter
from dataclasses import dataclass

from torch import Tensor, fx, nn

from archlearn.analysis.channel_graph import Blueprint
from archlearn.analysis.labels import ZERO, Labels, core
from archlearn.analysis.linear_ops import LinearOp, is_called_again, is_linear_op, read_linear_op
from archlearn.analysis.rules.normalization import local_response
from archlearn.analysis.rules.registry import rule_for
from archlearn.module_utils import find_module

# A training batch is taken to be at least this large; example inputs are often a single one.
ASSUMED_BATCH = 32


@dataclass(frozen=True, slots=True)
class Reader:
    """A layer that reads gated channels.

    Attributes:
        node: The name of its call.
        op: What it computes.
        channels: The channel that each of its input columns belongs to.
    """

    node: str
    op: LinearOp
    channels: Tensor


def place_gates(blueprint: Blueprint, net: nn.Module, place: int) -> dict[int, list[Reader]]:
    """Return the groups whose gates act on weights, with the layers that carry them.

    A group is left out, and its gates stand behind its activations, where a reader is no plain
    linear layer, where a dropped channel is not zero, where another group shares a site or a
    reader, or where the weights are more than the activations.
    """
    readers: dict[int, list[Reader]] = {}
    at_sites = _groups_at_sites(blueprint, place)
    barred = {group for groups in at_sites.values() if len(groups) > 1 for group in groups}
    for node in blueprint.graphs[place].nodes:
        if not node.op.startswith("call"):
            continue
        if is_linear_op(node, net):
            groups, reader = _read(blueprint, net, place, node)
            if reader is None or len(groups) > 1:
                barred |= set(groups)
            else:
                for group in groups:
                    readers.setdefault(group, []).append(reader)
        elif rule_for(node, net) is local_response:
            barred |= set(_groups_in(blueprint, blueprint.followed[place].values[node.name]))
    activations = _count_activations(blueprint, place, at_sites)
    return {
        group: found
        for group, found in readers.items()
        if group >= 0 and group not in barred and _count_weights(net, found) < activations[group]
    }


def _groups_in(blueprint: Blueprint, labels: object) -> list[int]:
    if not isinstance(labels, Labels):
        return []
    return blueprint.groups_among(blueprint.root[labels.ids])


def _groups_at_sites(blueprint: Blueprint, place: int) -> dict[str, list[int]]:
    """Return the groups that pass each gated site, by the name of its call."""
    found: dict[str, list[int]] = {}
    for site in blueprint.sites[place]:
        channels = blueprint.channels_of(place, site)
        if channels is not None and site.node in blueprint.gated[place]:
            found[site.node] = blueprint.groups_among(channels)
    return found


def _read(
    blueprint: Blueprint, net: nn.Module, place: int, node: fx.Node
) -> tuple[list[int], Reader | None]:
    """Return the groups that a layer reads, and the layer, if it can carry their gates."""
    op = read_linear_op(node, net)
    labels = blueprint.followed[place].values[node.all_input_nodes[0].name]
    if op is None or not isinstance(labels, Labels):
        return _groups_in(blueprint, labels), None
    dim = labels.ids.dim() + op.channel_dim
    ids, state = core(labels.ids, labels.state, dim)
    channels = blueprint.root[ids[0]]
    groups = blueprint.groups_among(channels)
    plain = op.is_module and op.groups == 1 and "weight" in find_module(net, op.layer)._parameters
    is_zero = state == ZERO
    zero = bool(is_zero.all() or is_zero[:, blueprint.group_of[channels] >= 0].all())
    told_more = len(node.args) != 1 or bool(node.kwargs)  # such as the size of its output
    barred = told_more or is_called_again(node) or op.layer in blueprint.sharing
    if not plain or not zero or barred:
        return groups, None
    return groups, Reader(node.name, op, channels)


def _count_activations(
    blueprint: Blueprint, place: int, at_sites: dict[str, list[int]]
) -> Counter[int]:
    """Return how many numbers each group's gates would act on behind its activations."""
    counts: Counter[int] = Counter()
    for node, groups in at_sites.items():
        shape = blueprint.followed[place].values[node].shape
        counts.update(dict.fromkeys(groups, math.prod(shape[1:]) * max(shape[0], ASSUMED_BATCH)))
    return counts


def _count_weights(net: nn.Module, readers: list[Reader]) -> int:
    return sum(net.get_parameter(reader.op.weight).numel() for reader in readers)
