"""Which channels of a network are tied together, and which groups may be removed."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from archlearn.analysis.channel_labels import FIXED, Labels, without_repeats
from archlearn.analysis.constraints import ChannelConstraints, Reason
from archlearn.analysis.gate_sites import (
    ATTENTION,
    NO_ACTIVATION,
    Site,
    Stream,
    find_sites,
    find_trained,
)
from archlearn.analysis.linear_ops import find_linear_ops, is_linear_op, layer_of
from archlearn.analysis.propagation import PropagationResult, follow
from archlearn.analysis.propagation_rules import rule_for
from archlearn.analysis.propagation_rules.normalization import (
    across_channels,
    group_norm,
    local_response,
)
from archlearn.analysis.propagation_rules.pooling import mean, variance
from archlearn.analysis.propagation_rules.reshape import embedding
from archlearn.analysis.rule_api import OUTPUT
from archlearn.module_utils import evaluating, find_module
from archlearn.op_table import ACTIVATE, spec_of
from archlearn.tracing.fx_utils import leaves_of, source_of
from archlearn.tracing.module_state import preserve_state
from archlearn.tracing.rng import preserve_rng
from archlearn.tracing.symbolic_trace import ExampleInputs, Leaf, Traces, trace


@dataclass(frozen=True, slots=True)
class Group:
    """Channels of one kind: they pass the same sites and live in the same parameters.

    Attributes:
        name: The first site that they pass.
        channels: The smallest atom of each, in the order of that site.
        least: How many of them stay, whatever their gates say: two where a norm reads them, for of
            one it would return a constant.
        heads: Where the channels are places within heads, and each head may keep others, the
            channels of those heads. Else None.
    """

    name: str
    channels: Tensor
    least: int = 1
    heads: Tensor | None = None


def find_groups(
    root: Tensor,
    reasons: dict[int, Reason],
    homes: list[Tensor],
    at_sites: list[tuple[str, Tensor]],
) -> tuple[Group, ...]:
    """Put together the channels that pass the same sites and live in the same parameters.

    One channel by itself is no group: one of each group always stays, so it could never go. The
    set of a channel's homes is told by the sum of random numbers, one for each home.
    """
    generator = torch.Generator().manual_seed(0)
    signature = torch.zeros(len(root), dtype=torch.long, device="cpu")
    learnable = torch.zeros(len(root), dtype=torch.bool, device="cpu")
    for _, channels in at_sites:
        learnable[channels] = True
    learnable[torch.tensor(list(reasons), dtype=torch.long, device="cpu")] = False
    all_homes = [*homes, *[channels for _, channels in at_sites]]
    keys = torch.randint(2**62, (len(all_homes),), generator=generator, device="cpu")
    for key, channels in zip(keys, all_homes, strict=True):
        signature[channels] = signature[channels] + key
    fresh: list[Tensor] = []
    names: list[str] = []
    for name, channels in at_sites:
        new = channels[learnable[channels]]
        learnable[new] = False
        fresh.append(new)
        names += [name] * new.numel()
    return tuple(_name_groups(torch.cat([*fresh, root[:0]]), signature, names))


def _name_groups(channels: Tensor, signature: Tensor, names: list[str]) -> Iterable[Group]:
    """Yield a group for each signature of several channels, in the order of the channels."""
    _, kind = torch.unique(signature[channels], return_inverse=True)
    order = torch.argsort(kind, stable=True)
    parts = torch.split(order, torch.bincount(kind).tolist())
    used: dict[str, int] = {}
    for places in sorted(parts, key=lambda places: int(places[0])):
        unique = _without_repeats(channels[places])
        if len(unique) > 1:
            name = names[int(places[0])]
            used[name] = used.get(name, 0) + 1
            numbered = name if used[name] == 1 else f"{name}/{used[name]}"
            yield Group(numbered, unique)


def _without_repeats(channels: Tensor) -> Tensor:
    """Return each channel once, in the order in which they come."""
    if len(torch.unique(channels)) == len(channels):
        return channels
    return torch.tensor(list(dict.fromkeys(channels.tolist())), device="cpu")


def number_groups(root: Tensor, groups: tuple[Group, ...]) -> Tensor:
    """Return the place of each channel's group, or -1."""
    group_of = torch.full((len(root),), -1, device="cpu")
    for number, group in enumerate(groups):
        group_of[group.channels] = number
    return group_of


