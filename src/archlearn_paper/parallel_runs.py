"""Train several runs at once, each on its own CUDA stream.

A small network leaves most of a GPU idle, so each run of a team has its captured step on a
stream of its own, and nothing is read back before the end. The order of examples and the gates of
every epoch lie on the device.
"""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from archlearn.data.dataset import Dataset
from archlearn.data.downloads import no_progress
from archlearn.gating.parameters import depth_gates, width_gates
from archlearn.training.checkpoint import order_of_epoch
from archlearn.training.cuda_graph import CapturedStepper
from archlearn.training.defaults import derive_sizes
from archlearn.training.hardware import start_fabric
from archlearn.training.run_setup import Session, load_dataset, open_session
from archlearn.training.settings import RunSettings
from archlearn.training.train_step import has_gates
from archlearn_paper.outcomes import GateHistory, Outcome, compact_trained, summarise_run

_OF_DATA = (
    "data", "validation", "limit", "classes", "resize", "augment", "normalise", "skip_broken",
    "start_from",
)  # fmt: skip


_MOST_BYTES_ON_DEVICE = 8 << 30


@dataclass(slots=True)
class DatasetCache:
    """What the runs of a team have in common: data sets and orders, loaded once."""

    fabric: Fabric
    datasets: dict[tuple[object, ...], Dataset] = field(default_factory=dict)
    orders: dict[tuple[int, int, int], Tensor] = field(default_factory=dict)

    def dataset(self, settings: RunSettings) -> Dataset:
        """Return the data set that a run learns from, on the device unless it is very large."""
        key = tuple(getattr(settings, name) for name in _OF_DATA)
        if key not in self.datasets:
            found = _load(replace(RunSettings(), **dict(zip(_OF_DATA, key, strict=True))))
            fits = found.train.n_bytes <= _MOST_BYTES_ON_DEVICE
            self.datasets[key] = found.to(self.fabric.device) if fits else found
        return self.datasets[key]

    def n_epochs(self, settings: RunSettings) -> int:
        """Return the epochs that a run will have."""
        n_train = len(self.dataset(settings).train)
        epochs = derive_sizes(settings, n_train, settings.hardware.accumulate).epochs
        assert epochs is not None
        return epochs

    def order(self, n_examples: int, seed: int, n_epochs: int) -> Tensor:
        """Return the order of examples of every epoch, on the device."""
        key = (n_examples, seed, n_epochs)
        if key not in self.orders:
            orders = [order_of_epoch(n_examples, seed, epoch) for epoch in range(n_epochs)]
            self.orders[key] = torch.stack(orders).to(self.fabric.device)
        return self.orders[key]


@functools.lru_cache(maxsize=2)
def _load(settings: RunSettings) -> Dataset:
    """Return a data set that teams one after the other learn from, read from the disk once."""
    return load_dataset(settings, no_progress)


class ParallelRunsCallback(Protocol):
    """Hears how a team gets on."""

    def advanced(self, done: int, of: int) -> None:
        """Take note of the epochs done by all runs together."""
        ...

    def finished(self, outcome: Outcome) -> None:
        """Take note of a run that has ended."""
        ...


class SilentParallelRunsCallback:
    """Hears and says nothing."""

    def advanced(self, done: int, of: int) -> None:
        """Do nothing."""

    def finished(self, outcome: Outcome) -> None:
        """Do nothing."""


def round_robin(parts: Sequence[Iterator[int]], progress: "EpochProgress") -> None:
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


class EpochProgress:
    """Tells an observer of the epochs done, over all groups of a team."""

    def __init__(self, observer: ParallelRunsCallback, done: int, of: int) -> None:
        self._observer, self._done, self._of = observer, done, of

    def advance(self, epochs: int) -> None:
        """Take note of epochs done."""
        self._done += epochs
        if epochs:
            self._observer.advanced(self._done, self._of)


SIDE_BY_SIDE = 16


