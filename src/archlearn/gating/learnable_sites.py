"""A choice says what is learnt in a model, and why the rest is not."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from archlearn.analysis.channel_graph import NO_CHANNELS, NOT_ASKED, Blueprint
from archlearn.analysis.constraints import Reason
from archlearn.analysis.labels import FIXED
from archlearn.analysis.layer_pairs import Link
from archlearn.analysis.sites import Site


@dataclass(frozen=True, slots=True)
class Choice:
    """What is learnt in a model, and why the rest is not.

    Attributes:
        blueprint: All that is known of the model's channels.
        links: The layers on both sides of each site whose depth is learnt.
        no_link: Why depth is not learnt at each other site.
        rows: For each linear op, the channels that it writes.
    """

    blueprint: Blueprint
    links: dict[str, Link]
    no_link: dict[str, Reason]
    rows: tuple[tuple[str, Tensor], ...]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Choice":
        return self

    def width_reason(self, place: int, site: Site) -> Reason | None:
        """Return why a site's width is not learnt, or None if any of its channels is."""
        channels = self.blueprint.channels_of(place, site)
        if channels is None:
            return self.blueprint.followed[place].hidden.get(site.node, NO_CHANNELS)
        if site.node not in self.blueprint.gated[place]:
            return NOT_ASKED
        if self.n_learnt(place, site):
            return None
        atoms = self.blueprint.followed[place].sites[site.node].ids
        reasons, fixed = self.blueprint.reasons, self.blueprint.fixed
        found = (
            fixed.get(atom) if channel == FIXED else reasons.get(channel)
            for atom, channel in zip(atoms.tolist(), channels.tolist(), strict=True)
        )
        return next(filter(None, found), NO_CHANNELS)

    def n_learnt(self, place: int, site: Site) -> int:
        """Return in how many of a site's channels the width is learnt."""
        channels = self.blueprint.channels_of(place, site)
        if channels is None or site.node not in self.blueprint.gated[place]:
            return 0
        return int((self.blueprint.group_of[channels] >= 0).sum())

    def neurons(self) -> Tensor:
        """Return how many neurons go with one gate of each group."""
        sizes = self.blueprint.group_sizes()
        counts = torch.zeros(len(sizes))
        for _, rows in self.rows:
            counts += self.blueprint.count_by_group(rows)
        return (counts / sizes).clamp(min=1.0)

    def linear_neurons(self) -> Tensor:
        """Return how many of those a linear site frees, a row for each depth gate."""
        sizes = self.blueprint.group_sizes()
        by_layer = dict(self.rows)
        table = torch.zeros(len(self.links), len(sizes))
        for row, link in enumerate(self.links.values()):
            table[row] = self.blueprint.count_by_group(by_layer[link.first]) / sizes
        return table
