"""`Decision`: which channels and branches go, and which sites are linear, as the gates say."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from archlearn.analysis.channel_graph import ChannelGraph
from archlearn.errors import InputError, SurgeryError
from archlearn.gating.cost_counter import known_inputs
from archlearn.gating.gate_container import CONTAINER, GateContainer, find_container, list_gated
from archlearn.gating.selection import LearnableSites, select_tristates
from archlearn.module_utils import check_numbers
from archlearn.nn.functional import is_open, open_gates
from archlearn.nn.tristate_activation import TriState, check_gate
from archlearn.surgery.plan import Fold


@dataclass(frozen=True, slots=True)
class Decision:
    """What the gates say.

    Attributes:
        dropped: Whether each channel goes, by its smallest atom.
        linear: Sites that have become linear, but for those of closed branches.
        closed: Residual branches that are left out.
        growths: By how much there were more channels in RMSNorms that read zeros in those that go.
        folds: Constants that move into a bias; None where they follow from gates.
    """

    learnable: LearnableSites
    dropped: Tensor
    linear: tuple[str, ...]
    closed: tuple[str, ...] = ()
    growths: Mapping[str, float] = field(default_factory=dict[str, float])
    folds: tuple[Fold, ...] | None = None

    def gone_calls(self, index: int) -> set[str]:
        """Return the calls of a graph that are gone with the closed branches."""
        return self.learnable.removals.gone_calls(index, self.learnable.branch_places(self.closed))

    def gone_tensors(self) -> set[str]:
        """Return the parameters and buffers that are gone with the closed branches."""
        return self.learnable.removals.gone_tensors(self.learnable.branch_places(self.closed))


def has_gates(model: nn.Module) -> bool:
    """Return whether a model has gates in its `forward`, of ours or placed by hand."""
    return any(isinstance(module, GateContainer | TriState) for module in model.modules())


def check_gates(model: nn.Module) -> None:
    """Raise if a model has no gates, neither of ours nor placed by hand, or no numbers."""
    if not has_gates(model) and find_container(model) is None:
        raise InputError("the model has no gates; call add_gates on it first")
    check_numbers(model.named_parameters())


def check_slopes(model: nn.Module, linear: tuple[str, ...]) -> None:
    """Raise if a layer is only on its way to be linear: no plain layer computes that."""
    container = find_container(model)
    if container is None or not container.n_depth:
        return
    slopes = dict(zip(container.depth_gates(), container.slope.tolist(), strict=True))
    for name in linear:
        if slopes[name] < 1.0:
            raise SurgeryError(
                f"cannot compact while {name!r} becomes linear: {slopes[name]:.0%} of its "
                "activation is, and no plain layer computes that; train on until it is done, or "
                "call gates.finish() first to end learning now"
            )


def decide(model: nn.Module, example_inputs: object = None) -> Decision:
    """Read the gates of a model."""
    check_gates(model)
    container = find_container(model)
    if container is None:
        return _decide_by_hand(model, example_inputs)
    if getattr(model, CONTAINER, None) is not container:
        raise InputError(
            f"the gates are in the submodule {list_gated(model)}; call plan, compact or "
            "read_architecture on it"
        )
    widths = {name: gate.detach().cpu() for name, gate in container.width_gates().items()}
    depths = {name: gate.detach().cpu() for name, gate in container.depth_gates().items()}
    branches = {name: gate.detach().cpu() for name, gate in container.branch_gates().items()}
    for name, gate in [*widths.items(), *depths.items(), *branches.items()]:
        check_gate(name, gate)
    container.check_standing()
    channel_graph = container.channel_graph
    pairs = zip(channel_graph.groups, widths.values(), strict=True)
    dropped = container.find_dropped(open_gates(gate, group.least) < 0.5 for group, gate in pairs)
    linear = tuple(site for site, gate in depths.items() if bool(is_open(gate)))
    left_out = container.left_out()
    closed = tuple(n for n, gate in branches.items() if n in left_out or not bool(is_open(gate)))
    decision = Decision(container.learnable, dropped, linear, closed)
    gone = decision.gone_calls(0)
    gone_sites = {site.name for site in channel_graph.sites[0] if site.node in gone}
    return replace(decision, linear=tuple(site for site in linear if site not in gone_sites))


def _decide_by_hand(model: nn.Module, example_inputs: object) -> Decision:
    by_hand = {n: m for n, m in model.named_modules() if isinstance(m, TriState)}
    for name, site in by_hand.items():
        for gate in (site.width, site.depth):
            if gate is not None:
                check_gate(name, gate)
    learnable = select_tristates(model, known_inputs(model, example_inputs))
    channel_graph = learnable.channel_graph
    kept = torch.zeros(len(channel_graph.root), dtype=torch.bool, device="cpu")
    closed = torch.zeros_like(kept)
    closed_by: dict[int, str] = {}
    for index, sites in enumerate(channel_graph.sites):
        for site in sites:
            module = by_hand.get(site.module)
            channels = channel_graph.channels_of(index, site)
            if module is None or module.width is None:
                continue
            opened = is_open(module.width).cpu()
            if channels is None and not bool(opened.all()):
                raise SurgeryError(
                    f"{site.module!r} drops channels that cannot go: it wraps a "
                    f"{type(module.activation).__name__}, which may mix them, or none of the "
                    "model's layers makes them; wrap an activation that treats every element alike"
                )
            if channels is not None:
                kept[channels[opened]] = True
                closed[channels[~opened]] = True
                closed_by |= {int(c): site.module for c in channels[~opened]}
    _check_by_hand(channel_graph, kept, closed, closed_by)
    linear = tuple(
        site.name
        for site in channel_graph.sites[0]
        if site.module in by_hand
        and (depth := by_hand[site.module].depth) is not None
        and bool(is_open(depth))
    )
    return Decision(learnable, closed, linear)


def _check_by_hand(
    channel_graph: ChannelGraph, kept: Tensor, closed: Tensor, closed_by: dict[int, str]
) -> None:
    for channel in torch.nonzero(kept & closed).flatten().tolist():
        raise SurgeryError(
            f"gates placed by hand disagree: {closed_by[channel]!r} drops a channel that another "
            "TriState keeps, and the two are tied; share one gate between them, or use add_gates"
        )
    learnable = torch.zeros_like(closed)
    for group in channel_graph.groups:
        learnable[group.channels] = True
        if bool(closed[group.channels].all()):
            raise SurgeryError(
                f"all channels of {group.name!r} are dropped: the network is dead; open one"
            )
    for channel in torch.nonzero(closed & ~learnable).flatten().tolist():
        reason = channel_graph.reasons.get(channel)
        why = str(reason) if reason else "nothing narrows it"
        raise SurgeryError(f"a channel that {closed_by[channel]!r} drops cannot go: {why}")