_NOWHERE = Path("runs-side-by-side-write-nothing")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run of an experiment.

    Attributes:
        row: The row or point of the experiment that it belongs to.
        settings: How it goes; the seed is in them.
        network: A plain network to start from, instead of a fresh `settings.model`.
        after_epoch: Called with the model and the epochs done, between two epochs; it may
            change tensors in place. To read them makes the runs beside it wait, so it is for
            once in a run.
        finish_compact: Whether the network becomes compact as soon as gates stand still, and is
            trained in that form to the end. The momentum of its weights starts anew there.
    """

    row: str
    settings: RunSettings
    network: nn.Module | None = None
    after_epoch: Callable[[nn.Module, int], None] | None = None
    finish_compact: bool = False


@dataclass(kw_only=True, slots=True)
class _ActiveRun:
    """A run on its way."""

    run: Run
    session: Session
    stream: AbstractContextManager[object]
    recording: GateHistory
    orders: Tensor

    def epochs(self, first: int, until: int) -> Iterator[int]:
        """Hand epochs to the device, some steps at a time; yield 1 where an epoch ends, else 0.

        A stream takes only so much work in advance, so that active must take turns.
        """
        session = self.session
        for epoch in range(first, until):
            with self.stream:
                session.stepper.begin_epoch(self.orders[epoch], 0.0, 0.0)
            place = 0
            while place < session.steps_per_epoch:
                with self.stream:
                    step = epoch * session.steps_per_epoch + place
                    place += session.stepper.advance(place, step)
                yield 0
            with self.stream:
                self._end(epoch + 1)
            yield 1

    def _end(self, n_done: int) -> None:
        if self.run.after_epoch is not None:
            with torch.no_grad():
                self.run.after_epoch(self.session.work.model, n_done)
        self.recording.note(n_done)


def train_side_by_side(
    runs: Sequence[Run],
    *,
    observer: ParallelRunsCallback | None = None,
    side_by_side: int = SIDE_BY_SIDE,
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
    observer = observer or SilentParallelRunsCallback()
    cache = DatasetCache(start_fabric(runs[0].settings.hardware))
    on_gpu = cache.fabric.device.type == "cuda"
    outcomes: list[Outcome] = []
    n_epochs = sum(cache.n_epochs(run.settings) for run in runs)
    for group in _groups(runs, side_by_side if on_gpu else 1):
        done = sum(outcome.epochs for outcome in outcomes)
        outcomes += _train_group(group, cache, observer, (done, n_epochs))
    return outcomes


def _groups(runs: Sequence[Run], size: int) -> Iterator[Sequence[Run]]:
    for start in range(0, len(runs), size):
        yield runs[start : start + size]


def _train_group(
    runs: Sequence[Run], cache: DatasetCache, observer: ParallelRunsCallback, place: tuple[int, int]
) -> list[Outcome]:
    """Train runs side by side: until gates stand still, and from there to the end.

    In between a run that asks for it becomes compact, which makes the second part cheaper and
    changes nothing of what it computes.
    """
    clock = Clock(cache.fabric.device)
    progress = EpochProgress(observer, place[0], place[1])
    active = [_prepare_run(run, cache) for run in runs]
    settled = [_settled_epoch(active_run) for active_run in active]
    clock.start()
    round_robin([m.epochs(0, until) for m, until in zip(active, settled, strict=True)], progress)
    clock.stop()
    followers = [_compact_and_continue(m, e, cache) for m, e in zip(active, settled, strict=True)]
    clock.start()
    rest = [
        follower.epochs(first, follower.session.n_epochs)
        for follower, first in zip(followers, settled, strict=True)
    ]
    round_robin(rest, progress)
    seconds = clock.stop()
    outcomes: list[Outcome] = []
    for first, last in zip(active, followers, strict=True):
        outcomes.append(
            summarise_run(first.run.row, (first.session, last.session), first.recording, seconds)
        )
        observer.finished(outcomes[-1])
    return outcomes


def _settled_epoch(active_run: _ActiveRun) -> int:
    """Return the epochs after which gates stand still, if the run becomes compact then."""
    session = active_run.session
    if not active_run.run.finish_compact or not has_gates(session.work.model):
        return session.n_epochs
    return min(session.n_epochs, -(-session.work.schedule.gates_until // session.steps_per_epoch))


def _compact_and_continue(active_run: _ActiveRun, epoch: int, cache: DatasetCache) -> _ActiveRun:
    """Return who carries a run on from an epoch: a compact one, if there is anything left."""
    session = active_run.session
    if epoch >= session.n_epochs:
        return active_run
    small = compact_trained(session)
    settings = replace(session.settings, gates=replace(session.settings.gates, learn="nothing"))
    run = Run(row=active_run.run.row, settings=settings, network=small)
    return _prepare_run(run, cache)


def _prepare_run(run: Run, cache: DatasetCache) -> _ActiveRun:
    fabric = cache.fabric
    dataset = cache.dataset(run.settings)
    session = open_session(run.settings, _NOWHERE, fabric, dataset, run.network)
    model = session.work.model
    gates = [*width_gates(model).values(), *depth_gates(model).values()]
    recording = GateHistory(gates, session.n_epochs)
    recording.note(0)
    stepper = session.stepper
    captured = isinstance(stepper, CapturedStepper)
    stream = torch.cuda.stream(stepper.stream) if captured else nullcontext()
    orders = cache.order(len(dataset.train), session.settings.seed, session.n_epochs)
    return _ActiveRun(run=run, session=session, stream=stream, recording=recording, orders=orders)
