"""Train several runs at once, each on its own CUDA stream.

A small network leaves most of a GPU idle, so each run has its captured step on a stream of its
own, and nothing is read back before the end. The order of examples and the gates of every epoch
lie on the device.
"""

import copy
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from archlearn.gating.parameters import depth_gates, width_gates
from archlearn.nn.functional import is_open
from archlearn.surgery.architecture import read_architecture
from archlearn.surgery.compaction import compact
from archlearn.surgery.planning import plan
from archlearn.verification.speed import wait_for
from archlearn_cli.training.checkpoint import order_of_epoch
from archlearn_cli.training.cuda_graph import CapturedStepper
from archlearn_cli.training.defaults import derive_sizes
from archlearn_cli.training.hardware import start_fabric
from archlearn_cli.training.objectives import in_format_of
from archlearn_cli.training.run_setup import Session, open_session, set_layout_
from archlearn_cli.training.settings import to_table
from archlearn_cli.training.train_step import has_gates
from archlearn_paper import evaluation
from archlearn_paper.experiment import Row, Run

SIDE_BY_SIDE = 16
_NOWHERE = Path("runs-side-by-side-write-nothing")


class Outcome(NamedTuple):
    """What a run came to: its row, with its gates over the epochs, and its compact model."""

    row: Row
    model: nn.Module


def train_side_by_side(
    runs: Sequence[Run],
    *,
    on_epoch: Callable[[int, int], None] | None = None,
    side_by_side: int = SIDE_BY_SIDE,
    until: float = math.inf,
) -> Iterator[Outcome]:
    """Carry out all runs and yield what each came to, in the same order.

    The hardware settings of the first run are those of all. Nothing is written. Where the time is
    up, the outcomes are fewer than the runs.

    Args:
        runs: What to do.
        on_epoch: Told of the epochs done by all runs, and of how many.
        side_by_side: How many runs share a GPU at a time.
        until: Time of `time.monotonic` after which no run is to end, judged by those before it.
    """
    if not runs:
        return
    fabric = start_fabric(runs[0].settings.hardware)
    n_epochs, done = sum(_count_epochs(run, fabric) for run in runs), itertools.count(1)

    def count_epoch() -> None:
        n_done = next(done)
        if on_epoch is not None:
            on_epoch(n_done, n_epochs)

    size = side_by_side if fabric.device.type == "cuda" else 1
    longest = 0.0
    for start in range(0, len(runs), size):
        began = time.monotonic()
        if began + longest > until:
            return
        yield from _train_group(runs[start : start + size], fabric, count_epoch)
        longest = max(longest, time.monotonic() - began)


def _count_epochs(run: Run, fabric: Fabric) -> int:
    n_train = len(evaluation.find_dataset(run.settings, fabric.device).train)
    epochs = derive_sizes(run.settings, n_train, run.settings.hardware.accumulate).epochs
    assert epochs is not None
    return epochs


def _train_group(
    runs: Sequence[Run], fabric: Fabric, count_epoch: Callable[[], None]
) -> Iterator[Outcome]:
    """Train runs side by side: until gates stand still, and from there to the end.

    In between a run that asks for it becomes compact, which makes the second part cheaper and
    changes nothing of what it computes.
    """
    active = [_prepare_run(run, fabric) for run in runs]
    settled = [_settled_epoch(member) for member in active]
    parts = [member.epochs(0, until) for member, until in zip(active, settled, strict=True)]
    seconds = _round_robin(parts, fabric.device, count_epoch)
    pairs = list(zip(active, settled, strict=True))
    followers = [_compact_and_continue(member, epoch, fabric) for member, epoch in pairs]
    rest = [
        follower.epochs(first, follower.session.n_epochs)
        for follower, first in zip(followers, settled, strict=True)
    ]
    seconds += _round_robin(rest, fabric.device, count_epoch)
    for first, last in zip(active, followers, strict=True):
        yield _summarise(first, last.session, seconds)


def _round_robin(
    parts: Sequence[Iterator[bool]], device: torch.device, count_epoch: Callable[[], None]
) -> float:
    """Go through several runs, some steps of each at a time; return the seconds that took."""
    wait_for(device)
    started = time.perf_counter()
    waiting = list(parts)
    while waiting:
        for part in list(waiting):
            epoch_ended = next(part, None)
            if epoch_ended is None:
                waiting.remove(part)
            elif epoch_ended:
                count_epoch()
    wait_for(device)
    return time.perf_counter() - started


@dataclass(kw_only=True, slots=True)
class _ActiveRun:
    """A run on its way; the gates of every epoch stay on the device: nothing waits for them."""

    run: Run
    session: Session
    stream: AbstractContextManager[object]
    gates: Tensor
    orders: Tensor

    def epochs(self, first: int, until: int) -> Iterator[bool]:
        """Hand epochs to the device, some steps at a time; yield whether an epoch has ended.

        A stream takes only so much work in advance, so that runs must take turns.
        """
        session = self.session
        for epoch in range(first, until):
            with self.stream:
                session.stepper.begin_epoch(self.orders[epoch], 0.0, 0.0)
            batch = 0
            while batch < session.steps_per_epoch:
                with self.stream:
                    step = epoch * session.steps_per_epoch + batch
                    batch += session.stepper.advance(batch, step)
                yield False
            with self.stream, torch.no_grad():
                if self.run.after_epoch is not None:
                    self.run.after_epoch(session.work.model, epoch + 1)
                self.note_gates(epoch + 1)
            yield True

    @torch.no_grad()
    def note_gates(self, n_done: int) -> None:
        """Keep the gates as they are now for this epoch and all that follow."""
        gates = _list_gates(self.session.work.model)
        if gates:
            self.gates[n_done:] = torch.cat([gate.reshape(-1) for gate in gates.values()])


