"""Match the `learn=` globs with sites of gates and branches; explain what is not learnt."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, fx, nn

from archlearn.analysis.channel_graph import (
    BARE,
    NO_CHANNELS,
    NO_GRADIENT,
    NOT_ASKED,
    ChannelGraph,
    Group,
    build_channel_graph,
    number_groups,
)
from archlearn.analysis.channel_labels import FIXED, line_along
from archlearn.analysis.constraints import Reason
from archlearn.analysis.gate_sites import Site, find_trained
from archlearn.analysis.head_channels import free_heads
from archlearn.analysis.linear_ops import find_linear_ops
from archlearn.analysis.mergeable_layers import MergeablePair, find_pair, join_pairs
from archlearn.analysis.residual_branches import Branch, Removals, find_branches, find_removals
from archlearn.errors import InputError, SurgeryError
from archlearn.gating.learn import Learn
from archlearn.module_utils import find_module, first_names
from archlearn.nn.tristate_activation import TriState
from archlearn.op_table import RECURRENT
from archlearn.tracing.symbolic_trace import ExampleInputs, Leaf, Traces


@dataclass(frozen=True, slots=True)
class LearnableSites:
    """What is learnt in a model, and why the rest is not.

    Attributes:
        channel_graph: All that is known of the model's channels.
        mergeable: The layers on both sides of each site whose depth is learnt.
        not_mergeable: Why depth is not learnt at each other site.
        rows: For each linear op, the channels that it writes.
        branches: The residual branches that can be closed.
        no_branch: Why other branches must stay.
        removals: What goes with closed branches.
    """

    channel_graph: ChannelGraph
    mergeable: dict[str, MergeablePair]
    not_mergeable: dict[str, Reason]
    rows: tuple[tuple[str, Tensor], ...]
    branches: dict[str, Branch]
    no_branch: dict[str, Reason]
    removals: Removals

    def __deepcopy__(self, memo: dict[int, Any]) -> "LearnableSites":
        return self

    def width_reason(self, index: int, site: Site) -> Reason | None:
        """Return why a site's width is not learnt, or None if any of its channels is."""
        channels = self.channel_graph.channels_of(index, site)
        if channels is None:
            return self.channel_graph.followed[index].hidden.get(site.node, NO_CHANNELS)
        is_asked = self._is_asked(index, site)
        if not is_asked and not site.squashing:
            return NOT_ASKED
        if self.n_learnt(index, site):
            return None
        labels = self.channel_graph.followed[index].sites.get(site.node)
        atoms = channels if labels is None else labels.ids
        reasons, fixed = self.channel_graph.reasons, self.channel_graph.fixed
        causes = (
            fixed.get(atom) if channel == FIXED else reasons.get(channel)
            for atom, channel in zip(atoms.tolist(), channels.tolist(), strict=True)
        )
        return next(filter(None, causes), NO_CHANNELS if is_asked else NOT_ASKED)

    def n_learnt(self, index: int, site: Site) -> int:
        """Return in how many of a site's channels the width is learnt.

        A squashing activation has no gates if others have some for the channels that it weighs.
        """
        channels = self.channel_graph.channels_of(index, site)
        if channels is None or not (site.squashing or self._is_asked(index, site)):
            return 0
        return int(self.channel_graph.is_learnt(channels).sum())

    def _is_asked(self, index: int, site: Site) -> bool:
        is_stream = any(stream.site is site for stream in self.channel_graph.streams)
        return is_stream or site.node in self.channel_graph.asked[index]

    def branch_places(self, names: Iterable[str]) -> frozenset[int]:
        """Return where branches stand among all, as `removals` counts them."""
        branches = list(self.branches)
        return frozenset(branches.index(name) for name in names)

    def neurons(self) -> Tensor:
        """Return how many neurons go with one gate of each group."""
        sizes = self.channel_graph.group_sizes()
        counts = torch.zeros(len(sizes), device="cpu")
        for _, rows in self.rows:
            counts += self.channel_graph.count_by_group(rows)
        return (counts / sizes).clamp(min=1.0)

    def freed_neurons(self) -> Tensor:
        """Return how many of those each linear site frees, then each closed branch, a row each."""
        sizes, by_layer = self.channel_graph.group_sizes(), dict(self.rows)
        freed = [(pair.first,) for pair in self.mergeable.values()]
        freed += [branch.layers for branch in self.branches.values()]
        table = torch.zeros(len(freed), len(sizes), device="cpu")
        for row, layers in zip(table, freed, strict=True):
            for layer in layers:
                if layer in by_layer:
                    row += self.channel_graph.count_by_group(by_layer[layer]) / sizes
        return table

    def inner_groups(self) -> Tensor:
        """Return which groups have no parameter left once a branch is closed, a row a branch."""
        table = torch.ones(
            len(self.branches), len(self.channel_graph.groups), dtype=torch.bool, device="cpu"
        )
        held = [(name, channels) for (name, _), channels in self.channel_graph.dims.items()]
        held += [
            (name, channels.reshape(-1)) for name, channels in self.channel_graph.elements.items()
        ]
        for name, channels in held:
            gone = self.removals.tensors.get(name, frozenset())
            stays = [frozenset({branch}) not in gone for branch in range(len(table))]
            is_there = self.channel_graph.count_by_group(channels) > 0
            table &= ~(torch.tensor(stays, dtype=torch.bool, device="cpu")[:, None] & is_there)
        return table


