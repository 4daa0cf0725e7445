"""`learn` and `resume`: a run from its settings to its summary."""

import gc
import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import distributed

from archlearn.errors import CheckpointError, SettingsError
from archlearn.surgery.architecture import read_architecture
from archlearn_cli.data.dataset import fingerprint
from archlearn_cli.data.file_cache import GATES, METRICS, DownloadProgress, no_progress
from archlearn_cli.training.callbacks import Callback, EpochLogger, RunStart
from archlearn_cli.training.checkpoint import (
    Position,
    read_checkpoint,
    restore_random,
    restore_tensors_,
)
from archlearn_cli.training.finalize import check_finish, finish
from archlearn_cli.training.metrics import costs_of
from archlearn_cli.training.run_directory import (
    cut_lines,
    explaining_full_disks,
    explaining_full_memory,
    has_begun,
    lock_folder,
    open_new_folder,
    read_run_settings,
    write_settings,
)
from archlearn_cli.training.run_setup import Session, prepare
from archlearn_cli.training.settings import RunSettings, changed_fixed
from archlearn_cli.training.train_step import has_gates
from archlearn_cli.training.trainer import TrainingLoop, noting_signals


@dataclass(frozen=True, kw_only=True, slots=True)
class Audience:
    """Who watches a run, and the command that started it."""

    observer: Callback = field(default_factory=Callback)
    progress: DownloadProgress = no_progress
    command: str = ""


def learn(
    settings: RunSettings, folder: Path, audience: Audience | None = None
) -> Mapping[str, Any]:
    """Learn an architecture and return the summary of the run.

    Raises:
        SettingsError: If settings do not fit, or the folder holds a run.
        RunStoppedError: If the run stops before its end; it can be resumed.
    """
    with explaining_full_disks(folder), open_new_folder(folder) if _is_first() else nullcontext():
        return _run(settings, folder, audience or Audience())


def resume(
    folder: Path, settings: RunSettings | None = None, audience: Audience | None = None
) -> Mapping[str, Any]:
    """Go on with a run that was stopped, and return its summary.

    Args:
        folder: The run's folder.
        settings: Those from now on; left out, those of the run.
        audience: Who watches.

    Raises:
        SettingsError: If there is no run, or a setting cannot be changed any more.
    """
    before = read_run_settings(folder)
    settings = settings or before
    changed = changed_fixed(before, settings)
    if changed and has_begun(folder):
        raise SettingsError(
            f"{', '.join(changed)} cannot be changed when a run is resumed; start another one"
        )
    with explaining_full_disks(folder), lock_folder(folder) if _is_first() else nullcontext():
        return _run(settings, folder, audience or Audience())


def _is_first() -> bool:
    """Return whether this process is the one of a run that looks after its folder."""
    return os.environ.get("RANK", "0") == "0"


def _run(settings: RunSettings, folder: Path, audience: Audience) -> Mapping[str, Any]:
    had_group = _has_group()
    with explaining_full_memory():
        summary = _train(settings, folder, audience)
    if _has_group() and not had_group:
        # End together: a process that leaves alone can be aborted on its way out. The group goes
        # after the session that uses it. Were the session's model the last to hold it, its threads
        # would be waited for with the interpreter locked, which they may need themselves.
        gc.collect()
        distributed.barrier()
        distributed.destroy_process_group()
    return summary


def _has_group() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def _train(settings: RunSettings, folder: Path, audience: Audience) -> Mapping[str, Any]:
    observers = [audience.observer]
    if settings.record.logger is not None and _is_first():
        observers.append(EpochLogger(settings.record.logger))
    session = prepare(settings, folder, audience.progress)
    if session.fabric.is_global_zero:
        check_finish(session)
    with noting_signals() as stop:
        start = _describe_start(session)
        position = _restore(session, audience.command)
        start = replace(start, first_epoch=position.epoch, first_step=position.step)
        for observer in observers:
            observer.started(start)
        loop = TrainingLoop(session, position, observers, stop)
        loop.run()
        session.fabric.barrier()
        summary: Mapping[str, Any] = {}
        if session.fabric.is_global_zero:
            summary = finish(session, loop.position, audience.command)
            for observer in observers:
                observer.finished(summary)
        return summary


def _restore(session: Session, command: str) -> Position:
    """Return where the run stands, with everything set to what it was there."""
    if session.fabric.is_global_zero:
        write_settings(session.folder, session.settings)
    checkpoint = read_checkpoint(session.folder)
    session.fabric.barrier()
    data = fingerprint(session.dataset)
    position = Position(data=data, command=command) if checkpoint is None else checkpoint[0]
    if position.data != data:  # as when MNIST was there and now its stand-in is
        raise CheckpointError(
            f"the run {session.folder} learnt from other data than {session.dataset.name} "
            f"({session.dataset.source}) holds now; bring them back, or start another run"
        )
    if session.fabric.is_global_zero:
        for name in (METRICS, GATES):
            cut_lines(session.folder / name, -1 if checkpoint is None else position.epoch)
    if checkpoint is None:
        return position
    if restore_tensors_(checkpoint[1], session.work.model, session.work.optimizers):
        session.stepper.renew()
    if session.work.gate_optimizer is not None:
        session.work.gate_optimizer.resume_at(position.step)
    restore_random(checkpoint[1], session.fabric.global_rank)
    return replace(position, resumed=position.resumed + 1)


def _describe_start(session: Session) -> RunStart:
    """Return what a run starts from; gates must still stand where they start."""
    model = session.work.model
    architecture = read_architecture(model) if has_gates(model) else None
    layers = () if architecture is None else architecture.layers
    return RunStart(
        folder=session.folder,
        settings=session.settings,
        network=session.origin,
        data_source=session.dataset.source,
        architecture="" if architecture is None else str(architecture),
        parameters=costs_of(session.network, session.example).parameters,
        widths={layer.name: layer.width for layer in layers},
        n_steps=session.work.schedule.n_steps,
        first_epoch=0,
        first_step=0,
    )