def _list_gates(model: nn.Module) -> dict[tuple[str, str], nn.Parameter]:
    """Return width and depth gates, by their kind and name."""
    kinds = {"widths": width_gates(model), "linear": depth_gates(model)}
    return {(kind, name): gate for kind, gates in kinds.items() for name, gate in gates.items()}


def _settled_epoch(active: _ActiveRun) -> int:
    """Return the epochs after which gates stand still, if the run becomes compact then."""
    session = active.session
    if not active.run.finish_compact or not has_gates(session.work.model):
        return session.n_epochs
    return min(session.n_epochs, -(-session.work.schedule.gates_until // session.steps_per_epoch))


def _compact_and_continue(active: _ActiveRun, epoch: int, fabric: Fabric) -> _ActiveRun:
    """Return who carries a run on from an epoch: a compact one, if there is anything left."""
    session = active.session
    if epoch >= session.n_epochs:
        return active
    settings = replace(session.settings, gates=replace(session.settings.gates, learn="nothing"))
    run = Run(row=active.run.row, settings=settings, network=_compact_trained(session))
    return _prepare_run(run, fabric)


def _prepare_run(run: Run, fabric: Fabric) -> _ActiveRun:
    dataset = evaluation.find_dataset(run.settings, fabric.device)
    session = open_session(run.settings, _NOWHERE, fabric, dataset, run.network)
    stepper, n_epochs = session.stepper, session.n_epochs
    captured = isinstance(stepper, CapturedStepper)
    n_gates = sum(gate.numel() for gate in _list_gates(session.work.model).values())
    active = _ActiveRun(
        run=run,
        session=session,
        stream=torch.cuda.stream(stepper.stream) if captured else nullcontext(),
        gates=torch.zeros(n_epochs + 1, n_gates, device=fabric.device),
        orders=_orders(len(dataset.train), session.settings.seed, n_epochs, fabric.device),
    )
    active.note_gates(0)
    return active


@functools.lru_cache(maxsize=SIDE_BY_SIDE)
def _orders(n_examples: int, seed: int, n_epochs: int, device: torch.device) -> Tensor:
    """Return the order of examples of every epoch, on the device; runs of a seed share it."""
    orders = [order_of_epoch(n_examples, seed, epoch) for epoch in range(n_epochs)]
    return torch.stack(orders).to(device)


def _summarise(active: _ActiveRun, last: Session, seconds: float) -> Outcome:
    """Return the outcome of a run whose training has ended.

    Scores are those of the trained model on its device; the compact model computes the same, as
    its certificate says. `last` trained the compact network to the end, or is the run's own.
    """
    session, small = active.session, _compact_trained(last)
    architecture = "-".join(map(str, evaluation.widths_of(session.work.model).values()))
    if has_gates(session.work.model):
        gated = copy.deepcopy(session.work.model).cpu()
        example, pay = in_format_of(gated, session.example), session.settings.strengths.pay
        architecture = str(read_architecture(gated, example, pay=pay))
    row = Row(
        row=active.run.row,
        seed=session.settings.seed,
        settings=to_table(session.settings),
        architecture=architecture,
        epochs=session.n_epochs,
        seconds=round(seconds, 3),
        history=_describe_gates(active),
        **evaluation.measure_scores(last.work.model, session.dataset, session.work.objective),
        **evaluation.measure_sizes(small, session.example),
    )
    return Outcome(row=row, model=small)


def _compact_trained(session: Session) -> nn.Module:
    """Return the trained network of a session as a plain one on the CPU, without its gates."""
    model = copy.deepcopy(session.work.model).cpu().eval()
    set_layout_(model, torch.contiguous_format)
    if not has_gates(model):
        return model
    example = in_format_of(model, session.example)
    asked = plan(model, example, pay=session.settings.strengths.pay)
    return compact(model, example, plan=asked)


def _describe_gates(active: _ActiveRun) -> list[dict[str, Any]]:
    """Return kept channels, linear sites and the distance from binary, after each epoch."""
    by_name = _list_gates(active.session.work.model)
    entries: list[dict[str, Any]] = []
    for epoch, gates in enumerate(active.gates.cpu() if by_name else ()):
        pieces = is_open(gates).split([gate.numel() for gate in by_name.values()])
        opened = dict(zip(by_name, pieces, strict=True))
        entries.append(
            {
                "epoch": epoch,
                "step": epoch * active.session.steps_per_epoch,
                "widths": {n: int(o.sum()) for (kind, n), o in opened.items() if kind == "widths"},
                "linear": [n for (kind, n), o in opened.items() if kind == "linear" and o.all()],
                "gap": round(torch.minimum(gates, 1 - gates).mean().item(), 5),
            }
        )
    return entries
