"""A group is channels of one kind: they share one vector of gates."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from archlearn.analysis.constraints import Reason


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
