"""Insert gates into a graph: behind activations, where channels are read, on weights, on branches.

Where all that reads a group's channels are linear layers, scaling their input columns by the
binary gates computes the same function: what a dropped channel holds is read by nobody. For a
channel that passes one activation the gradient of its gate is the same number, too. That is
work on weights instead of on activations.
"""

import functools
import math
import operator
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from archlearn.analysis.channel_graph import ChannelGraph
from archlearn.analysis.channel_labels import FIXED, ZERO, Labels, core
from archlearn.analysis.gate_sites import Site
from archlearn.analysis.head_channels import ReadPlane, read_plane
from archlearn.analysis.linear_ops import (
    LinearOp,
    find_linear_ops,
    is_called_again,
    is_linear_op,
    read_linear_op,
)
from archlearn.analysis.propagation_rules import pooling, products, rule_for
from archlearn.analysis.propagation_rules.normalization import (
    across_channels,
    group_norm,
    local_response,
    unit_length,
)
from archlearn.gating.gate_container import CONTAINER, GateContainer
from archlearn.gating.selection import LearnableSites
from archlearn.module_utils import find_module, first_names, is_weight_hook
from archlearn.nn.functional import gates_of_heads
from archlearn.nn.norms import (
    masked_group_norm,
    masked_layer_norm,
    masked_rms_norm,
    masked_unit_length,
    masked_variance,
    rescale_mean,
    weigh_channels,
)
from archlearn.nn.recurrent import call_recurrent
from archlearn.nn.tristate_activation import gate_branch, gate_channels, gate_heads, mix_linear
from archlearn.op_table import RECURRENT, out_of_place
from archlearn.tracing.block_hooks import (
    MARKS,
    begin_block,
    end_block,
    erase_marks_of_,
    mark_blocks_,
)
from archlearn.tracing.fx_utils import copy_graph
from archlearn.tracing.symbolic_trace import Traces

# Rules of calls in which a channel may change others: a norm over them, a sum or mean of them.
_BETWEEN_CHANNELS = (
    local_response, unit_length, pooling.mean, pooling.reduce, pooling.variance,
    products.matmul, products.einsum, products.attention,
)  # fmt: skip
# Layers that may carry the gate of the branch that they end, on their weights.
_ENDING = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d,
)  # fmt: skip
# A training batch is taken to be at least this large; example inputs are often a single one.
ASSUMED_BATCH = 128


@dataclass(frozen=True, slots=True)
class Reader:
    """A layer that reads gated channels: its call, and the channel of each of its input columns."""

    node: str
    op: LinearOp
    channels: Tensor


def place_gates(channel_graph: ChannelGraph, net: nn.Module, index: int) -> dict[int, list[Reader]]:
    """Return the groups whose gates act on weights, with the layers that carry them.

    A group is left out, and its gates stand behind its activations, where a reader is no plain
    linear layer, where a dropped channel is not zero, where another group shares a site or a
    reader, or where the weights are more than the activations.
    """
    readers: dict[int, list[Reader]] = {}
    at_sites = _groups_at_sites(channel_graph, index) | _groups_read(channel_graph, index)
    barred = {group for groups in at_sites.values() if len(groups) > 1 for group in groups}
    for node in channel_graph.graphs[index].nodes:
        if not node.op.startswith("call"):
            continue
        if is_linear_op(node, net):
            passing = channel_graph.followed[index].passing.get(node.name, channel_graph.root[:0])
            barred |= set(channel_graph.groups_among(channel_graph.root[passing]))
            groups, reader = _read(channel_graph, net, index, node)
            if reader is None or len(groups) > 1:
                barred |= set(groups)
            else:
                for group in groups:
                    readers.setdefault(group, []).append(reader)
            continue
        if rule_for(node, net) in _BETWEEN_CHANNELS:
            barred |= _mixed_groups(channel_graph, net, index, node)
        if node.name in channel_graph.followed[index].reads:  # a norm, or a product within heads
            read = channel_graph.followed[index].reads[node.name]
            barred |= set(channel_graph.groups_among(channel_graph.root[read.ids]))
    activations = _count_activations(channel_graph, index, at_sites)
    return {
        group: layers
        for group, layers in readers.items()
        if group >= 0
        and group not in barred
        and sum(net.get_parameter(r.op.weight).numel() for r in layers) < activations[group]
    }


