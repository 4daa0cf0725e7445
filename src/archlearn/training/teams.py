"""A team is many runs in one process: side by side on a GPU, one after the other on a CPU.

A small network leaves most of a GPU idle, so each run of a team has its captured step on a
stream of its own, and nothing is read back before the end. The order of examples and the gates of
every epoch lie on the device.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from archlearn.gating import depth_gates, width_gates
from archlearn.training.capturing import CapturedStepper
from archlearn.training.data.datasets import Dataset
from archlearn.training.data.fetching import no_progress
from archlearn.training.hardware import start_fabric
from archlearn.training.outcomes import Outcome, Recording, sum_up
from archlearn.training.preparing import Session, load_dataset, open_session
from archlearn.training.randomness import order_of_epoch
from archlearn.training.settings import RunSettings

logger = logging.getLogger(__name__)

SIDE_BY_SIDE = 16
_OF_DATA = (
    "data", "validation", "limit", "classes", "resize", "augment", "skip_broken", "start_from",
)  # fmt: skip
_NOWHERE = Path("a-team-writes-nothing")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run of an experiment.

    Attributes:
        row: The row or point of the experiment that it belongs to.
        settings: How it goes; the seed is in them.
        network: A plain network to start from, instead of a fresh `settings.model`.
        after_epoch: Called with the model and the epochs done, between two epochs; it may
            change tensors in place and must not read them.
    """

    row: str
    settings: RunSettings
    network: nn.Module | None = None
    after_epoch: Callable[[nn.Module, int], None] | None = None


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


@dataclass(kw_only=True, slots=True)
class _Member:
    """A run on its way."""

    run: Run
    session: Session
    stream: AbstractContextManager[object]
    recording: Recording
    orders: Tensor
    epoch: int = 0

    def do_epoch(self) -> None:
        """Hand a whole epoch to the device."""
        session = self.session
        with self.stream:
            session.stepper.begin_epoch(self.orders[self.epoch], 0.0, 0.0)
            place = 0
            while place < session.steps_per_epoch:
                step = self.epoch * session.steps_per_epoch + place
                place += session.stepper.advance(place, step)
            self.epoch += 1
            if self.run.after_epoch is not None:
                with torch.no_grad():
                    self.run.after_epoch(session.work.model, self.epoch)
            self.recording.note(self.epoch)


@dataclass(slots=True)
class _Storeroom:
    """What the runs of a team have in common: data sets and orders, loaded once."""

    fabric: Fabric
    datasets: dict[tuple[object, ...], Dataset] = field(default_factory=dict)
    orders: dict[tuple[int, int, int], Tensor] = field(default_factory=dict)

    def dataset(self, settings: RunSettings) -> Dataset:
        key = tuple(getattr(settings, name) for name in _OF_DATA)
        if key not in self.datasets:
            self.datasets[key] = load_dataset(settings, no_progress).to(self.fabric.device)
        return self.datasets[key]

    def order(self, n_examples: int, seed: int, n_epochs: int) -> Tensor:
        key = (n_examples, seed, n_epochs)
        if key not in self.orders:
            orders = [order_of_epoch(n_examples, seed, epoch) for epoch in range(n_epochs)]
            self.orders[key] = torch.stack(orders).to(self.fabric.device)
        return self.orders[key]


def train_team(
    runs: Sequence[Run], *, observer: TeamObserver | None = None, side_by_side: int = SIDE_BY_SIDE
) -> list[Outcome]:
    """Carry out all runs and return what each came to, in the same order.

    The hardware settings of the first run are those of all. Nothing is written.

    Args:
        runs: What to do.
        observer: Hears of every epoch and every end.
        side_by_side: How many runs share a GPU at a time.
    """
    if not runs:
        return []
    observer = observer or SilentTeamObserver()
    storeroom = _Storeroom(start_fabric(runs[0].settings.hardware))
    on_gpu = storeroom.fabric.device.type == "cuda"
    outcomes: list[Outcome] = []
    for group in _groups(runs, side_by_side if on_gpu else 1):
        outcomes += _train_group(group, storeroom, observer, (len(outcomes), len(runs)))
    return outcomes


def _groups(runs: Sequence[Run], size: int) -> Iterator[Sequence[Run]]:
    for start in range(0, len(runs), size):
        yield runs[start : start + size]


def _train_group(
    runs: Sequence[Run], storeroom: _Storeroom, observer: TeamObserver, place: tuple[int, int]
) -> list[Outcome]:
    started = time.perf_counter()
    members = [_enlist(run, storeroom) for run in runs]
    _synchronise(storeroom)
    ready = time.perf_counter()
    longest = max(member.session.n_epochs for member in members)
    for epoch in range(longest):
        for member in members:
            if member.epoch < member.session.n_epochs:
                member.do_epoch()
        observer.advanced(place[0] * longest + len(members) * (epoch + 1), place[1] * longest)
    _synchronise(storeroom)
    seconds = time.perf_counter() - ready
    logger.info("%d runs: %.1f s to begin, %.1f s", len(members), ready - started, seconds)
    outcomes: list[Outcome] = []
    for member in members:
        outcome = sum_up(member.run.row, member.session, member.recording, seconds)
        observer.finished(outcome)
        outcomes.append(outcome)
    return outcomes


def _enlist(run: Run, storeroom: _Storeroom) -> _Member:
    fabric = storeroom.fabric
    dataset = storeroom.dataset(run.settings)
    session = open_session(run.settings, _NOWHERE, fabric, dataset, run.network)
    model = session.work.model
    gates = [*width_gates(model).values(), *depth_gates(model).values()]
    recording = Recording(gates, session.n_epochs)
    recording.note(0)
    stepper = session.stepper
    captured = isinstance(stepper, CapturedStepper)
    stream = torch.cuda.stream(stepper.stream) if captured else nullcontext()
    orders = storeroom.order(len(dataset.train), session.settings.seed, session.n_epochs)
    return _Member(run=run, session=session, stream=stream, recording=recording, orders=orders)


def _synchronise(storeroom: _Storeroom) -> None:
    if storeroom.fabric.device.type == "cuda":
        torch.cuda.synchronize(storeroom.fabric.device)
