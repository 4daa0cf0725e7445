"""Parameters and multiply-adds as a polynomial in the channels kept of each group."""

import functools
import math
import operator
from collections.abc import Container
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor, nn

from archlearn.analysis.channel_graph import ChannelGraph
from archlearn.analysis.channel_labels import Labels
from archlearn.analysis.linear_ops import find_linear_ops
from archlearn.module_utils import compute_weights, computes_weights, first_names, weight_sources
from archlearn.op_table import RECURRENT, TRANSPOSED


@dataclass(frozen=True, slots=True)
class CostTable:
    """One row a weight or a product, which costs a coefficient times the product of its factors.

    A factor is `counts · kept + fixed`: one for each of two dimensions, and one more for each where
    there are heads and channels within.

    Attributes:
        counts: How many indices there are for each channel of each group: factor, row, group.
        fixed: How many indices always stay: factor, row.
        parameters: Numbers for each combination of indices.
        multiply_adds: Multiply-adds for each combination of indices.
    """

    counts: Tensor
    fixed: Tensor
    parameters: Tensor
    multiply_adds: Tensor

    def factors(self, kept: Tensor) -> list[Tensor]:
        """Return all factors of each row, at the widths that are kept."""
        return [counts @ kept + n for counts, n in zip(self.counts, self.fixed, strict=True)]


def marginal_costs(table: CostTable, kept: Tensor, coefficients: Tensor) -> Tensor:
    """Return what one more channel of each group costs, at the widths that are kept now."""
    factors = table.factors(kept)
    terms: list[Tensor] = []
    for index, counts in enumerate(table.counts):
        others = factors[:index] + factors[index + 1 :]
        terms.append(counts.T @ functools.reduce(operator.mul, others, coefficients))
    return functools.reduce(operator.add, terms)


Factor = tuple[Tensor, float]


def build_cost_table(channel_graph: ChannelGraph, net: nn.Module) -> CostTable:
    """Return the table for a network's weights."""
    passing = channel_graph.followed[0].passing
    by_call = count_positions_by_call(channel_graph, net)
    one = torch.zeros(len(channel_graph.groups), device="cpu"), 1.0
    rows: list[tuple[list[Factor], float, float]] = []
    calls: dict[str, list[tuple[str, Application]]] = {}
    for call, applied in by_call.items():
        for application in applied:
            calls.setdefault(application.weight, []).append((call, application))
    for name, weight in _read_weights(net).items():
        sides: list[list[Factor]] = []
        for dim in (0, 1):
            size = weight.shape[dim] if weight.dim() > dim else 1
            sides.append(_count_indices(channel_graph, channel_graph.dims.get((name, dim)), size))
        rest, n_places = math.prod(weight.shape[2:]), 0
        for call, application in calls.get(name, ()):
            n = application.n_places
            if call in passing and n:
                channels = channel_graph.root[passing[call]]
                rest_counts = _count_indices(channel_graph, channels, len(channels))
                rows.append(([*sides[0], *sides[1], *rest_counts], 0.0, rest * n / len(channels)))
            elif application.rows is not None and n:
                part = _count_indices(channel_graph, application.rows, len(application.rows))
                rows.append(([*part, *sides[1]], 0.0, rest * n))
            else:
                n_places += n
        rows.append(([*sides[0], *sides[1]], rest, rest * n_places))
    for parts in channel_graph.followed[0].products.values():
        for n, ids in parts:
            factors = _count_indices(channel_graph, channel_graph.root[ids], len(ids))
            rows.append(([*factors, one], 0.0, n / len(ids)))
    n_factors = max(len(factors) for factors, _, _ in rows)
    filled = [factors + [one] * (n_factors - len(factors)) for factors, _, _ in rows]
    return CostTable(
        torch.stack(
            [torch.stack([counts for counts, _ in application]) for application in filled], 1
        ),
        torch.tensor(
            [[fixed for _, fixed in application] for application in filled], device="cpu"
        ).T.contiguous(),
        torch.tensor([n for _, n, _ in rows], dtype=torch.float32, device="cpu"),
        torch.tensor([n for _, _, n in rows], dtype=torch.float32, device="cpu"),
    )