def _mixed_groups(
    channel_graph: ChannelGraph, net: nn.Module, index: int, node: fx.Node
) -> set[int]:
    """Return the groups that meet others in a call, which must see them gated.

    Also those of what it reads at two places: attention of x to itself sums over channels of x.
    """
    values = channel_graph.followed[index].values
    inputs = (values[source.name] for source in node.all_input_nodes)
    read = {group for labels in inputs for group in _groups_in(channel_graph, labels)}
    operands: list[fx.Node] = []
    map_arg((node.args, node.kwargs), operands.append)
    is_twice = len(operands) > len(node.all_input_nodes)
    is_local = rule_for(node, net) in (local_response, unit_length)
    return (
        read if is_local or is_twice else read - set(_groups_in(channel_graph, values[node.name]))
    )


def _groups_in(channel_graph: ChannelGraph, labels: object) -> list[int]:
    if not isinstance(labels, Labels):
        return []
    return channel_graph.groups_among(channel_graph.root[labels.ids])


def _groups_at_sites(channel_graph: ChannelGraph, index: int) -> dict[str, list[int]]:
    """Return the groups that pass each gated site, by the name of its call."""
    groups: dict[str, list[int]] = {}
    for site in channel_graph.sites[index]:
        channels = channel_graph.channels_of(index, site)
        if channels is not None and site.node in channel_graph.gated[index]:
            groups[site.node] = channel_graph.groups_among(channels)
    return groups


def _groups_read(channel_graph: ChannelGraph, index: int) -> dict[str, list[int]]:
    """Return the groups that are gated where they are read, by the name of what is read."""
    nodes = {node.name: node for node in channel_graph.graphs[index].nodes}
    return {
        nodes[name].all_input_nodes[0].name: channel_graph.groups_among(
            channel_graph.root[read.ids]
        )
        for name, read in channel_graph.followed[index].reads.items()
    }


def _read(
    channel_graph: ChannelGraph, net: nn.Module, index: int, node: fx.Node
) -> tuple[list[int], Reader | None]:
    """Return the groups that a layer reads, and the layer, if it can carry their gates."""
    op = read_linear_op(node, net)
    labels = channel_graph.followed[index].values[node.all_input_nodes[0].name]
    if op is None or not isinstance(labels, Labels):
        return _groups_in(channel_graph, labels), None
    dim = labels.ids.dim() + op.channel_dim
    ids, state = core(labels.ids, labels.state, dim)
    read = channel_graph.followed[index].reads.get(node.name)
    channels = channel_graph.root[ids[0]]
    if (
        node.name in channel_graph.followed[index].passing
    ):  # others lie along the dimension it reads
        channels = channel_graph.root[torch.zeros_like(ids[0]) if read is None else read.ids]
    groups = channel_graph.groups_among(channels)
    plain = op.is_module and op.groups == 1 and "weight" in find_module(net, op.layer)._parameters
    is_zero = state == ZERO
    if read is not None:
        is_zero = is_zero | (read.ids != FIXED)
    zero = bool(is_zero.all() or is_zero[:, channel_graph.is_learnt(channels)].all())
    told_more = len(node.args) != 1 or bool(node.kwargs)  # such as the size of its output
    barred = told_more or is_called_again(node) or op.layer in channel_graph.sharing
    if not plain or not zero or barred:
        return groups, None
    return groups, Reader(node.name, op, channels)


