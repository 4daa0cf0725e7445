"""Ties between atoms, joined as they come."""

import torch
from torch import nn

from archlearn.analysis.constraints import ChannelConstraints


def find_roots_by_hand(n_atoms: int, ties: list[tuple[int, int]]) -> list[int]:
    classes = [{atom} for atom in range(n_atoms)]
    for first, second in ties:
        joined = classes[first] | classes[second]
        for atom in joined:
            classes[atom] = joined
    return [min(members) for members in classes]


def test_roots_asked_for_between_ties_are_those_of_all_ties() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        constraints, ties = ChannelConstraints(nn.Identity()), list[tuple[int, int]]()
        for _ in range(6):
            constraints.new_atoms(10)
            n = constraints.n_atoms
            first, second = torch.randint(n, (2, 4), generator=generator)
            constraints.tie(first, second)
            ties += zip(first.tolist(), second.tolist(), strict=True)
            assert constraints.roots().tolist() == find_roots_by_hand(n, ties)
        free = [pair for pair in ties if 0 not in pair]
        assert constraints.roots(with_fixed=False).tolist() == find_roots_by_hand(n, free)
