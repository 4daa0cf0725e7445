"""Columns that read a constant: the layer in front has rows of zeros, and gives its bias alone.

So pruning of whole rows leaves them (`torch.nn.utils.prune.ln_structured`). What such a column
adds is a constant, too, and moves into the bias of its layer; then nobody reads the channel.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from archlearn.analysis.channel_graph import ChannelGraph
from archlearn.analysis.linear_ops import LinearOp, is_called_again
from archlearn.gating.channel_slices import GraphReader, NoSlicesError, are_zero
from archlearn.module_utils import find_module, find_tensor
from archlearn.op_table import TRANSPOSED
from archlearn.tracing.example_inputs import ExampleInputs


@dataclass(frozen=True, slots=True)
class ConstantColumns:
    """Columns of a layer that read constants.

    Attributes:
        channels: The channel of each column.
        can_go: Which of them the layer can do without.
        into_bias: Which of those have to move into its bias first.
    """

    channels: Tensor
    can_go: Tensor
    into_bias: Tensor


@torch.no_grad()
def find_constant_columns(
    net: nn.Module, graph: ChannelGraph, inputs: ExampleInputs
) -> dict[str, ConstantColumns]:
    """Return the columns that read constants, by layer.

    The network is run once for their values: in front of zero padding only zeros can go.
    """
    reader = GraphReader(net, graph, 0)
    dead: dict[str, tuple[LinearOp, Tensor]] = {}
    for node, op in reader.ops.items():
        if op is not None and _can_fold(node, op, graph):
            is_dead = _find_dead(net, reader, node, op)
            if bool(is_dead.any()):
                dead[op.layer] = op, is_dead
    values = _read_inputs(net, list(dead), inputs)
    columns_of: dict[str, ConstantColumns] = {}
    for layer, (op, is_dead) in dead.items():
        columns = values[layer].movedim(op.channel_dim, 0).flatten(1)
        is_zero = (columns == 0).all(1)
        is_same = (columns == columns[:, :1]).all(1) & (not op.padded)
        can_go = is_dead & (is_zero | is_same).cpu()
        channels = graph.dims[reader.first.get(op.weight, op.weight), op.in_dim]
        is_read = (find_tensor(net, op.weight) != 0).movedim(op.in_dim, 0).flatten(1).any(1)
        columns_of[layer] = ConstantColumns(channels, can_go, can_go & (is_read & ~is_zero).cpu())
    return columns_of


def _can_fold(node: fx.Node, op: LinearOp, graph: ChannelGraph) -> bool:
    """Return whether a layer has a bias, or may get one, that nobody else uses."""
    is_own = op.layer not in graph.sharing and not is_called_again(node)
    is_plain = node.name not in graph.followed[0].passing and op.kind != TRANSPOSED
    return op.takes_constants and is_own and is_plain


def _find_dead(net: nn.Module, reader: GraphReader, node: fx.Node, op: LinearOp) -> Tensor:
    """Return which columns read channels whose rows are zero."""
    source = node.all_input_nodes[0]
    n = find_tensor(net, op.weight).shape[op.in_dim]
    is_dead = torch.zeros(n, dtype=torch.bool, device="cpu")
    for group in reader.carried[source]:
        try:
            rows = reader.rows_behind(source, group)
        except NoSlicesError:
            continue
        written = torch.cat([slices.gates[slices.gates >= 0] for slices in rows])
        alive = [slices.gates[(slices.gates >= 0) & ~are_zero(net, slices)] for slices in rows]
        gates = written[~torch.isin(written, torch.cat(alive))]
        for columns in reader.slices(op.weight, op.in_dim, group):
            is_dead |= torch.isin(columns.gates, gates).any(0)
    return is_dead


def _read_inputs(net: nn.Module, layers: list[str], inputs: ExampleInputs) -> dict[str, Tensor]:
    """Return what layers read in one run."""
    read: dict[str, Tensor] = {}

    def note(layer: str) -> Any:
        return lambda _, args: read.update({layer: args[0].detach().clone()})

    handles = [find_module(net, name).register_forward_pre_hook(note(name)) for name in layers]
    copied = inputs.copy()
    try:
        if layers:
            net(*copied.args, **copied.kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return read
