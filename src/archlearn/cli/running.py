"""Runs are started, watched and reported on from here."""

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archlearn.cli.display import make_display
from archlearn.cli.downloads import show_downloads
from archlearn.training.recording import COMPACT, REPORT
from archlearn.training.running import Audience, learn, resume
from archlearn.training.settings import RunSettings


def start_run(settings: RunSettings, folder: Path) -> Mapping[str, Any]:
    """Start a run, watch it, and write its report."""
    with make_display() as display, show_downloads() as progress:
        audience = Audience(observer=display, progress=progress, command=_command())
        summary = learn(settings, folder, audience)
    return _conclude(folder, summary, report=settings.record.report)


def resume_run(folder: Path, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Go on with a run, watch it, and write its report."""
    with make_display() as display, show_downloads() as progress:
        audience = Audience(observer=display, progress=progress, command=_command())
        summary = resume(folder, asked, audience)
    return _conclude(folder, summary, report=asked.get("report", True))


def _command() -> str:
    return shlex.join(["archlearn", *sys.argv[1:]])


def _conclude(folder: Path, summary: Mapping[str, Any], *, report: bool) -> Mapping[str, Any]:
    """Say where the results are; only the first of several processes does."""
    if os.environ.get("RANK", "0") != "0":
        return summary
    sys.stdout.write(f"compact model  {folder / COMPACT}\n")
    if report:
        from archlearn.reporting import write_report

        sys.stdout.write(f"report         {write_report([folder], folder / REPORT)}\n")
    return summary