def _read_weights(net: nn.Module) -> dict[str, Tensor]:
    """Return all parameters by name; computed weights instead of what they are computed from."""
    weights: dict[str, Tensor] = dict(net.named_parameters())
    for owner, module in list(net.named_modules()):
        if computes_weights(module):
            front = f"{owner}." if owner else ""
            for key in weight_sources(module):
                weights.pop(f"{front}{key}", None)
            weights |= {f"{front}{key}": weight for key, weight in compute_weights(module).items()}
    return weights


def count_positions(
    channel_graph: ChannelGraph,
    net: nn.Module,
    gone: Container[str] = (),
    dropped: Tensor | None = None,
) -> dict[str, Fraction]:
    """Return how often each weight is applied in one run, without calls and channels that go.

    A call that takes a part of its rows applies it that part of a time at each place.
    """
    positions: dict[str, Fraction] = {}
    stays = torch.ones(len(channel_graph.root), dtype=torch.bool, device="cpu")
    if dropped is not None:
        stays = ~dropped
    for call, applied in count_positions_by_call(channel_graph, net).items():
        passing = channel_graph.followed[0].passing.get(call)
        for application in applied:
            n, name = Fraction(0 if call in gone else application.n_places), application.weight
            if passing is not None:
                n *= _count(stays, channel_graph.root[passing]) / len(passing)
            if application.rows is not None and n:
                n *= _count(stays, application.rows) / _count(stays, channel_graph.dims[name, 0])
            positions[name] = positions.get(name, Fraction()) + n
    return positions


def _count(stays: Tensor, channels: Tensor) -> Fraction:
    return Fraction(int(stays[channels].sum()))


@dataclass(frozen=True, slots=True)
class Application:
    """A weight that a linear op applies, and at how many places in one run.

    Attributes:
        rows: The channels of the rows that it takes of the weight, None for all.
    """

    weight: str
    n_places: int
    rows: Tensor | None = None


def count_positions_by_call(
    channel_graph: ChannelGraph, net: nn.Module
) -> dict[str, list[Application]]:
    """Return what each linear op applies in evaluation; a recurrent layer has several weights."""
    applied: dict[str, list[Application]] = {}
    names = first_names(net)
    for node, op in find_linear_ops(channel_graph.traces.evaluation, net):
        is_by_input = op.kind in (TRANSPOSED, RECURRENT)
        side = node.all_input_nodes[0].name if is_by_input else node.name
        labels = channel_graph.followed[0].values[side]
        shape = labels.shape if isinstance(labels, Labels) else ()
        others = (n for dim, n in enumerate(shape) if dim != len(shape) + op.channel_dim)
        n_places, first = math.prod(others), names.get(op.weight, op.weight)
        rows = channel_graph.dims[first, op.out_dim][op.weight_rows] if op.is_part else None
        applied[node.name] = [Application(first, n_places, rows)]
        applied[node.name] += [Application(names.get(n, n), n_places) for n in op.others]
    return applied


def _count_indices(channel_graph: ChannelGraph, channels: Tensor | None, size: int) -> list[Factor]:
    """Return indices for each channel of each group, and how many always stay.

    Where channels go with any of several: the one, and the part that is left by each other.
    """
    sizes = channel_graph.group_sizes()
    if channels is None:
        return [(torch.zeros(len(sizes), device="cpu"), float(size))]
    rows, *others = channel_graph.parents[:, channels]
    counts = channel_graph.count_by_group(rows)
    factors = [(counts / sizes, float(size - counts.sum()))]
    for other in others:
        if not torch.equal(rows, other):
            counts = channel_graph.count_by_group(other[rows != other]) / size
            factors.append((counts / sizes, float(1.0 - counts.sum())))
    return factors
