"""An experiment has a scale: how many seeds, how long, on how much, at how many points."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

Point = TypeVar("Point")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """How large an experiment is made.

    Attributes:
        name: "full", or "quick" for a small version that says it is one.
        seeds: Every row is run once for each.
        epochs: Passes over the train data.
        limit: Train examples used; None uses all.
        validation: Part of the train data set apart; 0 learns from all of them.
        points: Most points of a sweep that are run; None runs all.
        probes: Train examples on which the loss without single neurons is measured.
        data: The data set.
        batch_size: Examples a step; the rate of the weights is in proportion.
    """

    name: str
    seeds: tuple[int, ...]
    epochs: int
    limit: int | None = None
    validation: float = 0.0
    points: int | None = None
    probes: int = 10_000
    data: str = "mnist"
    batch_size: int = 250

    def shorten(self, epochs: int, n_seeds: int | None = None) -> "Scale":
        """Return a scale of so many epochs and seeds at most."""
        return replace(self, epochs=min(self.epochs, epochs), seeds=self.seeds[:n_seeds])

    def pick(self, sweep: Sequence[Point]) -> list[Point]:
        """Return the points of a sweep that are run, spread evenly, the ends among them."""
        if self.points is None or len(sweep) <= self.points:
            return list(sweep)
        if self.points == 1:
            return [sweep[len(sweep) // 2]]
        last = len(sweep) - 1
        return [sweep[round(place * last / (self.points - 1))] for place in range(self.points)]


FULL = Scale(name="full", seeds=(0, 1, 2, 3, 4), epochs=60)
QUICK = Scale(
    name="quick",
    seeds=(0, 1),
    epochs=10,
    limit=1500,
    validation=1 / 12,
    points=3,
    probes=500,
    batch_size=50,
)
