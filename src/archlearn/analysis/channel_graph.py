"""Which channels of a network are tied together, and which groups may be removed."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from archlearn.analysis.constraints import ChannelConstraints, Reason
from archlearn.analysis.labels import FIXED
from archlearn.analysis.propagation import PropagationResult, follow
from archlearn.analysis.sites import Site, find_sites, find_trained
from archlearn.module_utils import evaluating
from archlearn.tracing.module_state import preserve_state
from archlearn.tracing.rng import putting_back
from archlearn.tracing.traces import ExampleInputs, Leaf, Traces, trace


@dataclass(frozen=True, slots=True)
class Group:
    """Channels of one kind: they pass the same sites and live in the same parameters.

    Attributes:
        name: The first site that they pass.
        channels: The smallest atom of each, in the order of that site.
    """

    name: str
    channels: Tensor


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
    signature = torch.zeros(len(root), dtype=torch.long)
    learnable = torch.zeros(len(root), dtype=torch.bool)
    for _, channels in at_sites:
        learnable[channels] = True
    learnable[torch.tensor(list(reasons), dtype=torch.long)] = False
    all_homes = [*homes, *[channels for _, channels in at_sites]]
    keys = torch.randint(2**62, (len(all_homes),), generator=generator)
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
        found = _without_repeats(channels[places])
        if len(found) > 1:
            name = names[int(places[0])]
            used[name] = used.get(name, 0) + 1
            numbered = name if used[name] == 1 else f"{name}/{used[name]}"
            yield Group(numbered, found)


def _without_repeats(channels: Tensor) -> Tensor:
    """Return each channel once, in the order in which they come."""
    if len(torch.unique(channels)) == len(channels):
        return channels
    return torch.tensor(list(dict.fromkeys(channels.tolist())))


def number_groups(root: Tensor, groups: tuple[Group, ...]) -> Tensor:
    """Return the place of each channel's group, or -1."""
    group_of = torch.full((len(root),), -1)
    for place, group in enumerate(groups):
        group_of[group.channels] = place
    return group_of


Dims = dict[tuple[str, int], Tensor]


NO_CHANNELS = Reason(
    "no layer's channels reach it",
    "nothing is needed, unless a product by hand does (x @ w, einsum): make it an nn.Linear",
)


NOT_ASKED = Reason("not asked for in learn=", "name it in learn=")


NOT_IN_TRAINING = Reason(
    "called in evaluation mode only, where no gate learns", "let training mode call it, too"
)


NO_GRADIENT = Reason(
    "no gradient of the model's output reaches it in training mode, so no gate would learn there",
    "remove .detach(), or let the output depend on it",
)


ONE_CHANNEL = Reason("it has one channel, which must stay", "nothing is needed")


AS_ONE = Reason(
    "its channels are tied to one another, so that they could only go all at once",
    "nothing is needed if the other layers are learnt",
)


TIED_TO_FIXED = Reason("tied to the model's input or to a fixed tensor", "nothing is needed")