def _count_activations(
    channel_graph: ChannelGraph, index: int, at_sites: dict[str, list[int]]
) -> Counter[int]:
    """Return how many numbers each group's gates would act on behind its activations."""
    counts: Counter[int] = Counter()
    for node, groups in at_sites.items():
        shape = channel_graph.followed[index].values[node].shape
        counts.update(dict.fromkeys(groups, count_activations(shape)))
    return counts


def count_activations(shape: torch.Size) -> int:
    """Return how many numbers a tensor of activations has in training."""
    return math.prod(shape[1:]) * max(shape[0], ASSUMED_BATCH)


def insert_gates(net: nn.Module, container: GateContainer, index: int) -> fx.Graph:
    """Return a copy of one of the model's graphs, with its gates.

    Activations in front of a depth gate no longer work in place.
    """
    channel_graph = container.channel_graph
    graph, nodes = copy_with_marks(channel_graph.traces, index)
    standing = container.standing
    leave_out_branches_(graph, nodes, container.learnable, container.left_out(), index)
    writer = _Writer(graph, net, container)
    on_weights = place_gates(channel_graph, net, index)
    by_name = {node.name: node for node in channel_graph.graphs[index].nodes}
    for site in channel_graph.sites[index]:
        if site.node not in nodes:
            continue
        node = nodes[site.node]
        if (
            site.name in container.learnable.mergeable
            and container.place_of_site(site.name) not in standing
        ):
            node = writer.mix_linear(node, site)
        channels = channel_graph.channels_of(index, site)
        if channels is None or site.node not in channel_graph.gated[index]:
            continue
        if int(channel_graph.group_of[channels[0]]) not in on_weights:
            followed = channel_graph.followed[index]
            # Counted from behind: inputs may have more or fewer dimensions in front.
            dim = followed.sites[site.node].dim - followed.values[site.node].ids.dim()
            writer.gate_channels(node, channels, dim)
    for name, read in channel_graph.followed[index].reads.items():
        channels = channel_graph.root[read.ids]
        if name not in nodes:
            continue
        rule = rule_for(by_name[name], net)
        if rule in (across_channels, group_norm):
            writer.gate_norm(nodes[name], channels)
        elif rule is pooling.mean:
            writer.gate_mean(nodes[name], channels, read.dim)
        elif rule is pooling.variance:
            writer.gate_variance(nodes[name], channels, read.dim)
        elif rule is unit_length:
            writer.gate_length(nodes[name], channels, read.dim)
        elif (plane := _plane_of_heads(channel_graph, index, by_name[name])) is not None:
            writer.gate_heads(nodes[name], plane)
        elif not on_weights.keys() & set(channel_graph.groups_among(channels)):
            writer.gate_read(nodes[name], channels, read.dim)
    for group, readers in on_weights.items():
        for reader in readers:
            if reader.node in nodes and group not in standing:
                writer.gate_columns(nodes[reader.node], reader)
    names = first_names(net)
    for node, op in find_linear_ops(channel_graph.graphs[index], net):
        if op.kind == RECURRENT and node.name in nodes:
            weight, dim = op.output_dim
            channels = channel_graph.dims[names.get(weight, weight), dim]
            writer.gate_units(nodes[node.name], channels)
    for branch in container.learnable.branches.values():
        addition = branch.additions[index]
        if addition.node in nodes and container.place_of_branch(branch.name) not in standing:
            n_activations = count_activations(
                channel_graph.followed[index].values[addition.node].shape
            )
            writer.gate_branch(nodes[addition.node], addition.operand, branch.name, n_activations)
    if not writer.acting.users:  # all gates stand still
        graph.erase_node(writer.acting)
    return graph


def _plane_of_heads(channel_graph: ChannelGraph, index: int, node: fx.Node) -> ReadPlane | None:
    """Return what a product reads of heads each of which may keep other channels."""
    read = channel_graph.root[channel_graph.followed[index].reads[node.name].ids]
    group = int(channel_graph.group_of[read[0]])
    is_within = group >= 0 and channel_graph.groups[group].heads is not None
    return read_plane(channel_graph, index, node) if is_within else None


