"""A team is many runs in one process: side by side on a GPU, one after the other on a CPU.

A small network leaves most of a GPU idle, so each run of a team has its captured step on a
stream of its own, and nothing is read back before the end. The order of examples and the gates of
every epoch lie on the device.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from archlearn.gating.parameters import depth_gates, width_gates
from archlearn.training.cuda_graph import CapturedStepper
from archlearn.training.hardware import start_fabric
from archlearn.training.optimizers import has_gates
from archlearn.training.run_setup import Session, open_session
from archlearn.training.settings import RunSettings
from archlearn_paper.dataset_cache import Storeroom
from archlearn_paper.outcomes import Outcome, Recording, compact_trained, sum_up
from archlearn_paper.round_robin import (
    Clock,
    Progress,
    SilentTeamObserver,
    TeamObserver,
    take_turns,
)

SIDE_BY_SIDE = 16
_NOWHERE = Path("a-team-writes-nothing")


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
class _Member:
    """A run on its way."""

    run: Run
    session: Session
    stream: AbstractContextManager[object]
    recording: Recording
    orders: Tensor

    def epochs(self, first: int, until: int) -> Iterator[int]:
        """Hand epochs to the device, some steps at a time; yield 1 where an epoch ends, else 0.

        A stream takes only so much work in advance, so that members must take turns.
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


def train_team(
    runs: Sequence[Run],
    *,
    observer: TeamObserver | None = None,
    side_by_side: int = SIDE_BY_SIDE,
    go_on: Callable[[], bool] | None = None,
) -> list[Outcome]:
    """Carry out all runs and return what each came to, in the same order.

    The hardware settings of the first run are those of all. Nothing is written.

    Args:
        runs: What to do.
        observer: Hears of every epoch and every end.
        side_by_side: How many runs share a GPU at a time.
        go_on: Asked before each group of runs; once it says no, those that are left are not made.
    """
    if not runs:
        return []
    observer = observer or SilentTeamObserver()
    storeroom = Storeroom(start_fabric(runs[0].settings.hardware))
    on_gpu = storeroom.fabric.device.type == "cuda"
    outcomes: list[Outcome] = []
    n_epochs = sum(storeroom.n_epochs(run.settings) for run in runs)
    for group in _groups(runs, side_by_side if on_gpu else 1):
        if go_on is not None and not go_on():
            break
        done = sum(outcome.epochs for outcome in outcomes)
        outcomes += _train_group(group, storeroom, observer, (done, n_epochs))
    return outcomes


def _groups(runs: Sequence[Run], size: int) -> Iterator[Sequence[Run]]:
    for start in range(0, len(runs), size):
        yield runs[start : start + size]


def _train_group(
    runs: Sequence[Run], storeroom: Storeroom, observer: TeamObserver, place: tuple[int, int]
) -> list[Outcome]:
    """Train runs side by side: until gates stand still, and from there to the end.

    In between a run that asks for it becomes compact, which makes the second part cheaper and
    changes nothing of what it computes.
    """
    clock = Clock(storeroom.fabric.device)
    progress = Progress(observer, place[0], place[1])
    members = [_enlist(run, storeroom) for run in runs]
    settled = [_settled_epoch(member) for member in members]
    clock.start()
    take_turns([m.epochs(0, until) for m, until in zip(members, settled, strict=True)], progress)
    clock.stop()
    followers = [_follow(m, e, storeroom) for m, e in zip(members, settled, strict=True)]
    clock.start()
    rest = [
        follower.epochs(first, follower.session.n_epochs)
        for follower, first in zip(followers, settled, strict=True)
    ]
    take_turns(rest, progress)
    seconds = clock.stop()
    outcomes: list[Outcome] = []
    for first, last in zip(members, followers, strict=True):
        outcomes.append(
            sum_up(first.run.row, (first.session, last.session), first.recording, seconds)
        )
        observer.finished(outcomes[-1])
    return outcomes


def _settled_epoch(member: _Member) -> int:
    """Return the epochs after which gates stand still, if the run becomes compact then."""
    session = member.session
    if not member.run.finish_compact or not has_gates(session.work.model):
        return session.n_epochs
    return min(session.n_epochs, -(-session.work.schedule.gates_until // session.steps_per_epoch))


def _follow(member: _Member, epoch: int, storeroom: Storeroom) -> _Member:
    """Return who carries a run on from an epoch: a compact one, if there is anything left."""
    session = member.session
    if epoch >= session.n_epochs:
        return member
    small = compact_trained(session)
    settings = replace(session.settings, gates=replace(session.settings.gates, learn="nothing"))
    run = Run(row=member.run.row, settings=settings, network=small)
    return _enlist(run, storeroom)


def _enlist(run: Run, storeroom: Storeroom) -> _Member:
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