@dataclass(frozen=True, slots=True)
class ChannelGraph:
    """All that is known of a network's channels. It is never changed, and copies share it.

    Attributes:
        traces: The network's calls, without gates.
        sites: The sites of each graph.
        followed: The labels in each graph.
        root: The channel of each atom.
        dims: The channel of each index of each parameter's dimension.
        elements: The channel of each element of parameters that are used as they are.
        gated: The calls behind which gates stand, in each graph.
        groups: Channels that can be learnt.
        group_of: The place of each channel's group among those, or -1.
        reasons: Why each other channel must stay.
        fixed: Why each atom at a site must stay that is tied to something fixed.
        sharing: Layers with a parameter that another module holds, too.
    """

    inputs: ExampleInputs
    traces: Traces
    sites: tuple[tuple[Site, ...], ...]
    followed: tuple[PropagationResult, ...]
    root: Tensor
    dims: Dims
    elements: dict[str, Tensor]
    gated: dict[int, frozenset[str]]
    groups: tuple[Group, ...]
    group_of: Tensor
    reasons: dict[int, Reason]
    fixed: dict[int, Reason]
    sharing: frozenset[str]

    def __deepcopy__(self, memo: dict[int, Any]) -> "ChannelGraph":
        return self

    @property
    def graphs(self) -> tuple[fx.Graph, ...]:
        """The evaluation graph and, where it differs, the training graph."""
        return self.traces.graphs

    def group_sizes(self) -> Tensor:
        """Return how many channels each group has."""
        return torch.tensor([group.channels.numel() for group in self.groups], dtype=torch.long)

    def count_by_group(self, channels: Tensor) -> Tensor:
        """Return how many of the given channels belong to each group."""
        return torch.bincount(self.group_of[channels] + 1, minlength=len(self.groups) + 1)[1:]

    def groups_among(self, channels: Tensor) -> list[int]:
        """Return the groups that the given channels belong to, in order; -1 stands for none."""
        groups = self.group_of[channels]
        if groups.numel() == 0:
            return []
        low, high = torch.aminmax(groups)
        return [int(low)] if torch.equal(low, high) else groups.unique().tolist()

    def channels_of(self, graph: int, site: Site) -> Tensor | None:
        """Return the channels of a site, or None if none of ours reach it."""
        found = self.followed[graph].sites.get(site.node)
        return None if found is None else self.root[found.ids]


def build_channel_graph(
    net: nn.Module,
    inputs: ExampleInputs,
    may_gate: Callable[[Site], bool],
    leaves: Iterable[Leaf] = (),
    *,
    trained_only: bool = True,
) -> ChannelGraph:
    """Trace a network, left unchanged, and find what can be learnt at sites that may be gated.

    Args:
        net: The network.
        inputs: Arguments for one call.
        may_gate: Whether a site may be gated.
        leaves: Submodules that are not to be looked into.
        trained_only: Whether channels stay whose gates no gradient would reach in training mode.
    """
    traces = trace(net, inputs, leaves)
    with evaluating(net), preserve_state(net), putting_back(inputs):
        return _draw(net, inputs, traces, may_gate, trained_only=trained_only)


def _draw(
    net: nn.Module,
    inputs: ExampleInputs,
    traces: Traces,
    may_gate: Callable[[Site], bool],
    *,
    trained_only: bool,
) -> ChannelGraph:
    sites = tuple(find_sites(graph, net) for graph in traces.graphs)

    def gated(squashing: frozenset[str]) -> dict[int, frozenset[str]]:
        return {
            place: frozenset(
                site.node
                for site in found
                if may_gate(site) and (not site.squashing or site.name in squashing)
            )
            for place, found in enumerate(sites)
        }

    chosen = gated(frozenset())
    ledger, followed = follow(net, traces.graphs, inputs, chosen)
    root = ledger.roots()
    lonely = _lonely_squashing(root, followed, sites, chosen)
    if lonely:
        chosen = gated(lonely)
        ledger, followed = follow(net, traces.graphs, inputs, chosen)
        root = ledger.roots()
    reasons = _find_reasons(ledger, root, followed)
    dims = _find_roots(root, ledger.dims)
    elements = {name: root[ids] for name, ids in ledger.elements.items()}
    at_sites = [
        (place, site, root[followed[place].sites[site.node].ids])
        for place, found in enumerate(sites)
        for site in found
        if site.node in chosen[place] and site.node in followed[place].sites
    ]
    if trained_only:
        _keep_untrained_(reasons, root, traces, at_sites)
    # Dimensions with the very same channels tell no more than one of them does.
    different = {id(channels): channels for channels in dims.values()}
    homes = [*different.values(), *elements.values(), *_parts(followed, root)]
    by_name = [(site.name, channels) for _, site, channels in at_sites]
    groups = find_groups(root, reasons, homes, by_name)
    group_of = number_groups(root, groups)
    for _, channels in by_name:
        for channel in channels[group_of[channels] < 0].tolist():
            reasons.setdefault(channel, AS_ONE if len(channels) > 1 else ONE_CHANNEL)
    return ChannelGraph(
        inputs=inputs,
        traces=traces,
        sites=sites,
        followed=followed,
        root=root,
        dims=dims,
        elements=elements,
        gated=chosen,
        groups=groups,
        group_of=group_of,
        reasons=reasons,
        fixed=_find_fixed(ledger, root, followed),
        sharing=ledger.sharing,
    )


