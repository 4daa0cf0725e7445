"""The training loop: epochs, evaluation, log, checkpoints, graceful stop.

It can be left at any moment. What is on the disk is then the state after some finished step,
and going on from there gives, bit for bit, what never stopping would have given.
"""

import math
import signal
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

import torch
from torch import Tensor

from archlearn.errors import RunInterruptedError, RunStoppedError
from archlearn.optim.shrinking import try_shrink_
from archlearn_cli.training.callbacks import Callback
from archlearn_cli.training.checkpoint import (
    RANDOM,
    Position,
    capture_random_states,
    collect_tensors,
    order_of_epoch,
    write_checkpoint,
)
from archlearn_cli.training.defaults import loss_of_a_guess
from archlearn_cli.training.metrics import RunLog, score_of, sum_scores
from archlearn_cli.training.run_directory import resume_hint
from archlearn_cli.training.run_setup import Session


@contextmanager
def noting_signals() -> Generator[threading.Event]:
    """Note Ctrl-C and a polite kill; a second Ctrl-C ends at once. Only the main thread may."""
    stop = threading.Event()

    def note(number: int, _: FrameType | None) -> None:
        # A script that starts runs may pass SIGTERM on after they have had Ctrl-C, too.
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_STEPS_BETWEEN_CHECKS = 50
_SECONDS_BETWEEN_CHECKS = 2.0
_MOST_BYTES_ON_DEVICE = 1 << 30
_THROWN_OFF = 20.0


