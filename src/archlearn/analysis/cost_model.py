"""Parameters and multiply-adds as a polynomial in the channels kept of each group."""

import math
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from archlearn.analysis.channel_graph import ChannelGraph
from archlearn.analysis.channel_labels import Labels
from archlearn.analysis.linear_ops import LinearOp, find_linear_ops
from archlearn.module_utils import compute_weights, computes_weights, first_names, weight_sources
from archlearn.op_table import TRANSPOSED


@dataclass(frozen=True, slots=True)
class CostTable:
    """One row a weight or a product: `coefficient · (first·kept + a) · (second·kept + b)`.

    Attributes:
        first: Indices of the first dimension for each channel of each group.
        first_fixed: Indices of the first dimension that always stay.
        second: The same for the second dimension.
        second_fixed: The same for the second dimension.
        parameters: Numbers for each pair of indices.
        multiply_adds: Multiply-adds for each pair of indices.
    """

    first: Tensor
    first_fixed: Tensor
    second: Tensor
    second_fixed: Tensor
    parameters: Tensor
    multiply_adds: Tensor


def marginal_costs(table: CostTable, kept: Tensor, coefficients: Tensor) -> Tensor:
    """Return what one more channel of each group costs, at the widths that are kept now."""
    first = table.first @ kept + table.first_fixed
    second = table.second @ kept + table.second_fixed
    return table.first.T @ (coefficients * second) + table.second.T @ (coefficients * first)


def build_cost_table(blueprint: ChannelGraph, net: nn.Module) -> CostTable:
    """Return the table for a network's weights."""
    positions = count_positions(blueprint, net)
    sizes = blueprint.group_sizes()
    rows: list[tuple[Tensor, float, Tensor, float, float, float]] = []
    for name, weight in _read_weights(net).items():
        first, first_fixed = _count_indices(blueprint, name, 0, weight)
        second, second_fixed = _count_indices(blueprint, name, 1, weight)
        rest = math.prod(weight.shape[2:])
        rows.append((first, first_fixed, second, second_fixed, rest, rest * positions.get(name, 0)))
    for parts in blueprint.followed[0].products.values():
        for n, ids in parts:
            found = blueprint.count_by_group(blueprint.root[ids])
            stays = float(len(ids) - found.sum())
            one = torch.zeros(len(sizes))
            rows.append((found / sizes, stays, one, 1.0, 0.0, n / len(ids)))
    firsts, a, seconds, b, numbers, macs = zip(*rows, strict=True)
    return CostTable(
        torch.stack(firsts),
        torch.tensor(a),
        torch.stack(seconds),
        torch.tensor(b),
        torch.tensor(numbers, dtype=torch.float32),
        torch.tensor(macs, dtype=torch.float32),
    )


def _read_weights(net: nn.Module) -> dict[str, Tensor]:
    """Return all parameters by name; computed weights instead of what they are computed from."""
    weights: dict[str, Tensor] = dict(net.named_parameters())
    for owner, module in list(net.named_modules()):
        if computes_weights(module):
            front = f"{owner}." if owner else ""
            for key in weight_sources(module):
                weights.pop(f"{front}{key}", None)
            weights |= {f"{front}{key}": found for key, found in compute_weights(module).items()}
    return weights


def count_positions(
    blueprint: ChannelGraph, net: nn.Module, gone: Container[str] = ()
) -> dict[str, int]:
    """Return how often each weight is applied in one run, without calls that are gone."""
    positions: dict[str, int] = {}
    for call, (name, n) in count_positions_by_call(blueprint, net).items():
        positions[name] = positions.get(name, 0) + (0 if call in gone else n)
    return positions


def count_positions_by_call(blueprint: ChannelGraph, net: nn.Module) -> dict[str, tuple[str, int]]:
    """Return the weight of each linear op in evaluation, and how often it is applied there."""
    found: dict[str, tuple[str, int]] = {}
    names = first_names(net)
    for node, op in find_linear_ops(blueprint.traces.evaluation, net):
        side = node.all_input_nodes[0].name if op.kind == TRANSPOSED else node.name
        labels = blueprint.followed[0].values[side]
        found[node.name] = names.get(op.weight, op.weight), _places(op, labels)
    return found


def _places(op: LinearOp, labels: Any) -> int:
    shape = labels.shape if isinstance(labels, Labels) else ()
    channel = len(shape) + op.channel_dim
    return math.prod(size for dim, size in enumerate(shape) if dim != channel)


def _count_indices(
    blueprint: ChannelGraph, name: str, dim: int, weight: Tensor
) -> tuple[Tensor, float]:
    """Return indices for each channel of each group, and how many indices always stay."""
    size, sizes = weight.shape[dim] if weight.dim() > dim else 1, blueprint.group_sizes()
    channels = blueprint.dims.get((name, dim))
    if channels is None:
        return torch.zeros(len(sizes)), float(size)
    found = blueprint.count_by_group(channels)
    return found / sizes, float(size - found.sum())