Dims = dict[tuple[str, int], Tensor]
NO_CHANNELS = Reason(
    "no layer's channels reach it",
    "if a product written by hand makes them (einsum), make it an nn.Linear",
)
BARE = Reason("no activation behind it")
NOT_ASKED = Reason("not asked for in learn=", "name it in learn=")
WHOLE_HEADS = Reason("it has no heads that could go whole", "ask for Learn.WIDTH")
NOT_IN_TRAINING = Reason(
    "called in evaluation mode only, where no gate learns", "let training mode call it, too"
)
NO_GRADIENT = Reason(
    "no gradient of the model's output reaches it in training mode, so no gate would learn there",
    "remove .detach(), or let the output depend on it",
)
ONE_CHANNEL = Reason("it has one channel, which must stay")
AS_ONE = Reason("its channels are tied to one another: they could only go all at once")
NO_RULE = Reason("archlearn has no rule for how it mixes channels, so it keeps its size")
TIED_TO_FIXED = Reason(
    "its channels meet those of the model's input or of a constant tensor, whose size is fixed"
)


@dataclass(frozen=True, slots=True)
class ChannelGraph:
    """All that is known of a network's channels. It is never changed, and copies share it.

    Attributes:
        traces: The network's calls, without gates.
        sites: The sites of each graph.
        followed: The labels in each graph.
        root: The channel of each atom.
        parents: Three channels for each atom, with any of which it goes: its own, thrice, but for
            the channels of a head, which go with the head or with their place within all heads,
            and of convolutions of many groups, likewise. Where several heads of queries share one
            of keys and values, that is their head, and the third is their place among those that
            share it; elsewhere it is the first again.
        dims: The channel of each index of each parameter's dimension.
        elements: The channel of each element of parameters that are used as they are.
        asked: The calls of activations whose channels are to be gated, in each graph.
        whole_heads: The sites that lose whole heads only.
        gated: Those of them behind which gates stand; the channels of others are gated where they
            are read.
        streams: Channels that are gated where they are read.
        groups: Channels that can be learnt.
        group_of: The place of each channel's group among those, or -1.
        reasons: Why each other channel must stay.
        fixed: Why each atom at a site must stay that is tied to something fixed.
        kept: Why layers keep all their channels at which no site stands.
        sharing: Layers with a parameter that another module holds, too.
        whole_groups: Of each call with groups, whether it loses whole ones or parts of each.
        copies: Calls that repeat keys or values for every head of queries.
    """

    inputs: ExampleInputs
    traces: Traces
    sites: tuple[tuple[Site, ...], ...]
    followed: tuple[PropagationResult, ...]
    root: Tensor
    parents: Tensor
    dims: Dims
    elements: dict[str, Tensor]
    asked: dict[int, frozenset[str]]
    whole_heads: frozenset[str]
    gated: dict[int, frozenset[str]]
    streams: tuple[Stream, ...]
    groups: tuple[Group, ...]
    group_of: Tensor
    reasons: dict[int, Reason]
    fixed: dict[int, Reason]
    kept: dict[str, Reason]
    sharing: frozenset[str]
    whole_groups: dict[str, bool]
    copies: frozenset[str]

    def __deepcopy__(self, memo: dict[int, Any]) -> "ChannelGraph":
        return self

    @property
    def graphs(self) -> tuple[fx.Graph, ...]:
        """The evaluation graph and, where it differs, the training graph."""
        return self.traces.graphs

    def group_sizes(self) -> Tensor:
        """Return how many channels each group has."""
        return torch.tensor(
            [group.channels.numel() for group in self.groups], dtype=torch.long, device="cpu"
        )

    def gate_places(self) -> Tensor:
        """Return where the gate of each channel stands among all width gates, or -1."""
        channels = torch.cat([self.root[:0], *(group.channels for group in self.groups)])
        places = torch.full((len(self.root),), -1, device="cpu")
        places[channels] = torch.arange(len(channels), device="cpu")
        return places

    def count_by_group(self, channels: Tensor) -> Tensor:
        """Return how many of the given channels go with those of each group."""
        groups = self.group_of[join_parents(self.parents, channels)]
        return torch.bincount(groups + 1, minlength=len(self.groups) + 1)[1:]

    def groups_among(self, channels: Tensor) -> list[int]:
        """Return the groups that the given channels go with, in order; -1 stands for none."""
        groups = self.group_of[join_parents(self.parents, channels)]
        if groups.numel() == 0:
            return []
        low, high = torch.aminmax(groups)
        return [int(low)] if torch.equal(low, high) else groups.unique().tolist()

    def is_learnt(self, channels: Tensor) -> Tensor:
        """Return whether each of some channels may go."""
        return (self.group_of[self.parents[:, channels]] >= 0).any(0)

    def find_dropped(
        self, gone: Iterable[Tensor], ranks: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Return whether each channel goes, if these of each group do.

        `ranks` say for groups within heads which of the group each head has at each place; left
        out, every head has the first at its first place.
        """
        dropped = torch.zeros(len(self.root), dtype=torch.bool, device="cpu")
        for group, is_gone in zip(self.groups, gone, strict=True):
            dropped[group.channels] = is_gone
        rows, columns, places = self.parents
        for group in self.groups:
            if ranks and group.name in ranks:
                index = self.places_in_heads(group, torch.arange(len(self.root), device="cpu"))
                ranked = group.channels[ranks[group.name].cpu().reshape(-1)[index]]
                columns = torch.where(index >= 0, ranked, columns)
        return dropped[rows] | dropped[columns] | dropped[places]

    def in_free_heads(self) -> Tensor:
        """Return for each atom whether it is a place within heads each of which may keep others."""
        ids = torch.arange(len(self.root), device="cpu")
        is_free = torch.zeros(len(self.root), dtype=torch.bool, device="cpu")
        for group in self.groups:
            if group.heads is not None:
                is_free |= self.places_in_heads(group, ids) >= 0
        return is_free

    def places_in_heads(self, group: Group, ids: Tensor) -> Tensor:
        """Return where atoms stand among all places within a group's heads, head by head; or -1."""
        assert group.heads is not None
        head_of, place_of = torch.full((2, len(self.root)), -1, device="cpu")
        head_of[group.heads] = torch.arange(len(group.heads), device="cpu")
        place_of[group.channels] = torch.arange(len(group.channels), device="cpu")
        rows, columns = self.parents[:2, ids]
        is_within = (rows != columns) & (place_of[columns] >= 0)
        return torch.where(is_within, head_of[rows] * len(group.channels) + place_of[columns], -1)

    def coarse_groups(self) -> Tensor:
        """Return whether gates of each group take much of a layer.

        Those of heads or of a convolution's groups, and of channels within either.
        """
        products = [ids for parts in self.followed[0].products.values() for _, ids in parts]
        rows, columns, _ = self.parents
        within = [ids[rows[ids] != columns[ids]] for ids in self.dims.values()]
        return self.count_by_group(self.root[torch.cat([*products, *within, self.root[:0]])]) > 0

    @property
    def bare_streams(self) -> tuple[Stream, ...]:
        """Streams with channels that pass no activation."""
        passed = _mark(
            self.parents, (s.ids for stream in self.followed for s in stream.sites.values())
        )
        return tuple(stream for stream in self.streams if not bool(passed[stream.channels].all()))

    def channels_of(self, graph: int, site: Site) -> Tensor | None:
        """Return the channels of a site, or None if none of ours reach it."""
        for stream in self.streams:
            if stream.site is site:
                return stream.channels
        labels = self.followed[graph].sites.get(site.node)
        return None if labels is None else self.root[labels.ids]


def build_channel_graph(
    net: nn.Module,
    inputs: ExampleInputs,
    may_gate: Callable[[Site], bool],
    leaves: Iterable[Leaf] = (),
    *,
    only_heads: Callable[[Site], bool] = lambda _: False,
    trained_only: bool = True,
    with_streams: bool = True,
    traces: Traces | None = None,
    before: ChannelGraph | None = None,
) -> ChannelGraph:
    """Trace a network, left unchanged, and find what can be learnt at sites that may be gated.

    At sites with `only_heads` whole heads may go, and no other channel. With `trained_only`
    channels stay whose gates no gradient would reach in training mode; with `with_streams`
    channels may be gated where they are read. Of a network that shrinks, `traces` are known
    already, and what was found `before`, which is chosen again.
    """
    traces = traces or trace(net, inputs, leaves)
    with evaluating(net), preserve_state(net), preserve_rng(inputs):
        sites = tuple(find_sites(graph, net) for graph in traces.graphs)
        search = _Search(net, inputs, traces, sites, may_gate, only_heads, before, with_streams)
        asked, gated, findings = search.run()
    followed, root, reasons = findings.followed, findings.root, findings.reasons
    at_sites = [
        (index, site, join_parents(findings.parents, followed[index].sites[site.node].ids))
        for index, item in enumerate(sites)
        for site in item
        if site.node in asked[index] and site.node in followed[index].sites
    ]
    if trained_only:
        gates = [(index, site.node, channels) for index, site, channels in at_sites]
        _keep_untrained_(reasons, root, traces, gates + _find_reads(findings))
    gated_at = [(site, channels) for _, site, channels in at_sites]
    gated_at += [(stream.site, stream.channels) for stream in findings.streams]
    with_heads = [(site.name, channels) for site, channels in gated_at if only_heads(site)]
    _keep_within_heads_(reasons, findings.parents, [channels for _, channels in with_heads])
    groups, group_of = _find_groups(
        findings, [(site.name, channels) for site, channels in gated_at]
    )
    reached = [site.ids for item in followed for site in item.sites.values()]
    atoms = torch.cat([root[:0], *reached])
    fixed = torch.unique(atoms[root[atoms] == FIXED])
    return ChannelGraph(
        inputs=inputs,
        traces=traces,
        sites=sites,
        followed=followed,
        root=root,
        parents=findings.parents,
        dims=findings.dims,
        elements=findings.elements,
        asked=asked,
        whole_heads=frozenset(name for name, _ in with_heads),
        gated=gated,
        streams=findings.streams,
        groups=groups,
        group_of=group_of,
        reasons=reasons,
        fixed=_reasons_of_atoms(findings.constraints, fixed),
        kept=_find_kept(findings, group_of, {site.name for item in sites for site in item}),
        sharing=findings.constraints.sharing,
        whole_groups=findings.constraints.whole_groups,
        copies=frozenset(findings.constraints.copies),
    )


def _keep_within_heads_(
    reasons: dict[int, Reason], parents: Tensor, parts: Iterable[Tensor]
) -> None:
    """Note that of some channels none may go but whole heads."""
    rows, columns, shares = parents
    heads = torch.cat([rows[rows != columns], shares[rows != shares]])
    for channels in parts:
        for channel in channels[~torch.isin(channels, heads)].tolist():
            reasons.setdefault(channel, WHOLE_HEADS)


Gated = dict[int, frozenset[str]]
"""Names of calls of activations, by graph."""


@dataclass(frozen=True, slots=True)
class _Findings:
    """What follows from gates behind some activations."""

    net: nn.Module
    traces: Traces
    constraints: ChannelConstraints
    followed: tuple[PropagationResult, ...]
    root: Tensor
    parents: Tensor
    reasons: dict[int, Reason]
    streams: tuple[Stream, ...]

    @property
    def dims(self) -> Dims:
        """The channels of dimensions; those with the same atoms have one tensor for them."""
        by_memory: dict[Any, Tensor] = {}
        roots: Dims = {}
        for key, ids in self.constraints.dims.items():
            memory = (ids.data_ptr(), len(ids), ids.stride())
            if memory not in by_memory:
                by_memory[memory] = self.root[ids]
            roots[key] = by_memory[memory]
        return roots

    @property
    def elements(self) -> dict[str, Tensor]:
        """The channels of parameters that are used as they are."""
        return {name: self.root[ids] for name, ids in self.constraints.elements.items()}


@dataclass(frozen=True, slots=True)
class _Search:
    """Finds the activations behind which gates stand, and follows channels through those."""

    net: nn.Module
    inputs: ExampleInputs
    traces: Traces
    sites: tuple[tuple[Site, ...], ...]
    may_gate: Callable[[Site], bool]
    only_heads: Callable[[Site], bool]
    before: ChannelGraph | None
    with_streams: bool

    def run(self) -> tuple[Gated, Gated, _Findings]:
        """Return what is asked for, behind which of it gates stand, and what follows from that."""
        asked = self._ask()
        findings = self._follow(asked)
        lonely = _lonely_squashing(findings, self.sites, asked)
        if lonely:
            asked = self._ask(lonely)
            findings = self._follow(asked)
        whole = self._products_of_heads(findings)
        if not whole.items() <= findings.constraints.whole_groups.items():
            findings = self._follow(asked, whole)
        gated = asked
        while superseded := _find_superseded(findings, gated):
            gated = {index: nodes - superseded[index] for index, nodes in gated.items()}
            findings = self._follow(gated, whole)
        return asked, gated, findings

    def _products_of_heads(self, findings: _Findings) -> dict[str, bool]:
        """Return the products that lose whole heads however few there are: these were asked for."""
        streams = [s.channels for s in findings.streams if self.only_heads(s.site)]
        wanted = torch.cat([findings.root[:0], *streams])
        products = (item for flow in findings.followed for item in flow.products.items())
        return {
            name: True
            for name, parts in products
            if any(bool(torch.isin(findings.parents[:, ids], wanted).any()) for _, ids in parts)
        }

    def _ask(self, squashing: frozenset[str] = frozenset()) -> Gated:
        return {
            index: frozenset(
                site.node
                for site in sites
                if self.may_gate(site) and (not site.squashing or site.name in squashing)
            )
            for index, sites in enumerate(self.sites)
        }

    def _follow(self, gated: Gated, whole: Mapping[str, bool] | None = None) -> _Findings:
        graphs, before = self.traces.graphs, self.before
        start = partial(follow, self.net, graphs, self.inputs, gated, gate_reads=self.with_streams)
        # Calls that repeat keys may have other names now, and what was chosen would hide them.
        copies = frozenset(start()[0].copies) if before and before.copies else frozenset[str]()
        chosen = {**(before.whole_groups if before else {}), **(whole or {})}
        constraints, followed = start(whole_groups=chosen, copies=copies)
        root, parents = constraints.roots(), constraints.parents()
        root = torch.where(parents[0] == parents[1], parents[0], root)
        reasons = _find_reasons(constraints, root, parents, followed)
        streams = _find_streams(self.net, self.traces, followed, parents)
        for stream in streams:
            if not self.may_gate(stream.site):
                name = stream.site.name
                reason = Reason(
                    f"tied to channels that {name!r} writes, which learn= does not name",
                    f"name {name!r} in learn=, too",
                )
                for channel in stream.channels.tolist():
                    reasons.setdefault(channel, reason)
        traced = self.net, self.traces, constraints, followed, root, parents
        return _Findings(*traced, reasons, streams)


def _find_reads(findings: _Findings) -> list[tuple[int, str, Tensor]]:
    """Return the channels that each call reads through gates, by graph and name."""
    return [
        (index, node, _without_fixed(join_parents(findings.parents, read.ids)))
        for index, flow in enumerate(findings.followed)
        for node, read in flow.reads.items()
    ]


def _find_groups(
    findings: _Findings, at_sites: list[tuple[str, Tensor]]
) -> tuple[tuple[Group, ...], Tensor]:
    """Return the channels that can be learnt, by where they live and what reads them.

    And the place of each channel's group. Of channels at sites that are in none, the reason is
    added to the findings.
    """
    # Dimensions with the very same channels tell no more than one of them does.
    different = {id(channels): channels for channels in findings.dims.values()}
    # A part that a tensor is split into is a home, so that none is ever left without a channel.
    parts = [findings.root[ids] for flow in findings.followed for ids in flow.parts]
    homes = [*different.values(), *findings.elements.values(), *parts]
    homes = [line for ids in homes for line in _list_parents(findings.parents, ids)]
    homes += [channels for _, _, channels in _find_reads(findings)]
    # Whether a norm, or a mean in one by hand, is taken over each channel.
    graphs = zip(findings.traces.graphs, findings.followed, strict=True)
    reads = [(node, flow.reads.get(node.name)) for graph, flow in graphs for node in graph.nodes]
    over = (read.ids for n, read in reads if read and rule_for(n, findings.net) in _OVER_CHANNELS)
    normed = _mark(findings.parents, over)
    groups = tuple(
        replace(group, least=2 if bool(normed[group.channels].any()) else 1)
        for group in find_groups(findings.root, findings.reasons, homes, at_sites)
    )
    group_of = number_groups(findings.root, groups)
    for _, channels in at_sites:
        for channel in channels[group_of[channels] < 0].tolist():
            findings.reasons.setdefault(channel, AS_ONE if len(channels) > 1 else ONE_CHANNEL)
    return groups, group_of


_OVER_CHANNELS = (across_channels, group_norm, mean, variance)


def _mark(parents: Tensor, parts: Iterable[Tensor]) -> Tensor:
    """Return for each channel whether some atoms go with it."""
    marked = torch.zeros(parents.shape[1], dtype=torch.bool, device="cpu")
    for ids in parts:
        marked[parents[:, ids]] = True
    return marked


def join_parents(parents: Tensor, ids: Tensor) -> Tensor:
    """Return the channels that atoms go with: one for each, or for all of a head some more."""
    rows, *others = _list_parents(parents, ids)
    return torch.cat([rows.reshape(-1), *others]) if others else rows


def _list_parents(parents: Tensor, ids: Tensor) -> list[Tensor]:
    """Return those apart: what atoms go with, their places within heads, and those of heads."""
    rows, *others = parents[:, ids]
    if torch.equal(rows, others[0]):
        return [rows]
    return [rows, *(other[rows != other] for other in others)]


def _without_fixed(channels: Tensor) -> Tensor:
    return channels[channels != FIXED]


def _find_streams(
    net: nn.Module, traces: Traces, followed: tuple[PropagationResult, ...], parents: Tensor
) -> tuple[Stream, ...]:
    """Return the channels that are gated where they are read, by the layer that writes them."""
    if not any(flow.reads for flow in followed):
        return ()
    names, first = _find_first_writers(net, traces, followed, parents)
    products = [parts for flow in followed for parts in flow.products.values()]
    attended = _mark(parents, (ids for parts in products for _, ids in parts))
    sites: dict[str, Site] = {}
    parts: dict[str, list[Tensor]] = {}
    for graph, flow in zip(traces.graphs, followed, strict=True):
        nodes = {node.name: node for node in graph.nodes}
        for node, read in flow.reads.items():
            channels = _without_fixed(join_parents(parents, read.ids))
            for writer in dict.fromkeys(first[channels].tolist()):
                if writer == 0:  # what pads channels is no model's to learn
                    continue
                name = names[writer]
                source = source_of(nodes[node])
                written = channels[first[channels] == writer]
                kind = ATTENTION if bool(attended[written].all()) else NO_ACTIVATION
                sites.setdefault(name, Site(name, node, "", kind, source, False))
                parts.setdefault(name, []).append(written)
    is_head = torch.zeros_like(attended)
    is_head[parents[0][parents[0] != parents[1]]] = True
    streams: list[Stream] = []
    for name, site in sites.items():
        channels = _without_repeats(torch.cat(parts[name]))
        streams.append(
            Stream(site, torch.cat([channels[is_head[channels]], channels[~is_head[channels]]]))
        )
    return tuple(streams)


def _find_first_writers(
    net: nn.Module, traces: Traces, followed: tuple[PropagationResult, ...], parents: Tensor
) -> tuple[list[str], Tensor]:
    """Return names, and for each channel the place of the one that writes it first.

    That is a layer or, where there is none, a parameter that `forward` uses as it is; place 0 is
    of channels that neither writes.
    """
    names: list[str] = [""]
    first = torch.zeros(parents.shape[1], dtype=torch.long, device="cpu")
    pairs = [
        (node, flow.values[node.name])
        for graph, flow in zip(traces.graphs, followed, strict=True)
        for node in graph.nodes
    ]
    of_layers = [p for p in pairs if is_linear_op(p[0], net) or rule_for(p[0], net) is embedding]
    of_parameters = [(n, labels) for n, labels in pairs if n.op == "get_attr"]
    for node, value in [*reversed(of_parameters), *reversed(of_layers)]:
        for labels in (leaf for leaf in leaves_of(value) if isinstance(leaf, Labels)):
            names.append(str(node.target) if node.op == "get_attr" else layer_of(node))
            first[parents[:, without_repeats(labels.ids)]] = len(names) - 1
    return names, first


def _find_superseded(findings: _Findings, gated: Gated) -> Gated:
    """Return the activations whose channels are gated again where they are read behind them.

    Of two gates on one way a closed one would hide from the other what its channel is worth.
    """
    superseded: Gated = {}
    for index, graph in enumerate(findings.traces.graphs):
        sites, parents = findings.followed[index].sites, findings.parents
        reads = {
            node: set(_without_fixed(join_parents(parents, read.ids)).tolist())
            - findings.reasons.keys()
            for node, read in findings.followed[index].reads.items()
        }
        asked = gated[index] & sites.keys() if reads else frozenset[str]()
        superseded[index] = frozenset(
            node.name
            for node in graph.nodes
            if node.name in asked
            and _is_read_behind(
                findings.net,
                node,
                set(join_parents(parents, sites[node.name].ids).tolist()),
                reads,
            )
        )
    return superseded if any(superseded.values()) else {}


def _is_read_behind(
    net: nn.Module, site: fx.Node, gated: set[int], reads: dict[str, set[int]]
) -> bool:
    """Return whether a gated read of a site's own channels follows, up to the next layers."""
    waiting, seen = list(site.users), set[fx.Node]()
    is_read = False
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if rule_for(node, net) is local_response:
            return False  # it must read zero
        is_read |= bool(gated & reads.get(node.name, set()))
        if node.name not in reads and not is_linear_op(node, net):
            waiting.extend(node.users)
    return is_read


def _lonely_squashing(
    findings: _Findings, sites: tuple[tuple[Site, ...], ...], chosen: Gated
) -> frozenset[str]:
    """Return squashing activations whose channels pass none of the chosen ones."""
    labels = [item.sites for item in findings.followed]
    nodes = [(index, node) for index in chosen for node in chosen[index] & labels[index].keys()]
    covered = _mark(findings.parents, (labels[index][node].ids for index, node in nodes))
    squashing = [(index, s) for index, item in enumerate(sites) for s in item if s.squashing]
    return frozenset(
        site.name
        for index, site in squashing
        if site.node in labels[index]
        and not covered[findings.parents[:, labels[index][site.node].ids]].any()
    )


def _find_reasons(
    constraints: ChannelConstraints,
    root: Tensor,
    parents: Tensor,
    followed: tuple[PropagationResult, ...],
) -> dict[int, Reason]:
    sites = [site for flow in followed for site in (*flow.sites.values(), *flow.reads.values())]
    at_a_site = _mark(parents, (site.ids for site in sites))
    reasons: dict[int, Reason] = {FIXED: TIED_TO_FIXED}
    for block in constraints.blocks:
        channels = root[block.ids]
        for channel in torch.unique(channels[at_a_site[channels]]).tolist():
            reasons.setdefault(channel, block.reason)
    return reasons


def _find_kept(findings: _Findings, group_of: Tensor, listed: set[str]) -> dict[str, Reason]:
    """Return why layers keep all channels that they write, where no site has them.

    Those that make the model's output are left out: they are never narrowed.
    """
    constraints, parents, evaluation = findings.constraints, findings.parents, findings.followed[0]
    is_listed = _mark(parents, (site.ids for site in evaluation.sites.values()))
    for stream in findings.streams:
        is_listed[stream.channels] = True
    is_listed[FIXED] = False
    atoms = {
        op.layer: constraints.dims[constraints.canonical(weight), dim]
        for _, op in find_linear_ops(findings.traces.graphs[0], findings.net)
        for weight, dim in [op.output_dim]
        if (constraints.canonical(weight), dim) in constraints.dims and op.layer not in listed
    }
    first = {
        layer: int(ids[0])
        for layer, ids in atoms.items()
        if bool((group_of[parents[:, ids]] < 0).all())
        and not bool(is_listed[parents[:, ids]].any())
    }
    reasons = _reasons_of_atoms(
        constraints, torch.tensor(list(first.values()), dtype=torch.long, device="cpu")
    )
    kept = {layer: reasons[atom] for layer, atom in first.items() if reasons[atom] != OUTPUT}
    return kept | dict.fromkeys(_unknown_layers(findings), NO_RULE)


def _unknown_layers(findings: _Findings) -> list[str]:
    """Return the layers with parameters, none of which has a dimension of channels: nn.Bilinear.

    A PReLU of one slope and a norm of the model's input do not mix channels.
    """
    followed = {name for name, _ in findings.constraints.dims}
    layers: list[str] = []
    for call in findings.traces.evaluation.find_nodes(op="call_module"):
        spec = spec_of(call, findings.net)
        if spec is not None and spec.rule.startswith((ACTIVATE, "normalization.")):
            continue
        parameters = dict(
            find_module(findings.net, layer := layer_of(call)).named_parameters(layer)
        )
        names = set(map(findings.constraints.canonical, parameters))
        if names and not names & followed and layer not in findings.traces.opaque:
            layers.append(layer)
    return layers


def _reasons_of_atoms(constraints: ChannelConstraints, atoms: Tensor) -> dict[int, Reason]:
    """Return why each of these atoms stays.

    Whatever is tied to something fixed is one channel, so the reasons of all its atoms would be
    one, too.
    """
    if not len(atoms):
        return {}
    roots = constraints.roots(with_fixed=False)
    reasons: dict[int, Reason] = {}
    for block in (*constraints.blocks, *constraints.hints):
        for channel in torch.unique(roots[block.ids]).tolist():
            reasons.setdefault(channel, block.reason)
    return {int(atom): reasons.get(int(roots[atom]), TIED_TO_FIXED) for atom in atoms}


def _keep_untrained_(
    reasons: dict[int, Reason],
    root: Tensor,
    traces: Traces,
    at_sites: list[tuple[int, str, Tensor]],
) -> None:
    """Keep channels whose gates would act in evaluation only: a penalty would close them all."""
    last = len(traces.graphs) - 1
    trained = find_trained(traces.graphs[last])
    learns = torch.zeros(len(root), dtype=torch.bool, device="cpu")
    called = torch.zeros(len(root), dtype=torch.bool, device="cpu")
    for index, node, channels in at_sites:
        if index == last:
            called[channels] = True
            learns[channels] |= node in trained
    for _, _, channels in at_sites:
        for channel in channels[~learns[channels]].tolist():
            reasons.setdefault(channel, NO_GRADIENT if called[channel] else NOT_IN_TRAINING)