class TrainingLoop:
    """Carries a session from a position to its end."""

    def __init__(
        self,
        session: Session,
        position: Position,
        observers: Sequence[Callback],
        stop: threading.Event,
    ) -> None:
        self._session = session
        self._observers = observers
        self._stop = stop
        self._log = RunLog(session, observers)
        self._order_ahead: tuple[int, Tensor] | None = None
        fabric = session.fabric
        mine = session.dataset.validation[fabric.global_rank :: fabric.world_size]
        few = mine.inputs.nbytes <= _MOST_BYTES_ON_DEVICE
        self._validation = mine.to(fabric.device) if few else mine
        self._started = time.monotonic() - position.seconds
        self._first_step = position.step
        self._sitting = time.monotonic()
        self._saved = self._checked = time.monotonic()
        self.position = position

    def run(self) -> None:
        """Do all epochs that are left, unless the loss is no number any more, or it is stopped."""
        if self.position.step == 0:
            self._record(None, None)
        while self.position.epoch < self._session.n_epochs:
            self._run_epoch()
        self._log.write()
        self.position = replace(self.position, seconds=time.monotonic() - self._started)

    def _run_epoch(self) -> None:
        session, epoch = self._session, self.position.epoch
        session.stepper.begin_epoch(
            self._order_of(epoch), self.position.loss_sum, self.position.penalty_sum
        )
        batch = self.position.step - epoch * session.steps_per_epoch
        while batch < session.steps_per_epoch:
            done = session.stepper.advance(batch, self.position.step)
            batch += done
            self.position = replace(self.position, step=self.position.step + done)
            self._shrink()
            self._log.write()
            for observer in self._observers:
                observer.stepped(self.position.step)
            self._after_step(batch)
        if self._is_ahead_of_device():
            self._order_ahead = (epoch + 1, self._order_of(epoch + 1))
        self._end_epoch()

    def _shrink(self) -> None:
        """Cut out what is closed for good, where that pays."""
        session, work = self._session, self._session.work
        gates = work.gate_optimizer
        if gates is None or not try_shrink_(work.model, work.optimizers[0], gates=gates):
            return
        if session.fabric.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(session.fabric.device)
        session.stepper.renew()

    def _order_of(self, epoch: int) -> Tensor:
        """Return the order of an epoch, drawn now if it was not drawn ahead."""
        if self._order_ahead is not None and self._order_ahead[0] == epoch:
            return self._order_ahead[1]
        session = self._session
        order = order_of_epoch(len(session.dataset.train), session.settings.seed, epoch)
        return order.pin_memory() if self._is_ahead_of_device() else order

    def _is_ahead_of_device(self) -> bool:
        """Return whether the host has time to spare while the device works."""
        return self._session.fabric.device.type == "cuda"

    def _after_step(self, batch: int) -> None:
        """Between two steps: see that the loss is a number, save now and then, obey Ctrl-C."""
        alone = self._session.fabric.world_size == 1
        # To look at the loss is to wait for the device; all processes must agree when.
        if alone:
            waited = time.monotonic() - self._checked > _SECONDS_BETWEEN_CHECKS
            due = waited or not self._is_ahead_of_device()
        else:
            due = self.position.step % _STEPS_BETWEEN_CHECKS == 0
        if due:
            self._checked = time.monotonic()
            self._check_loss(self._session.stepper.sums()[0])
        if batch == self._session.steps_per_epoch:
            return
        if alone and (self._is_due() or self._stop.is_set()):
            self._save()
        if alone and self._stop.is_set():
            raise self._interrupted()

    def _end_epoch(self) -> None:
        session = self._session
        loss, cost = (total / session.steps_per_epoch for total in session.stepper.sums())
        self._check_loss(loss)
        self.position = replace(
            self.position, epoch=self.position.epoch + 1, loss_sum=0.0, penalty_sum=0.0
        )
        self._record(loss, cost)
        finished = self.position.epoch == session.n_epochs
        # All processes must agree, and only the first one's clock and signals count.
        if session.fabric.broadcast(self._is_due() or self._stop.is_set() or finished):
            self._save()
        if session.fabric.broadcast(self._stop.is_set()) and not finished:
            raise self._interrupted()

    def _record(self, loss: float | None, penalty: float | None) -> None:
        """Take down the lines of an epoch; a device that works on its own is not kept waiting."""
        session, score = self._session, None
        if len(session.dataset.validation):  # each process takes its share
            sums = sum_scores(session.work.model, self._validation, session.work.objective)
            total = session.fabric.all_reduce(sums, reduce_op="sum")
            assert isinstance(total, Tensor)
            score = score_of(total, session.work.objective.task)
        if not session.fabric.is_global_zero:
            return
        n_done, n_steps = self.position.step - self._first_step, session.work.schedule.n_steps
        spent, n_left = time.monotonic() - self._sitting, n_steps - self.position.step
        seconds_left = spent / n_done * n_left if n_done > 0 else math.nan
        position = replace(self.position, seconds=time.monotonic() - self._started)
        self._log.note(position, score, (loss, penalty), seconds_left)
        if not self._is_ahead_of_device():
            self._log.write()

    def _is_due(self) -> bool:
        return time.monotonic() - self._saved >= self._session.settings.record.checkpoint_seconds

    def _check_loss(self, loss: float) -> None:
        if math.isfinite(loss):
            return
        rate = self._session.settings.optimizer.learning_rate or 0.0
        raise RunStoppedError(
            f"the loss became {loss} by step {self.position.step} (epoch "
            f"{self.position.epoch + 1}); the last checkpoint is from before that; with a smaller "
            f"rate {resume_hint(self._session.folder)} --learning-rate {rate / 4:g}"
        )

    def _interrupted(self) -> RunInterruptedError:
        return RunInterruptedError(
            f"interrupted at step {self.position.step} (epoch {self.position.epoch + 1} of "
            f"{self._session.n_epochs}); {resume_hint(self._session.folder)}"
        )

    def _save(self) -> None:
        """Write a checkpoint with the random states of all processes.

        None is written while the loss is far above that of a guess: going back must lead to
        weights from before they were thrown off.
        """
        self._log.write()
        session = self._session
        loss, cost = session.stepper.sums()
        in_epoch = (self.position.step - 1) % session.steps_per_epoch + 1
        if loss / in_epoch > _THROWN_OFF * loss_of_a_guess(session.dataset):
            return
        within = self.position.step > self.position.epoch * session.steps_per_epoch
        position = replace(
            self.position,
            loss_sum=loss if within else 0.0,
            penalty_sum=cost if within else 0.0,
            seconds=time.monotonic() - self._started,
        )
        states = _random_states(session)
        self._saved = time.monotonic()
        if session.fabric.is_global_zero:
            tensors = collect_tensors(session.work.model, session.work.optimizers)
            write_checkpoint(session.folder, position, tensors | states)


def _random_states(session: Session) -> dict[str, Tensor]:
    """Return the random states of all processes, named by rank."""
    local = capture_random_states()
    if session.fabric.world_size == 1:
        return {f"{RANDOM}0/{name}": state for name, state in local.items()}
    gathered = {name: session.fabric.all_gather(state) for name, state in local.items()}
    return {
        f"{RANDOM}{rank}/{name}": states[rank].cpu()
        for name, states in gathered.items()
        for rank in range(session.fabric.world_size)
    }
