"""Attention by `torch.einsum` loses the same however it is written."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archlearn as al

WIDTH, HEADS, SIZE = 12, 4, 3


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    """Queries, keys and values of several heads, which a function multiplies."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.attend = attend
        self.stem, self.head = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 2)
        self.q, self.k, self.v = (nn.Linear(WIDTH, HEADS * SIZE) for _ in range(3))
        self.out = nn.Linear(HEADS * SIZE, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        q, k, v = (f(x).unflatten(-1, (HEADS, SIZE)) for f in (self.q, self.k, self.v))
        return self.head(x + self.out(self.attend(q, k, v).flatten(-2)))


def check_exact(gated: nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        for gate in al.width_gates(gated).values():
            closed = torch.rand(gate.shape, generator=generator) < 0.5
            gate.data.copy_(torch.where(closed, 0.1, 0.9))
        small: Any = al.compact(gated)
        x = draw(3, 6, 5)
        assert (gated(x) - small(x)).abs().max() < 1e-10
        assert al.plan(gated).after == al.count_costs(small)


LETTERS = ("bhijd", "bdijh", "hbjid", "dhbji", "ijdbh", "nkqcm", "xyzwv", "zvwxy")


@pytest.mark.parametrize("letters", LETTERS)
def test_what_pooling_by_attention_loses_does_not_hang_on_the_letters(letters: str) -> None:
    names = str.maketrans("bhijd", letters)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.einsum("bihd,bjhd->bhij".translate(names), q, k).softmax(-1).mean(2)
        y = torch.einsum("bhj,bjhd->bhd".translate(names), scores, v)
        return y[:, None] + torch.einsum("bhj,bjhd->bjhd".translate(names), scores, v)

    gated = al.add_gates(Attention(attend).double(), draw(2, 6, 5))
    gates = {name: len(gate) for name, gate in al.width_gates(gated).items()}
    assert gates == {"stem": WIDTH, "q": HEADS, "q/2": SIZE, "v": SIZE}
    check_exact(gated)


@pytest.mark.parametrize("letters", LETTERS)
def test_one_matrix_of_weights_for_all_heads_leaves_the_heads_of_values(letters: str) -> None:
    names = str.maketrans("bhijd", letters)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = torch.einsum("bihd,bjhd->bij".translate(names), q, k).softmax(-1)
        return torch.einsum("bij,bjhd->bihd".translate(names), weights, v)

    gated = al.add_gates(Attention(attend).double(), draw(2, 6, 5))
    gates = {name: len(gate) for name, gate in al.width_gates(gated).items()}
    assert gates == {"stem": WIDTH, "v": HEADS, "v/2": SIZE}
    check_exact(gated)


def turned(y: Tensor) -> Tensor:
    return y.transpose(1, 2)


SPELLINGS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "explicit": lambda q, k, v: torch.einsum(
        "bhij,bjhd->bihd", torch.einsum("bihd,bjhd->bhij", q, k).softmax(-1), v
    ),
    "swapped": lambda q, k, v: torch.einsum(
        "bjhd,bhij->bihd", v, torch.einsum("bjhd,bihd->bhij", k, q).softmax(-1)
    ),
    "ellipsis": lambda q, k, v: turned(
        torch.einsum(
            "... i j, ... j d -> ... i d",
            torch.einsum("... i d, ... j d -> ... i j", turned(q), turned(k)).softmax(-1),
            turned(v),
        )
    ),
    "ellipsis of the batch": lambda q, k, v: torch.einsum(
        "...hqk,...khd->...qhd", torch.einsum("...qhd,...khd->...hqk", q, k).softmax(-1), v
    ),
    "ellipsis in the middle": lambda q, k, v: torch.einsum(
        "b...ij,bj...d->bi...d", torch.einsum("bi...d,bj...d->b...ij", q, k).softmax(-1), v
    ),
    "implicit output": lambda q, k, v: turned(
        torch.einsum(
            "...ic,...cz", torch.einsum("...iz,...jz", turned(q), turned(k)).softmax(-1), turned(v)
        )
    ),
    "capital letters": lambda q, k, v: torch.einsum(
        "BHLS,BSHE->BLHE", [torch.einsum("BLHE,BSHE->BHLS", [q, k]).softmax(-1), v]
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_each_spelling_loses_heads_and_channels_within(name: str) -> None:
    net = Attention(SPELLINGS[name]).double()
    gated = al.add_gates(net, draw(2, 6, 5))
    gates = {name: len(gate) for name, gate in al.width_gates(gated).items()}
    assert gates == {"stem": WIDTH, "q": HEADS, "q/2": SIZE, "v": SIZE}
    check_exact(gated)


def test_dots_stand_for_fewer_dimensions_of_keys_that_all_rows_share() -> None:

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.einsum("...hid,...hjd->...hij", turned(q), turned(k)[0])
        return turned(torch.einsum("...hij,...hjd->...hid", scores.softmax(-1), turned(v)[0]))

    gated = al.add_gates(Attention(attend).double(), draw(2, 6, 5))
    gates = {name: len(gate) for name, gate in al.width_gates(gated).items()}
    assert gates == {"stem": WIDTH, "q": HEADS, "q/2": SIZE, "v": SIZE}
    check_exact(gated)
