"""A blueprint says which channels of a network can be learnt, and what they are tied to."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from archlearn.graphs.channels import Followed, follow
from archlearn.graphs.draws import putting_back
from archlearn.graphs.ledger import Ledger, Reason
from archlearn.graphs.remnants import restoring
from archlearn.graphs.sites import Site, find_sites
from archlearn.graphs.tracing import ExampleInputs, Leaf, Traces, trace
from archlearn.modes import evaluating

Dims = dict[tuple[str, int], Tensor]
NO_CHANNELS = Reason("no layer's channels reach it", "nothing is needed")
NOT_ASKED = Reason("not asked for in learn=", "name it in learn=")
TIED_TO_FIXED = Reason("tied to the model's input or to a fixed tensor", "nothing is needed")


@dataclass(frozen=True, slots=True)
class Group:
    """Channels of one kind: they pass the same sites and live in the same parameters.

    Attributes:
        name: The first site that they pass.
        channels: The smallest atom of each, in the order of that site.
    """

    name: str
    channels: Tensor


@dataclass(frozen=True, slots=True)
class Blueprint:
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
        sharing: Layers with a parameter that another module holds, too.
    """

    inputs: ExampleInputs
    traces: Traces
    sites: tuple[tuple[Site, ...], ...]
    followed: tuple[Followed, ...]
    root: Tensor
    dims: Dims
    elements: dict[str, Tensor]
    gated: dict[int, frozenset[str]]
    groups: tuple[Group, ...]
    group_of: Tensor
    reasons: dict[int, Reason]
    sharing: frozenset[str]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Blueprint":
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

    def channels_of(self, graph: int, site: Site) -> Tensor | None:
        """Return the channels of a site, or None if none of ours reach it."""
        found = self.followed[graph].sites.get(site.node)
        return None if found is None else self.root[found.ids]


def draw_blueprint(
    net: nn.Module,
    inputs: ExampleInputs,
    may_gate: Callable[[Site], bool],
    leaves: Iterable[Leaf] = (),
) -> Blueprint:
    """Trace a network, left unchanged, and find what can be learnt at sites that may be gated."""
    traces = trace(net, inputs, leaves)
    sites = tuple(find_sites(graph, net) for graph in traces.graphs)
    with evaluating(net), restoring(net), putting_back(inputs):
        return _draw(net, inputs, traces, sites, may_gate)


def _draw(
    net: nn.Module,
    inputs: ExampleInputs,
    traces: Traces,
    sites: tuple[tuple[Site, ...], ...],
    may_gate: Callable[[Site], bool],
) -> Blueprint:
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
    dims = {key: root[ids] for key, ids in ledger.dims.items()}
    elements = {name: root[ids] for name, ids in ledger.elements.items()}
    at_sites = [
        (site.name, root[followed[place].sites[site.node].ids])
        for place, found in enumerate(sites)
        for site in found
        if site.node in chosen[place] and site.node in followed[place].sites
    ]
    homes = [*dims.values(), *elements.values(), *_parts(followed, root)]
    groups = _find_groups(root, reasons, homes, at_sites)
    return Blueprint(
        inputs=inputs,
        traces=traces,
        sites=sites,
        followed=followed,
        root=root,
        dims=dims,
        elements=elements,
        gated=chosen,
        groups=groups,
        group_of=_number_groups(root, groups),
        reasons=reasons,
        sharing=ledger.sharing,
    )


def _lonely_squashing(
    root: Tensor,
    followed: tuple[Followed, ...],
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
    ledger: Ledger, root: Tensor, followed: tuple[Followed, ...]
) -> dict[int, Reason]:
    at_a_site = torch.zeros(len(root), dtype=torch.bool)
    for each in followed:
        for site in each.sites.values():
            at_a_site[root[site.ids]] = True
    reasons: dict[int, Reason] = {}
    for block in ledger.blocks:
        channels = root[block.ids]
        for channel in torch.unique(channels[at_a_site[channels]]).tolist():
            reasons.setdefault(channel, block.reason)
    reasons.setdefault(0, TIED_TO_FIXED)
    return reasons


def _parts(followed: tuple[Followed, ...], root: Tensor) -> Iterable[Tensor]:
    """Yield the channels of each part that a tensor is split into.

    A part is a home of its own, so that no part is ever left without a channel.
    """
    for each in followed:
        for parts in each.parts:
            yield root[parts]


def _find_groups(
    root: Tensor,
    reasons: dict[int, Reason],
    homes: list[Tensor],
    at_sites: list[tuple[str, Tensor]],
) -> tuple[Group, ...]:
    """Put together the channels that pass the same sites and live in the same parameters.

    The set of a channel's homes is told by the sum of random numbers, one for each home.
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
    """Yield a group for each signature, in the order of the channels."""
    _, kind = torch.unique(signature[channels], return_inverse=True)
    order = torch.argsort(kind, stable=True)
    parts = torch.split(order, torch.bincount(kind).tolist())
    used: dict[str, int] = {}
    for places in sorted(parts, key=lambda places: int(places[0])):
        name = names[int(places[0])]
        used[name] = used.get(name, 0) + 1
        numbered = name if used[name] == 1 else f"{name}/{used[name]}"
        yield Group(numbered, torch.tensor(list(dict.fromkeys(channels[places].tolist()))))


def _number_groups(root: Tensor, groups: tuple[Group, ...]) -> Tensor:
    group_of = torch.full((len(root),), -1)
    for place, group in enumerate(groups):
        group_of[group.channels] = place
    return group_of