def select_sites(
    net: nn.Module,
    inputs: ExampleInputs,
    learn: Mapping[str, Learn] | None,
    leaves: tuple[Leaf, ...] = (),
    *,
    must_learn: bool = True,
) -> LearnableSites:
    """Return what is learnt in `net`; with `must_learn`, there must be something."""
    request = _LearnRequest(learn)
    channel_graph = build_channel_graph(
        net,
        inputs,
        lambda site: bool(request.of(site) & (Learn.WIDTH | Learn.HEADS)),
        leaves,
        only_heads=lambda site: request.of(site) & ~Learn.DEPTH == Learn.HEADS,
    )
    channel_graph = free_heads(channel_graph, net)
    mergeable, not_mergeable = _find_mergeable(
        net, channel_graph, lambda site: Learn.DEPTH in request.of(site)
    )
    branches, no_branch = find_branches(net, channel_graph.graphs, channel_graph.followed)
    for name in [*branches, *no_branch]:
        if Learn.DEPTH not in request.of_branch(name) and branches.pop(name, None) is not None:
            no_branch[name] = NOT_ASKED
    learnable = _join(net, channel_graph, (mergeable, not_mergeable), (branches, no_branch))
    request.check(learnable)
    if must_learn and not channel_graph.groups and not mergeable and not branches:
        raise InputError(_nothing(learnable, net))
    return learnable


def reselect_sites(
    net: nn.Module,
    inputs: ExampleInputs,
    learnable: LearnableSites,
    traces: Traces,
    dropped: Tensor,
) -> LearnableSites:
    """Return what is learnt in a narrowed network: what was learnt, in the same groups.

    `learnable` and `dropped` are of the whole network, `net` and `traces` of the narrowed one.
    """
    old = learnable.channel_graph
    gated = {
        site.name
        for index, sites in enumerate(old.sites)
        for site in sites
        if site.node in old.asked[index]
    }
    gated |= {stream.site.name for stream in old.streams if learnable.n_learnt(0, stream.site)}
    new = build_channel_graph(
        net,
        inputs,
        lambda site: site.name in gated,
        only_heads=lambda site: site.name in old.whole_heads,
        traces=traces,
        before=old,
    )
    new = free_heads(new, net)
    new_of = _match_channels(old, new, dropped)
    groups = tuple(_narrow_group(group, new_of, new, dropped) for group in old.groups)
    channels = torch.cat([new.root[:0], *(group.channels for group in groups)])
    mergeable, _ = _find_mergeable(net, new, lambda site: site.name in learnable.mergeable)
    n_learnt = int(new.group_sizes().sum())
    is_same = len(channels) == n_learnt and bool((channels >= 0).all())
    branches, _ = find_branches(net, new.graphs, new.followed)
    branches = {name: branch for name, branch in branches.items() if name in learnable.branches}
    kinds = (mergeable, learnable.mergeable), (branches, learnable.branches)
    is_same = is_same and all([*here] == [*there] for here, there in kinds)
    if not is_same or not bool((new.group_of[channels] >= 0).all()):
        raise SurgeryError(
            f"cannot shrink {type(net).__name__}: the smaller network has room for {n_learnt} "
            f"width, {len(mergeable)} depth and {len(branches)} branch gates, but {len(channels)}, "
            f"{len(learnable.mergeable)} and {len(learnable.branches)} are left; train on without "
            "shrink_, and report the model"
        )
    new = replace(new, groups=groups, group_of=number_groups(new.root, groups))
    return _join(net, new, (mergeable, learnable.not_mergeable), (branches, learnable.no_branch))