def _find_roots(root: Tensor, dims: Dims) -> Dims:
    """Return the channels of dimensions; those with the same atoms have one tensor for them."""
    known: dict[Any, Tensor] = {}
    found: Dims = {}
    for key, ids in dims.items():
        memory = (ids.data_ptr(), len(ids), ids.stride())
        if memory not in known:
            known[memory] = root[ids]
        found[key] = known[memory]
    return found


def _lonely_squashing(
    root: Tensor,
    followed: tuple[PropagationResult, ...],
    sites: tuple[tuple[Site, ...], ...],
    chosen: dict[int, frozenset[str]],
) -> frozenset[str]:
    covered = torch.zeros(len(root), dtype=torch.bool)
    for place, nodes in chosen.items():
        for node in nodes & followed[place].sites.keys():
            covered[root[followed[place].sites[node].ids]] = True
    return frozenset(
        site.name
        for place, found in enumerate(sites)
        for site in found
        if site.squashing
        and site.node in followed[place].sites
        and not covered[root[followed[place].sites[site.node].ids]].any()
    )


def _find_reasons(
    ledger: ChannelConstraints, root: Tensor, followed: tuple[PropagationResult, ...]
) -> dict[int, Reason]:
    at_a_site = torch.zeros(len(root), dtype=torch.bool)
    for each in followed:
        for site in each.sites.values():
            at_a_site[root[site.ids]] = True
    reasons: dict[int, Reason] = {FIXED: TIED_TO_FIXED}
    for block in ledger.blocks:
        channels = root[block.ids]
        for channel in torch.unique(channels[at_a_site[channels]]).tolist():
            reasons.setdefault(channel, block.reason)
    return reasons


def _find_fixed(
    ledger: ChannelConstraints, root: Tensor, followed: tuple[PropagationResult, ...]
) -> dict[int, Reason]:
    """Return why each atom at a site stays that is tied to something fixed.

    Whatever is tied to that is one channel, so the reasons of all its atoms would be one, too.
    """
    atoms = torch.cat([root[:0], *(site.ids for each in followed for site in each.sites.values())])
    atoms = torch.unique(atoms[root[atoms] == FIXED])
    if not len(atoms):
        return {}
    own = ledger.roots(with_fixed=False)
    reasons: dict[int, Reason] = {}
    for block in (*ledger.blocks, *ledger.hints):
        for channel in torch.unique(own[block.ids]).tolist():
            reasons.setdefault(channel, block.reason)
    return {int(atom): reasons.get(int(own[atom]), TIED_TO_FIXED) for atom in atoms}


def _keep_untrained_(
    reasons: dict[int, Reason],
    root: Tensor,
    traces: Traces,
    at_sites: list[tuple[int, Site, Tensor]],
) -> None:
    """Keep channels whose gates would act in evaluation only: a penalty would close them all."""
    last = len(traces.graphs) - 1
    trained = find_trained(traces.graphs[last])
    learns = torch.zeros(len(root), dtype=torch.bool)
    called = torch.zeros(len(root), dtype=torch.bool)
    for place, site, channels in at_sites:
        if place == last:
            called[channels] = True
            learns[channels] |= site.node in trained
    for _, _, channels in at_sites:
        for channel in channels[~learns[channels]].tolist():
            reasons.setdefault(channel, NO_GRADIENT if called[channel] else NOT_IN_TRAINING)


def _parts(followed: tuple[PropagationResult, ...], root: Tensor) -> Iterable[Tensor]:
    """Yield the channels of each part that a tensor is split into.

    A part is a home of its own, so that no part is ever left without a channel.
    """
    for each in followed:
        for parts in each.parts:
            yield root[parts]
