"""Start or resume a training run with its display, and write its report."""

import importlib
import os
import shlex
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import archlearn as al
from archlearn.cli.display import make_display, show_downloads
from archlearn.data.file_cache import DownloadProgress
from archlearn.errors import RunStoppedError
from archlearn.training.callbacks import Callback, CallbackList, EpochLogger
from archlearn.training.run import Audience, learn, resume
from archlearn.training.run_directory import (
    COMPACT,
    REPORT,
    explaining_full_disks,
    read_run_settings,
    resume_hint,
)
from archlearn.training.settings import LoggerName, RunSettings, override


def start_run(settings: RunSettings, folder: Path) -> Mapping[str, Any]:
    """Start a run, watch it, and write its report."""
    return _watch(folder, settings, partial(learn, settings, folder))


def resume_run(folder: Path, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Go on with a run, watch it, and write its report."""
    settings = override(read_run_settings(folder), asked)
    return _watch(folder, settings, partial(resume, folder, asked))


def _watch(
    folder: Path, settings: RunSettings, run: Callable[[Audience], Mapping[str, Any]]
) -> Mapping[str, Any]:
    if settings.record.report:  # what is missing is said before the run, and not at its end
        importlib.import_module("archlearn.reporting.page")
    with _explaining_pipes(folder), make_display() as display, show_downloads() as progress:
        summary = run(_audience(display, progress, settings.record.logger))
    return _conclude(folder, summary, report=settings.record.report)


@contextmanager
def _explaining_pipes(folder: Path) -> Generator[None]:
    """Say how to go on with a run that stops because nobody reads its output any more."""
    try:
        yield
    except BrokenPipeError as error:
        raise RunStoppedError(
            f"nobody reads the output any more; write it into a file, and {resume_hint(folder)}"
        ) from error


def _audience(display: Callback, progress: DownloadProgress, logger: LoggerName | None) -> Audience:
    observers = [display]
    if logger is not None and os.environ.get("RANK", "0") == "0":
        observers.append(EpochLogger(logger))
    command = shlex.join(["archlearn", *sys.argv[1:]])
    return Audience(observer=CallbackList(observers), progress=progress, command=command)


def _conclude(folder: Path, summary: Mapping[str, Any], *, report: bool) -> Mapping[str, Any]:
    """Say where the results are; only the first of several processes does."""
    if os.environ.get("RANK", "0") != "0":
        return summary
    sys.stdout.write(f"compact model  {folder / COMPACT}\n")
    if report:
        with explaining_full_disks(folder):
            written = al.reporting.write_report([folder], folder / REPORT)
        sys.stdout.write(f"report         {written}\n")
    return summary