def _narrow_group(group: Group, new_of: Tensor, new: ChannelGraph, dropped: Tensor) -> Group:
    """Return what is left of a group in a narrowed network."""
    if group.heads is None:
        return replace(group, channels=new_of[group.channels[~dropped[group.channels]]])
    # Of each head others may be left, so that places are those of the narrowed network.
    new_ids = new_of[group.channels]
    numbers = new.group_of[new_ids[new_ids >= 0]].unique()
    groups = [new.groups[number] for number in numbers if number >= 0]
    channels = [g.channels for g in groups if g.heads is not None]
    heads = new_of[group.heads[~dropped[group.heads]]]
    return replace(group, channels=torch.cat([heads[:0], *channels]), heads=heads)


def _join(
    net: nn.Module,
    channel_graph: ChannelGraph,
    mergeable: tuple[dict[str, MergeablePair], dict[str, Reason]],
    branches: tuple[dict[str, Branch], dict[str, Reason]],
) -> LearnableSites:
    rows = _find_rows(net, channel_graph)
    removals = find_removals(net, channel_graph.graphs, branches[0].values())
    return LearnableSites(channel_graph, *mergeable, rows, *branches, removals)


def _match_channels(old: ChannelGraph, new: ChannelGraph, dropped: Tensor) -> Tensor:
    """Return the channel of a narrowed network for each of the whole one, -1 for none.

    A channel is known by where it stands in the parameters.
    """
    counterparts = torch.full((len(old.root),), -1, device="cpu")
    homes = [(old.dims.get(key), channels) for key, channels in new.dims.items()]
    homes += [(old.elements.get(name), channels) for name, channels in new.elements.items()]
    for before, after in homes:
        if before is not None:
            left = before[~dropped[before]]
            if left.numel() == after.numel():
                counterparts[left] = after.reshape(-1)
                counterparts[old.parents[:, left]] = new.parents[:, after.reshape(-1)]
    return counterparts


def select_tristates(net: nn.Module, inputs: ExampleInputs) -> LearnableSites:
    """Return what the `TriState` activations that a user placed can learn."""

    def find(site: Site) -> TriState | None:
        module = find_module(net, site.module) if site.module else None
        return module if isinstance(module, TriState) else None

    def has_width(site: Site) -> bool:
        return getattr(find(site), "width", None) is not None

    def has_depth(site: Site) -> bool:
        return getattr(find(site), "depth", None) is not None

    channel_graph = build_channel_graph(
        net, inputs, has_width, trained_only=False, with_streams=False
    )
    return _join(net, channel_graph, _find_mergeable(net, channel_graph, has_depth), ({}, {}))


