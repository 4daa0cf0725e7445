"""Groups of channels as plain data: the slices of weights that read them, and that write them.

A channel is closed when nothing reads it, so a gate is a factor of the slices that read its
channel; no gate stands in `forward`, and what is closed can be read off the weights.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archlearn.analysis.channel_graph import ChannelGraph, Group
from archlearn.analysis.residual_branches import Branch
from archlearn.gating.channel_slices import GraphReader, NoSlicesError, Slices, are_zero
from archlearn.gating.selection import LearnableSites
from archlearn.module_utils import find_module, find_tensor
from archlearn.nn.rms_norm_forms import read_rms_norm


@dataclass(frozen=True, slots=True)
class GateGroup:
    """Channels of one kind, a gate each, and the weights that their gates act on.

    Attributes:
        name: Its name, as `inspect` shows it.
        kind: "width", "heads", "within heads", "stream", "branch".
        size: How many gates it has.
        start: The position of its first gate among all gates; they are start .. start + size - 1.
        readers: What its gates multiply: where all of a gate's slices are exactly zero, nobody
            reads the channel. Mostly columns of the layers behind; of channels in a product of
            queries and keys the rows of one factor; of a stream under RMSNorm, which sees zeros
            then, the rows that write it. Each has the gates of this group only.
        writers: What else belongs to its channels, and goes with them when they are cut.
        norms: Names of the norm modules that compute statistics over the channels. A LayerNorm
            or a GroupNorm must count the open ones only.
        reason: Why it is not learnt; None where it is.
    """

    name: str
    kind: str
    size: int
    start: int
    readers: tuple[Slices, ...] = ()
    writers: tuple[Slices, ...] = ()
    norms: tuple[str, ...] = ()
    reason: str | None = None


_MASKED = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)
"""Norms that can count the open channels only."""


@dataclass(frozen=True, slots=True)
class _Acting:
    """What the gates of a group act on, and the norms that read its channels."""

    slices: tuple[Slices, ...]
    norms: tuple[str, ...]


def list_gate_groups(net: nn.Module, learnable: LearnableSites) -> tuple[GateGroup, ...]:
    """Return the groups of a network that has been analysed: widths first, then branches."""
    graph = learnable.channel_graph
    finder = _GroupFinder(net, graph)
    groups: list[GateGroup] = []
    start = 0
    for number, group in enumerate(graph.groups):
        groups.append(finder.describe(number, group, start))
        start += len(group.channels)
    for branch in learnable.branches.values():
        groups.append(_describe_branch(net, branch, finder.readers, start))
        start += 1
    return tuple(groups)


def find_closed(
    net: nn.Module,
    groups: Iterable[GateGroup],
    constants: Mapping[str, Tensor] | None = None,
    open_norms: Collection[str] = (),
) -> Tensor:
    """Return of each gate whether all slices that it acts on are exactly zero.

    Args:
        net: The network.
        groups: Its groups. Those under norms that closed channels have a part in are open.
        constants: Columns, flags by the names of weights, that count as zero: what they read is a
            constant.
        open_norms: Names of norms that closed channels have no part in.
    """
    groups, constants = tuple(groups), constants or {}
    n = sum(group.size for group in groups)
    acts, is_open = torch.zeros(2, n, dtype=torch.bool, device="cpu")
    for group in groups:
        norms = [find_module(net, name) for name in group.norms if name not in open_norms]
        if all(read_rms_norm(module) is not None for module in norms):
            for s in group.readers:
                here = s.gates >= 0
                acts[s.gates[here]] = True
                is_read = ~are_zero(net, s)
                has_plain_norms = len(norms) == len(group.norms)
                if s.parameter in constants and s.dim == 1 and has_plain_norms:
                    is_read &= ~constants[s.parameter]
                is_open[s.gates[here & is_read]] = True
    return acts & ~is_open


class _GroupFinder:
    def __init__(self, net: nn.Module, graph: ChannelGraph) -> None:
        self.net, self.graph = net, graph
        self.readers = [GraphReader(net, graph, index) for index in range(len(graph.graphs))]
        rows, columns, shares = graph.parents
        self.heads = torch.cat([rows[rows != columns], shares[shares != rows]])
        self.within = columns[rows != columns]
        parts = [ids for f in graph.followed for p in f.products.values() for _, ids in p]
        products = torch.cat([graph.root[:0], *parts])
        self.attended = graph.parents[:, products].flatten()
        self.bare = {stream.site.name for stream in graph.bare_streams}

    def describe(self, number: int, group: Group, start: int) -> GateGroup:
        """Return a group of width gates as plain data."""
        size, kind = len(group.channels), self._kind_of(group)
        try:
            acting = self._find_acting(number)
        except NoSlicesError as why:
            return GateGroup(group.name, kind, size, start, reason=str(why))
        writers = _subtract(self._find_all(number), acting.slices)
        reason = _why_not_learnt(self.net, acting.slices, size, start)
        return GateGroup(
            group.name, kind, size, start, acting.slices, writers, acting.norms, reason
        )

    def _kind_of(self, group: Group) -> str:
        is_attended = bool(torch.isin(group.channels, self.attended).all())
        if bool(torch.isin(group.channels, self.heads).any()):
            return "heads" if is_attended else "groups"
        if bool(torch.isin(group.channels, self.within).any()):
            return "within heads" if is_attended else "within groups"
        return "stream" if group.name.split("/")[0] in self.bare else "width"

    def _find_acting(self, number: int) -> _Acting:
        readings = [(reader, reader.read(number)) for reader in self.readers]
        norms = dict.fromkeys(name for _, reads in readings for name, _ in reads.norms)
        modules = [find_module(self.net, name) for name in norms]
        by_zeros = all(read_rms_norm(module) is not None for module in modules)
        unknown = [n for n, m in zip(norms, modules, strict=True) if not isinstance(m, _MASKED)]
        if unknown and not by_zeros:
            raise NoSlicesError(
                f"{unknown[0] or type(self.net).__name__!r} normalises over its channels, and is "
                "none of torch's norms"
            )
        acting = [s for reader, reads in readings for s in reader.act(number, reads, by_zeros)]
        return _Acting(_join(acting), tuple(norms))

    def _find_all(self, number: int) -> tuple[Slices, ...]:
        """Return all slices of parameters that belong to a group."""
        reader = self.readers[0]
        keys = [*self.graph.dims, *((name, None) for name in self.graph.elements)]
        return tuple(s for name, dim in keys for s in reader.slices(name, dim, number))


def _join(slices: Iterable[Slices]) -> tuple[Slices, ...]:
    """Put together what lies along the same dimension of the same parameter."""
    joined: dict[tuple[str, int | None], Tensor] = {}
    for s in slices:
        gates_so_far = joined.setdefault((s.parameter, s.dim), s.gates)
        joined[s.parameter, s.dim] = torch.maximum(gates_so_far, s.gates)
    return tuple(Slices(*key, _without_empty_rows(gates)) for key, gates in joined.items())


def _without_empty_rows(gates: Tensor) -> Tensor:
    return gates[(gates >= 0).any(1)].contiguous()


def _subtract(slices: Iterable[Slices], others: Iterable[Slices]) -> tuple[Slices, ...]:
    """Leave out the slices that are among others."""
    taken = {(s.parameter, s.dim): (s.gates >= 0).any(0) for s in others}
    left: list[Slices] = []
    for s in slices:
        is_other = taken.get((s.parameter, s.dim))
        gates = s.gates if is_other is None else s.gates.masked_fill(is_other, -1)
        if bool((gates >= 0).any()):
            left.append(Slices(s.parameter, s.dim, _without_empty_rows(gates)))
    return tuple(left)


def _why_not_learnt(net: nn.Module, slices: Iterable[Slices], size: int, start: int) -> str | None:
    """Return why gates could not learn by the slices that they act on."""
    parameters, acts = (
        dict(net.named_parameters()),
        torch.zeros(size, dtype=torch.bool, device="cpu"),
    )
    for s in slices:
        acts[s.gates[s.gates >= 0] - start] = True
        if s.parameter not in parameters:
            return f"{s.parameter!r} is computed from other weights at every call"
        if not parameters[s.parameter].requires_grad:
            return f"{s.parameter!r} is frozen"
    return None if bool(acts.all()) else "no weight reads some of its channels"


def _describe_branch(
    net: nn.Module, branch: Branch, readers: Sequence[GraphReader], start: int
) -> GateGroup:
    """Return a residual branch as plain data: its gate acts on all of the layer that ends it."""
    try:
        ends = [
            name
            for reader, addition in zip(readers, branch.additions, strict=True)
            for name in reader.end_of_branch(addition)
        ]
    except NoSlicesError as why:
        return GateGroup(branch.name, "branch", 1, start, reason=str(why))
    slices = tuple(
        Slices(name, 0, torch.full((1, len(find_tensor(net, name))), start, device="cpu"))
        for name in dict.fromkeys(ends)
    )
    reason = _why_not_learnt(net, slices, 1, start)
    return GateGroup(branch.name, "branch", 1, start, slices, reason=reason)
