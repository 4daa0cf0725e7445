"""Runs side by side take turns, watched by an observer and a clock."""

import time
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from archlearn_paper.outcomes import Outcome


class TeamObserver(Protocol):
    """Hears how a team gets on."""

    def advanced(self, done: int, of: int) -> None:
        """Take note of the epochs done by all runs together."""
        ...

    def finished(self, outcome: Outcome) -> None:
        """Take note of a run that has ended."""
        ...


class SilentTeamObserver:
    """Hears and says nothing."""

    def advanced(self, done: int, of: int) -> None:
        """Do nothing."""

    def finished(self, outcome: Outcome) -> None:
        """Do nothing."""


def take_turns(parts: Sequence[Iterator[int]], progress: "Progress") -> None:
    """Go through several iterators, one item of each at a time, until all have ended."""
    waiting = list(parts)
    while waiting:
        going_on: list[Iterator[int]] = []
        for part in waiting:
            done = next(part, None)
            if done is not None:
                going_on.append(part)
                progress.advance(done)
        waiting = going_on


class Clock:
    """Adds up the time in which runs train."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._started = 0.0
        self._total = 0.0

    def start(self) -> None:
        """Begin to count."""
        self._wait()
        self._started = time.perf_counter()

    def stop(self) -> float:
        """Return the seconds so far."""
        self._wait()
        self._total += time.perf_counter() - self._started
        return self._total

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class Progress:
    """Tells an observer of the epochs done, over all groups of a team."""

    def __init__(self, observer: TeamObserver, done: int, of: int) -> None:
        self._observer, self._done, self._of = observer, done, of

    def advance(self, epochs: int) -> None:
        """Take note of epochs done."""
        self._done += epochs
        if epochs:
            self._observer.advanced(self._done, self._of)