class _LearnRequest:
    """The user's `learn=` mapping: of a site or a branch the last key that fits decides."""

    def __init__(self, learn: Mapping[str, Learn] | None) -> None:
        self.learn = learn
        for key, wish in (learn or {}).items():
            if not isinstance(wish, Learn):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InputError(
                    f"learn[{key!r}] is {wish!r}; give Learn.WIDTH, Learn.HEADS, Learn.DEPTH, "
                    "several joined by |, or Learn.NOTHING"
                )

    def of(self, site: Site) -> Learn:
        """Return what is asked for at a site."""
        return self._find(_names(site), Learn.WIDTH | Learn.DEPTH)

    def of_branch(self, name: str) -> Learn:
        """Return what is asked for at a branch."""
        return self._find(_names_of_branch(name), Learn.DEPTH)

    def _find(self, names: set[str], all_of_it: Learn) -> Learn:
        if self.learn is None:
            return all_of_it
        fitting = [wish for key, wish in self.learn.items() if _fits(key, names)]
        return fitting[-1] if fitting else Learn.NOTHING

    def check(self, learnable: LearnableSites) -> None:
        """Raise if a key meets nothing, or names one site and asks for what is not exact."""
        channel_graph = learnable.channel_graph
        sites = [site for sites_of_graph in channel_graph.sites for site in sites_of_graph]
        sites += [stream.site for stream in channel_graph.streams]
        branches = [*learnable.branches, *learnable.no_branch]
        for key in self.learn or ():
            met = [site for site in sites if _fits(key, _names(site))]
            met_branches = [name for name in branches if _fits(key, _names_of_branch(name))]
            if not met and not met_branches:
                raise InputError(_explain_unknown(key, sites, branches))
            if not any(sign in key for sign in "*?["):
                self._check_exact(key, learnable, met, met_branches)

    def _check_exact(
        self, key: str, learnable: LearnableSites, met: list[Site], branches: list[str]
    ) -> None:
        wish = (self.learn or {})[key]
        names = {site.name for site in met if self.of(site) == wish}
        for name in branches:
            if Learn.WIDTH in wish and not names:
                raise InputError(
                    f"learn[{key!r}] asks for a width, but {name!r} is a branch, which has none; "
                    "ask for Learn.DEPTH there, and for the widths of its layers by their names"
                )
            why = learnable.no_branch.get(name, NOT_ASKED)
            if (
                Learn.DEPTH in wish
                and why is not NOT_ASKED
                and not names & learnable.mergeable.keys()
            ):
                raise InputError(
                    f"learn[{key!r}] asks for the branch {name!r}, but leaving it out would not "
                    f"be exact: {why}"
                )
        streams = [stream.site for stream in learnable.channel_graph.bare_streams]
        for site in [*learnable.channel_graph.sites[0], *streams]:
            if site.name not in names:
                continue
            reason = learnable.width_reason(0, site)
            if wish & (Learn.WIDTH | Learn.HEADS) and reason is not None:
                what = "width" if Learn.WIDTH in wish else "heads"
                raise InputError(
                    f"learn[{key!r}] asks for the {what} of {site.name!r}, but that would not be "
                    f"exact: {reason}"
                )
            has_depth = site.name in learnable.mergeable or learnable.branches.keys() & set(
                branches
            )
            if Learn.DEPTH in wish and not has_depth:
                why = learnable.not_mergeable[site.name]
                raise InputError(
                    f"learn[{key!r}] asks for the depth of {site.name!r}, but no exact merge "
                    f"could follow: {why.text}; ask for Learn.WIDTH only there"
                )


def _fits(key: str, names: set[str]) -> bool:
    return any(fnmatchcase(name, key) for name in names)


def _names(site: Site) -> set[str]:
    return {site.name, site.name.split("#")[0], site.module or site.name}


def _names_of_branch(name: str) -> set[str]:
    return {name, name.split("#")[0]}


def _explain_unknown(key: str, sites: list[Site], branches: list[str]) -> str:
    keys = sorted({name for site in sites for name in _names(site)}) + branches
    named = f"; branches after their block: {', '.join(branches[:20])}" if branches else ""
    close = difflib.get_close_matches(key, keys, n=3)
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else "."
    return (
        f"learn[{key!r}] fits no site of gates{hint} Sites are named after the layer in "
        f"front of them: {', '.join(sorted({site.name for site in sites})[:20])}{named}"
    )


