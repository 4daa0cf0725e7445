"""Start or resume a training run with its display, and write its report."""

import importlib
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import archlearn_cli as cli
from archlearn.errors import RunStoppedError
from archlearn_cli.commands.display import make_display, show_downloads
from archlearn_cli.training.run import Audience, learn, resume
from archlearn_cli.training.run_directory import (
    COMPACT,
    REPORT,
    explaining_full_disks,
    read_run_settings,
    resume_hint,
)
from archlearn_cli.training.settings import RunSettings


def start_run(settings: RunSettings, folder: Path) -> Mapping[str, Any]:
    """Start a run, watch it, and write its report."""
    return _watch(folder, settings, partial(learn, settings, folder))


def resume_run(folder: Path, settings: RunSettings | None = None) -> Mapping[str, Any]:
    """Go on with a run, watch it, and write its report."""
    settings = settings or read_run_settings(folder)
    return _watch(folder, settings, partial(resume, folder, settings))


def _watch(
    folder: Path, settings: RunSettings, run: Callable[[Audience], Mapping[str, Any]]
) -> Mapping[str, Any]:
    if settings.record.report:  # what is missing is said before the run, and not at its end
        importlib.import_module("archlearn_cli.reporting.page")
    command = shlex.join(["archlearn", *sys.argv[1:]])
    try:
        with make_display() as display, show_downloads() as progress:
            summary = run(Audience(observer=display, progress=progress, command=command))
    except BrokenPipeError as error:
        raise RunStoppedError(
            f"nobody reads the output any more; write it into a file, and {resume_hint(folder)}"
        ) from error
    if os.environ.get("RANK", "0") != "0":  # of several processes one says where the results are
        return summary
    sys.stdout.write(f"compact model  {folder / COMPACT}\n")
    if settings.record.report:
        with explaining_full_disks(folder):
            written = cli.reporting.write_report(folder, folder / REPORT)
        sys.stdout.write(f"report         {written}\n")
    return summary
