"""The gates of a model are read: which channels go, and which layers have become linear."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archlearn.analysis.channel_graph import Blueprint
from archlearn.costs import known_inputs
from archlearn.errors import InputError, SurgeryError
from archlearn.gating.container import STORE, GateStore, find_store
from archlearn.gating.selection import Choice, choose_by_hand
from archlearn.nn.functional import is_open, open_gates
from archlearn.nn.tristate import TriState, check_gate


@dataclass(frozen=True, slots=True)
class Decision:
    """What the gates say.

    Attributes:
        choice: What could be learnt.
        dropped: Whether each channel goes, by its smallest atom.
        linear: Sites that have become linear.
    """

    choice: Choice
    dropped: Tensor
    linear: tuple[str, ...]


def check_gates(model: nn.Module) -> None:
    """Raise if a model has no gates, neither of ours nor placed by hand.

    Raises:
        InputError: If so.
    """
    if not any(isinstance(module, GateStore | TriState) for module in model.modules()):
        raise InputError("the model has no gates; call add_gates on it first")


def decide(model: nn.Module, example_inputs: object = None) -> Decision:
    """Read the gates of a model."""
    check_gates(model)
    store = find_store(model)
    if store is None:
        return _decide_by_hand(model, example_inputs)
    if getattr(model, STORE, None) is not store:
        name = next(name for name, module in model.named_modules() if module is store)
        inside = name.removesuffix(f".{STORE}")
        raise InputError(
            f"the gates are in the submodule {inside!r}; call plan, compact or "
            f"read_architecture on that"
        )
    widths = {name: gate.detach().cpu() for name, gate in store.width_gates().items()}
    depths = {name: gate.detach().cpu() for name, gate in store.depth_gates().items()}
    for name, gate in [*widths.items(), *depths.items()]:
        check_gate(name, gate)
    blueprint = store.choice.blueprint
    dropped = torch.zeros(len(blueprint.root), dtype=torch.bool)
    for group, gate in zip(blueprint.groups, widths.values(), strict=True):
        dropped[group.channels] = open_gates(gate) < 0.5
    linear = tuple(site for site, gate in depths.items() if bool(is_open(gate)))
    return Decision(store.choice, dropped, linear)


def _decide_by_hand(model: nn.Module, example_inputs: object) -> Decision:
    by_hand = {n: m for n, m in model.named_modules() if isinstance(m, TriState)}
    for name, site in by_hand.items():
        for gate in (site.width, site.depth):
            if gate is not None:
                check_gate(name, gate)
    choice = choose_by_hand(model, known_inputs(model, example_inputs))
    blueprint = choice.blueprint
    kept = torch.zeros(len(blueprint.root), dtype=torch.bool)
    closed = torch.zeros_like(kept)
    closed_by: dict[int, str] = {}
    for place, sites in enumerate(blueprint.sites):
        for site in sites:
            module = by_hand.get(site.module)
            channels = blueprint.channels_of(place, site)
            if module is not None and channels is None:
                _check_all_open(site.module, module)
            if module is not None and module.width is not None and channels is not None:
                opened = is_open(module.width).cpu()
                kept[channels[opened]] = True
                closed[channels[~opened]] = True
                closed_by |= {int(c): site.module for c in channels[~opened]}
    _check_by_hand(blueprint, kept, closed, closed_by)
    linear = tuple(
        site.name
        for site in blueprint.sites[0]
        if site.module in by_hand and _is_linear(by_hand[site.module])
    )
    return Decision(choice, closed, linear)


def _check_all_open(name: str, module: TriState) -> None:
    if module.width is not None and not bool(is_open(module.width).all()):
        raise SurgeryError(
            f"{name!r} drops channels that cannot go: it wraps a "
            f"{type(module.activation).__name__}, which may mix them, or none of the model's "
            "layers makes them; wrap an activation that treats every element alike"
        )


def _is_linear(site: TriState) -> bool:
    return site.depth is not None and bool(is_open(site.depth))


def _check_by_hand(
    blueprint: Blueprint, kept: Tensor, closed: Tensor, closed_by: dict[int, str]
) -> None:
    for channel in torch.nonzero(kept & closed).flatten().tolist():
        raise SurgeryError(
            f"gates placed by hand disagree: {closed_by[channel]!r} drops a channel that another "
            "TriState keeps, and the two are tied; share one gate between them, or use add_gates"
        )
    learnable = torch.zeros_like(closed)
    for group in blueprint.groups:
        learnable[group.channels] = True
        if bool(closed[group.channels].all()):
            raise SurgeryError(
                f"all channels of {group.name!r} are dropped: the network is dead; open one"
            )
    for channel in torch.nonzero(closed & ~learnable).flatten().tolist():
        reason = blueprint.reasons.get(channel)
        why = f"{reason.text}; {reason.fix}" if reason else "nothing narrows it"
        raise SurgeryError(f"a channel that {closed_by[channel]!r} drops cannot go: {why}")