def _find_mergeable(
    net: nn.Module, channel_graph: ChannelGraph, wanted: Callable[[Site], bool]
) -> tuple[dict[str, MergeablePair], dict[str, Reason]]:
    pairs: dict[str, dict[int, MergeablePair | str]] = {}
    trained = find_trained(channel_graph.graphs[-1])
    for index, graph in enumerate(channel_graph.graphs):
        for site in channel_graph.sites[index]:
            pair = (
                find_pair(graph, net, site, channel_graph.sharing)
                if wanted(site)
                else NOT_ASKED.text
            )
            if site.activation.lower() == "glu":
                pair = "a gated linear unit halves its channels"
            module = find_module(net, site.module) if site.module else None
            if isinstance(module, nn.PReLU):
                pair = "its activation has weights of its own"
            if (
                isinstance(pair, MergeablePair)
                and pair.norms
                and not _fits_norm(graph, net, channel_graph, pair)
            ):
                pair = "its BatchNorm does not normalise the layer's features"
            if index == len(channel_graph.graphs) - 1 and site.node not in trained:
                pair = NO_GRADIENT.text
            pairs.setdefault(site.name, {})[index] = pair
    mergeable: dict[str, MergeablePair] = {}
    reasons: dict[str, Reason] = {}
    for name, by_graph in pairs.items():
        joined = join_pairs(channel_graph.graphs, by_graph)
        if isinstance(joined, MergeablePair):
            mergeable[name] = joined
        else:
            reasons[name] = Reason(joined)
    for name in (stream.site.name for stream in channel_graph.streams):
        if name not in mergeable:
            reasons.setdefault(name, BARE)
    return mergeable, reasons


def _fits_norm(
    graph: fx.Graph, net: nn.Module, channel_graph: ChannelGraph, pair: MergeablePair
) -> bool:
    """A Linear's features lie along the last dimension, a BatchNorm's along the second."""
    if not isinstance(find_module(net, pair.first), nn.Linear):
        return True
    index = channel_graph.graphs.index(graph)
    node = next(n for n in graph.nodes if n.op == "call_module" and n.target == pair.first)
    labels: Any = channel_graph.followed[index].values[node.name]
    return labels.ids.dim() == 2


def _find_rows(net: nn.Module, channel_graph: ChannelGraph) -> tuple[tuple[str, Tensor], ...]:
    rows: dict[str, tuple[str, Tensor]] = {}
    names = first_names(net)
    for index, graph in enumerate(channel_graph.graphs):
        for node, op in find_linear_ops(graph, net):
            followed = channel_graph.followed[index]
            labels: Any = followed.values[node.name]
            if op.weight in rows:
                continue
            # Behind it they may be those of channels beside, or those of a part of the layer.
            if node.name in followed.passing or op.is_part or op.kind == RECURRENT:
                weight, dim = op.output_dim
                channels = channel_graph.dims[names.get(weight, weight), dim]
            else:
                channels = channel_graph.root[line_along(labels.ids, op.channel_dim)]
            rows[op.weight] = (op.layer, channels)
    return tuple(rows.values())


def explain_no_sites(*, has_opaque: bool) -> str:
    """Say why a network has no site of gates; what was not looked into is listed beside it."""
    fix = "" if has_opaque else "; use ReLU, GELU, SiLU or the like as modules or functions"
    return f"it calls no activation that archlearn knows{fix}"


_LAYER_BEHIND = "put a linear layer or a convolution behind it, which can do with fewer channels"


def _nothing(learnable: LearnableSites, net: nn.Module) -> str:
    channel_graph = learnable.channel_graph
    inside = [f"  {k} was not looked into: {why}" for k, why in channel_graph.traces.opaque.items()]
    bare = [stream.site for stream in channel_graph.bare_streams]
    lines = []
    for site in [*channel_graph.sites[0], *bare]:
        reason = learnable.width_reason(0, site) or NO_CHANNELS
        where = BARE.text if site in bare else site.activation
        lines.append(f"  {site.name} ({where}): {reason.text}; {reason.fix or _LAYER_BEHIND}")
    lines += [f"  {layer}: {why}" for layer, why in channel_graph.kept.items()]
    if not lines:
        what = explain_no_sites(has_opaque=bool(inside))
        return "\n".join([f"nothing can be learnt in {type(net).__name__}: {what}", *inside])
    more = [f"  and {len(lines) - 10} more"] if len(lines) > 10 else []
    lines = [f"nothing can be learnt in {type(net).__name__}:", *lines[:10], *more, *inside]
    return "\n".join(lines)