def copy_with_marks(traces: Traces, index: int) -> tuple[fx.Graph, dict[str, fx.Node]]:
    """Return a copy of a graph with marks for the hooks of blocks, and its nodes by their names."""
    graph, nodes = copy_graph(traces.graphs[index])
    mark_blocks_(graph, traces.blocks[index] if traces.blocks else ())
    return graph, nodes


def leave_out_branches_(
    graph: fx.Graph,
    nodes: dict[str, fx.Node],
    learnable: LearnableSites,
    closed: Iterable[str],
    index: int,
) -> None:
    """Let the sum of each closed branch be its shortcut, and erase what nobody reads then.

    `nodes` are those of the graph, a copy, by their original names; erased ones are taken out.
    """
    closed = list(closed)
    for name in closed:
        addition = learnable.branches[name].additions[index]
        node = nodes.pop(addition.node)
        shortcut = node.args[1 - addition.operand]
        assert isinstance(shortcut, fx.Node)
        node.replace_all_uses_with(shortcut)
        graph.erase_node(node)
    calls = learnable.removals.gone_calls(index, learnable.branch_places(closed))
    gone = {nodes.pop(name) for name in calls & nodes.keys()}
    for node in [node for node in reversed(graph.nodes) if node in gone]:
        erase_marks_of_(node)
        graph.erase_node(node)


def assemble_gates(gates: list[Tensor], index: Tensor) -> Tensor:
    """Return the gates of a site that several groups pass; index 0 is always open.

    With several rows of indices all of those gates must be open.
    """
    acting = torch.cat([gates[0].new_ones(1), *gates])[index]
    return acting if index.dim() == 1 else functools.reduce(torch.mul, acting.unbind())


def call_gated(
    layer: nn.Module, x: Tensor, width: Tensor | None, dim: int, branch: Tensor | None = None
) -> Tensor:
    """Call a layer with each input column of its weight multiplied by its width gate.

    With the gate of a branch that the layer ends, weight and bias are multiplied by that, too: or
    else what it returns, where hooks may change that, or a user has put another layer there.
    """
    owner: Any = layer
    forward_hooks = owner._forward_hooks or owner._forward_pre_hooks
    is_hooked = forward_hooks or owner._backward_hooks or owner._backward_pre_hooks
    if branch is not None and (is_hooked or type(layer) not in _ENDING):
        return gate_branch(layer(x) if width is None else call_gated(layer, x, width, dim), branch)
    weight, bias = owner.weight, owner.bias
    if width is not None:
        if any(map(is_weight_hook, owner._forward_pre_hooks.values())):
            # It was put there since (`prune`), and computes the weight anew.
            return layer(gate_channels(x, width, 1 - weight.dim()))
        weight = gate_channels(weight, width, dim)
    if branch is not None and weight.dim() == 1:  # of a norm: few kernels, for they are small
        weight, bias = gate_branch(torch.stack([weight, bias]), branch).unbind()
    elif branch is not None:
        weight = gate_branch(weight, branch)
        bias = None if bias is None else gate_branch(bias, branch)
    if not is_hooked:
        if isinstance(layer, nn.Linear):
            return F.linear(x, weight, bias)
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            return owner._conv_forward(x, weight, bias)
        if branch is not None:
            return _batch_norm(owner, x, weight, bias)
    return torch.func.functional_call(layer, {"weight": weight}, (x,))


