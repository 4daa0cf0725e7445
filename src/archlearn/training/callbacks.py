"""Whoever watches a run is told of its start, its steps, its epochs and its end."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from archlearn.training.settings import RunSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStart:
    """What is known before the first step.

    Attributes:
        network: What the run starts from, by name.
        architecture: The network before learning, as "20-50-500-10" where it is a chain.
        widths: Channels of its layers, by name.
        first_epoch: Epochs that were finished before, in a resumed run.
        first_step: Steps that were finished before, more than 0 for a resumed run.
    """

    folder: Path
    settings: RunSettings
    network: str
    data_source: str
    architecture: str
    parameters: int
    widths: Mapping[str, int]
    n_steps: int
    first_epoch: int
    first_step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochEnd:
    """A line of metrics, and what only a display needs.

    Attributes:
        projected: Parameters at the end if gates go on as in the last epoch; None while that is
            not known.
        seconds_left: Time until the last step at the speed of this sitting.
    """

    row: Mapping[str, Any]
    projected: int | None
    seconds_left: float


class Observer(Protocol):
    """Watches a run."""

    def started(self, start: RunStart) -> None:
        """Take note of the start."""
        ...

    def stepped(self, step: int) -> None:
        """Take note of finished steps."""
        ...

    def epoch_ended(self, end: EpochEnd) -> None:
        """Take note of a finished epoch."""
        ...

    def finished(self, summary: Mapping[str, Any]) -> None:
        """Take note of the end."""
        ...


class SilentObserver:
    """Watches and says nothing."""

    def started(self, start: RunStart) -> None:
        """Say nothing."""

    def stepped(self, step: int) -> None:
        """Say nothing."""

    def epoch_ended(self, end: EpochEnd) -> None:
        """Say nothing."""

    def finished(self, summary: Mapping[str, Any]) -> None:
        """Say nothing."""
