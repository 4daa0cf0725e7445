"""Runs over several budgets and seeds, each a process of its own, and the choice among them."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from archlearn.errors import RunStoppedError, SettingsError
from archlearn.training.config import format_settings
from archlearn.training.run_directory import CONFIG, SUMMARY
from archlearn.training.settings import RunSettings

PLAIN = "plain"
_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class SweepRun:
    """One run of a sweep: its budget, or `PLAIN` for the network as it is, and its settings."""

    budget: str
    folder: Path
    settings: RunSettings


def list_runs(
    folder: Path,
    settings: RunSettings,
    budgets: Sequence[str],
    seeds: Sequence[int],
    *,
    with_plain: bool,
) -> list[SweepRun]:
    """Return the runs of a sweep, each with a folder of its own.

    Args:
        folder: The folder of the sweep.
        settings: What all runs share.
        budgets: Words such as "multiply_adds=50%".
        seeds: The seeds that each budget is learnt with.
        with_plain: Whether the network is trained as it is, too.

    Raises:
        SettingsError: If there is no budget or no seed.
    """
    if not budgets or not seeds:
        raise SettingsError("a sweep needs budgets and seeds: --budget multiply_adds=75%,50%")
    runs: list[SweepRun] = []
    for budget in [*([PLAIN] if with_plain else []), *budgets]:
        learn = "nothing" if budget == PLAIN else settings.gates.learn
        words = None if budget == PLAIN else (budget,)
        gates = replace(settings.gates, learn=learn, budget=words)
        name = budget.replace("=", "-").replace("%", "")
        for seed in seeds:
            place = folder / f"{name}-seed-{seed}"
            runs.append(SweepRun(budget, place, replace(settings, gates=gates, seed=seed)))
    return runs


def run_sweep(runs: Sequence[SweepRun], n_jobs: int, on_end: Callable[[SweepRun], None]) -> None:
    """Make all runs that are not finished, so many at a time; those that were begun go on.

    Args:
        runs: The runs.
        n_jobs: How many processes work side by side.
        on_end: Called as each run has ended, and at once for those that had.

    Raises:
        RunStoppedError: If a run failed; others that had begun are ended first.
    """
    waiting, working = list(runs), dict[SweepRun, subprocess.Popen[str]]()
    try:
        while waiting or working:
            while waiting and len(working) < n_jobs:
                run = waiting.pop(0)
                if read_summary(run.folder) is None:
                    working[run] = _start(run)
                else:
                    on_end(run)
            for run, process in list(working.items()):
                if process.poll() is not None:
                    _, error = process.communicate()
                    del working[run]
                    if process.returncode:
                        raise RunStoppedError(
                            f"the run {run.folder} failed: {error.strip() or process.returncode}; "
                            "what is finished stays: give the same command again to go on"
                        )
                    on_end(run)
            time.sleep(_SECONDS if working else 0.0)
    finally:
        for process in working.values():
            process.terminate()
            process.communicate()


def _start(run: SweepRun) -> "subprocess.Popen[str]":
    """Start a run, or go on with it, in a process of its own."""
    if (run.folder / CONFIG).is_file():
        words = ["--resume", str(run.folder)]
    else:
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        config = run.folder.with_suffix(".toml")
        config.write_text(format_settings(run.settings), encoding="utf-8")
        words = ["--config", str(config), "--out", str(run.folder)]
    command = [sys.executable, "-m", "archlearn.cli", "learn", *words]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )  # fmt: skip


def read_summary(folder: Path) -> dict[str, Any] | None:
    """Return the summary of a finished run, or None."""
    path = folder / SUMMARY
    return json.loads(path.read_text("utf-8")) if path.is_file() else None


@dataclass(frozen=True, slots=True)
class Point:
    """A budget of a sweep: means over its seeds, by validation data.

    Attributes:
        budget: The budget, or `PLAIN`.
        accuracy: The mean accuracy on validation data.
        parameters: The mean number of parameters.
        multiply_adds: The mean number of multiply-adds of an example.
        best: The run with the best accuracy on validation data.
    """

    budget: str
    accuracy: float
    parameters: float
    multiply_adds: float
    best: SweepRun


def summarise(runs: Sequence[SweepRun]) -> list[Point]:
    """Return one point for each budget of a finished sweep.

    Raises:
        SettingsError: If a run has no accuracy on validation data.
    """
    points: list[Point] = []
    for budget in dict.fromkeys(run.budget for run in runs):
        mine = [run for run in runs if run.budget == budget]
        found = [read_summary(run.folder) or {} for run in mine]
        scores: list[Any] = [summary.get("validation_accuracy") for summary in found]
        if not all(isinstance(score, float) for score in scores):
            raise SettingsError(
                f"{mine[0].folder} has no accuracy on validation data, by which runs are compared; "
                "leave --validation as it is, and learn classes"
            )
        after = [summary["after"] for summary in found]
        points.append(
            Point(
                budget,
                fmean(scores),
                fmean(each["parameters"] for each in after),
                fmean(each["multiply_adds"] for each in after),
                max(zip(scores, mine, strict=True), key=lambda pair: pair[0])[1],
            )
        )
    return points


def choose(points: Sequence[Point], lose: float) -> Point:
    """Return the cheapest point that loses no more than so many points of accuracy.

    Args:
        points: Of a sweep with plain runs.
        lose: In per cent points, against the plain network on validation data.
    """
    plain = next(point for point in points if point.budget == PLAIN)
    near = [point for point in points if 100 * (plain.accuracy - point.accuracy) <= lose]
    return min(near, key=lambda point: point.multiply_adds)