def _batch_norm(layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Call a BatchNorm with another weight and bias, which other threads must not see."""
    layer._check_input_dim(x)
    momentum = layer.momentum
    learns = layer.training and layer.track_running_stats
    if learns and layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
        if momentum is None:
            momentum = 1.0 / float(layer.num_batches_tracked)
    kept = (layer.running_mean, layer.running_var) if learns or not layer.training else (None, None)
    is_of_batch = layer.training or kept[0] is None
    return F.batch_norm(x, *kept, weight, bias, is_of_batch, momentum or 0.0, layer.eps)


class _Writer:
    """Writes gates into a graph."""

    def __init__(self, graph: fx.Graph, net: nn.Module, container: GateContainer) -> None:
        self.graph, self.net, self.container = graph, net, container
        start = next(node for node in graph.nodes if node.op != "placeholder")
        with graph.inserting_before(start):
            self.acting = graph.call_module(CONTAINER)
        self.last, self.assembled = self.acting, dict[object, fx.Node]()
        self.read: dict[tuple[fx.Node, tuple[int, ...]], fx.Node] = {}

    def gate_channels(self, node: fx.Node, channels: Tensor, dim: int) -> None:
        """Put the width gates of a site behind a node."""
        self._gate_behind(node, channels, gate_channels, dim)

    def gate_read(self, node: fx.Node, channels: Tensor, dim: int) -> None:
        """Let a call read its input through gates; calls that read the same share the product."""
        width = self._find_gates(channels)
        if width is None:
            return
        source = node.all_input_nodes[0]
        key = source, tuple(channels.tolist())
        if key not in self.read:
            with self.graph.inserting_before(node):
                self.read[key] = self.graph.call_function(gate_channels, (source, width, dim))
        self._let_read(node, self.read[key])

    def gate_heads(self, node: fx.Node, plane: ReadPlane) -> None:
        """Let a product read its first factor through gates, others in each head."""
        groups, index = self.container.find(plane.ids.reshape(-1))
        channel_graph = self.container.channel_graph
        if all(channel_graph.groups[group].heads is None for group in groups):
            return
        assert index is not None  # heads have gates of their own
        width = self._assemble(groups, index[1])  # heads are gated behind
        with self.graph.inserting_before(node):
            arguments = (node.all_input_nodes[0], width, plane.dims)
            gated = self.graph.call_function(gate_heads, arguments)
        self._let_read(node, gated)

    def _let_read(self, node: fx.Node, gated: fx.Node) -> None:
        """Let a call read something else than its first input, at one place alone."""
        source = node.all_input_nodes[0]
        if source in node.args:  # once: a closed gate would have no gradient through its square
            node.update_arg(node.args.index(source), gated)
        else:
            node.replace_input_with(source, gated)

    def gate_mean(self, node: fx.Node, channels: Tensor, dim: int) -> None:
        """Let a mean be taken over the open channels."""
        self.gate_read(node, channels, dim)
        self._gate_behind(node, channels, rescale_mean)

    def gate_variance(self, node: fx.Node, channels: Tensor, dim: int) -> None:
        """Let a variance be taken over the open channels."""
        options = _options_of(node, "dim", "unbiased", "keepdim")
        correction = options.get("correction", options.get("unbiased", True))
        more = dim, correction, options.get("keepdim", False)
        self._gate_inside(node, channels, masked_variance, *more)

    def gate_length(self, node: fx.Node, channels: Tensor, dim: int) -> None:
        """Let `F.normalize` take the length over the open channels."""
        options = _options_of(node, "p", "dim", "eps")
        more = dim, options.get("p", 2.0), options.get("eps", 1e-12)
        self._gate_inside(node, channels, masked_unit_length, *more)

    def _gate_inside(self, node: fx.Node, channels: Tensor, function: Any, *more: Any) -> None:
        """Put a function of a call's input, and of the gates of its channels, in its place."""
        width = self._find_gates(channels)
        if width is not None:
            self._replace(node, function, node.all_input_nodes[0], width, *more)

    def _replace(self, node: fx.Node, function: Any, *arguments: Any, **named: Any) -> None:
        with self.graph.inserting_before(node):
            call = self.graph.call_function(function, arguments, named)
        node.replace_all_uses_with(call)
        self.graph.erase_node(node)

    def _gate_behind(self, node: fx.Node, channels: Tensor, function: Any, *more: Any) -> None:
        """Let all that read a node read a function of it and of the gates of its channels."""
        width = self._find_gates(channels)
        if width is None:
            return
        with self.graph.inserting_after(node):
            gated = self.graph.call_function(function, (node, width, *more))
        node.replace_all_uses_with(gated, delete_user_cb=lambda user: user is not gated)

    def gate_norm(self, node: fx.Node, channels: Tensor) -> None:
        """Let a LayerNorm, RMSNorm or GroupNorm take its statistics over the open channels."""
        width = self._find_gates(channels)
        if width is None:
            return
        x, call = node.all_input_nodes[0], self.graph.call_function
        with self.graph.inserting_before(node):
            function, arguments = self._read_norm(node)
            n_groups = arguments[-1] if function is masked_group_norm else 1
            opened = self._weigh(width, n_groups)
            if node.op == "call_module":  # it is not called any more, but its hooks are
                call(begin_block, (node.name, str(node.target), (x,), {}, ()))
            masked = call(function, (x, opened, *arguments))
            if node.op == "call_module":
                call(end_block, (node.name, str(node.target), masked, ()))
        node.replace_all_uses_with(masked)
        self.graph.erase_node(node)

    def _read_norm(self, node: fx.Node) -> tuple[Any, tuple[Any, ...]]:
        """Return the masked form of a norm, and its weight, its bias if it has one, and eps."""
        if node.op == "call_module":
            module: Any = find_module(self.net, str(node.target))
            is_rms, is_group = isinstance(module, nn.RMSNorm), isinstance(module, nn.GroupNorm)
            options: dict[str, Any] = {
                key: self.graph.get_attr(f"{node.target}.{key}")
                for key in ("weight", "bias")
                if getattr(module, key, None) is not None
            }
            options |= {"eps": module.eps, "num_groups": getattr(module, "num_groups", None)}
        else:
            kind = getattr(node.target, "__name__", "")
            is_rms, is_group = kind == "rms_norm", kind == "group_norm"
            names = ("num_groups", "weight", *(() if is_rms else ("bias",)), "eps")
            options = _options_of(node, *names)
        if is_rms:
            return masked_rms_norm, (options.get("weight"), options.get("eps"))
        arguments = options.get("weight"), options.get("bias"), options.get("eps", 1e-5)
        if is_group:
            return masked_group_norm, (*arguments, options["num_groups"])
        return masked_layer_norm, arguments

    def gate_branch(self, node: fx.Node, operand: int, name: str, n_activations: int) -> None:
        """Put the gate of a branch in front of its addition, or on the weights of its last layer.

        The latter where those are fewer numbers than what the branch adds.
        """
        gate = self._acting(self.container.place_of_branch(name))
        last: Any = node.args[operand]
        while self._is_alone(last) and self._called(last, nn.Dropout, nn.Dropout2d) is not None:
            last = last.args[0]
        if self._is_alone(last) and last.target is call_gated:
            layer: Any = find_module(self.net, str(last.args[0].target))
            if layer.weight.numel() < n_activations:
                last.args = (*last.args, gate)
                return
        layer = self._called(last, *_ENDING) if self._is_alone(last) else None
        if layer is not None and layer.weight is not None and layer.weight.numel() < n_activations:
            with self.graph.inserting_before(last):
                owner = self.graph.get_attr(str(last.target))
            self._replace(last, call_gated, owner, last.args[0], None, 1, gate)
            return
        with self.graph.inserting_before(node):
            gated = self.graph.call_function(gate_branch, (node.args[operand], gate))
        node.update_arg(operand, gated)

    def _is_alone(self, node: fx.Node) -> bool:
        """Return whether one call alone reads what a layer gives, and it is told nothing else."""
        n_users = sum(user.target not in MARKS for user in node.users)
        is_plain = n_users == 1 and not node.kwargs
        return is_plain and (node.target is call_gated or len(node.args) == 1)

    def _called(self, node: fx.Node, *kinds: type[nn.Module]) -> Any:
        """Return the module that a node calls, if it is of one of these kinds."""
        layer = find_module(self.net, str(node.target)) if node.op == "call_module" else None
        return layer if type(layer) in kinds else None

    def gate_columns(self, node: fx.Node, reader: Reader) -> None:
        """Let a layer read its input through the gates, by scaling its weight."""
        width = self._find_gates(reader.channels)
        with self.graph.inserting_before(node):
            layer = self.graph.get_attr(reader.op.layer)
        source = node.all_input_nodes[0]
        self._replace(node, call_gated, layer, source, width, reader.op.in_dim)

    def gate_units(self, node: fx.Node, channels: Tensor) -> None:
        """Let a recurrent layer read its own units through the gates, by scaling its weights."""
        width = self._find_gates(channels)
        if width is not None:
            with self.graph.inserting_before(node):
                layer = self.graph.get_attr(str(node.target))
            self._replace(node, call_recurrent, layer, width, *node.args, **node.kwargs)

    def mix_linear(self, node: fx.Node, site: Site) -> fx.Node:
        """Put the depth gate of a site behind a node."""
        make_out_of_place_(node, self.net)
        depth = self._acting(self.container.place_of_site(site.name))
        with self.graph.inserting_after(node):
            mixed = self.graph.call_function(mix_linear, (node.args[0], node, depth))
        node.replace_all_uses_with(mixed, delete_user_cb=lambda user: user is not mixed)
        return mixed

    def _acting(self, index: int) -> fx.Node:
        """Return the gates at a place, which all that need them share."""
        if index not in self.assembled:
            gates = self._prepare(operator.getitem, (self.acting, index))
            names = self.container.names_of_heads(index)
            if names is not None:
                with self.graph.inserting_after(self.last):
                    order = self.graph.get_attr(names[0])
                with self.graph.inserting_after(order):
                    probe = self.last = self.graph.get_attr(names[1])
                gates = self._prepare(gates_of_heads, (gates, order, probe))
            self.assembled[index] = gates
        return self.assembled[index]

    def _find_gates(self, channels: Tensor) -> fx.Node | None:
        """Return the gates of some channels, or None if none of them is learnt."""
        groups, index = self.container.find(channels)
        return self._assemble(groups, index) if groups else None

    def _assemble(self, groups: list[int], index: Tensor | None) -> fx.Node:
        """Return the gates of a site, which all sites with the same channels share."""
        opened = [self._acting(group) for group in groups]
        if index is None:
            return opened[0]
        key = (*groups, index.shape, *index.flatten().tolist())
        if key not in self.assembled:
            with self.graph.inserting_after(self.last):
                self.last = self.graph.get_attr(self.container.keep_index(index))
            self.assembled[key] = self._prepare(assemble_gates, (opened, self.last))
        return self.assembled[key]

    def _weigh(self, width: fx.Node, n_groups: int) -> fx.Node:
        """Return what norms need of gates, which all norms of the same channels share."""
        key = weigh_channels, width, n_groups
        if key not in self.assembled:
            self.assembled[key] = self._prepare(weigh_channels, (width, n_groups))
        return self.assembled[key]

    def _prepare(self, function: Any, arguments: tuple[Any, ...]) -> fx.Node:
        """Put a call in front of the network, behind all that stands there already."""
        with self.graph.inserting_after(self.last):
            self.last = self.graph.call_function(function, arguments)
        return self.last


def _options_of(node: fx.Node, *names: str) -> dict[str, Any]:
    """Return the arguments of a call behind its first, by names."""
    return dict(zip(names, node.args[1:], strict=False)) | dict(node.kwargs)


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
        node.target = out_of_place(target)
        if "inplace" in node.kwargs:
            node.update_kwarg("inplace", False)
