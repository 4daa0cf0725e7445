"""A program is a network as plain data: Hypothesis draws it, replays it and shrinks it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TypeVar

from hypothesis import strategies as st

Option = TypeVar("Option")

N_CHOICES = 10
WIDTHS = (2, 1, 3, 4, 5, 6)  # the plainest first; of one channel nothing can be learnt


@dataclass(frozen=True, slots=True)
class Block:
    """One step of a network.

    Attributes:
        kind: Which maker builds it.
        width: How many channels it gives, where that is free.
        choices: Numbers that decide everything else; zeros give the plainest form.
    """

    kind: str
    width: int
    choices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A network: what it reads, its blocks, its heads, and the seed of its weights.

    Attributes:
        shape: Channels and spatial sizes of the input.
        head: What the outputs are made of.
        seed: The seed of weights, statistics and inputs.
    """

    shape: tuple[int, ...]
    blocks: tuple[Block, ...]
    head: Block
    seed: int


@dataclass(frozen=True, slots=True)
class Gates:
    """How gates are set: tenths of the channels closed, of whole groups, of sites linear."""

    closed: int
    whole: int
    linear: int
    seed: int


class Chooser:
    """Turns a block's numbers into choices, one after the other."""

    def __init__(self, block: Block) -> None:
        self._numbers = cycle(block.choices)

    def __call__(self, options: Sequence[Option]) -> Option:
        """Return one of the options; the first is the plainest."""
        return options[next(self._numbers) % len(options)]


def blocks(kinds: Sequence[str]) -> st.SearchStrategy[Block]:
    """Return a strategy for blocks of the given kinds."""
    numbers = st.lists(st.integers(0, 239), min_size=N_CHOICES, max_size=N_CHOICES)
    return st.builds(Block, st.sampled_from(kinds), st.sampled_from(WIDTHS), numbers.map(tuple))


def programs(
    starts: Sequence[str], kinds: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> st.SearchStrategy[Program]:
    """Return a strategy for programs of one to five blocks."""
    first = blocks(starts).map(lambda block: (block,))
    others = st.lists(blocks(kinds), max_size=4).map(tuple)
    steps = st.tuples(first, others).map(lambda parts: parts[0] + parts[1])
    return st.builds(Program, st.sampled_from(shapes), steps, blocks(["head"]), seeds)


seeds = st.integers(0, 2**32 - 1)
gates = st.builds(
    Gates, st.integers(0, 10), st.sampled_from((0, 0, 2, 10)), st.integers(0, 10), seeds
)
