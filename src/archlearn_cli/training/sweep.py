"""Runs over several budgets and seeds, on this machine or on Ray, and the choice among them."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from importlib import import_module
from io import StringIO
from pathlib import Path
from runpy import run_module
from statistics import fmean
from typing import Any

from archlearn.errors import RunInterruptedError, RunStoppedError, SettingsError, check_installed
from archlearn_cli.data.file_cache import CONFIG, SUMMARY
from archlearn_cli.training.run_directory import explaining_no_access
from archlearn_cli.training.settings import RunSettings, format_settings, read_settings

PLAIN = "plain"
_SECONDS = 0.2
_RETRIES = 3  # workers of one run that may die


@dataclass(frozen=True, slots=True)
class SweepRun:
    """One run of a sweep: its budget, or `PLAIN` for the network as it is, and its settings."""

    budget: str
    folder: Path
    settings: RunSettings

    @property
    def config(self) -> Path:
        """The file that holds the settings as they were asked for."""
        return self.folder.with_name(f"{self.folder.name}.toml")


def list_runs(
    folder: Path,
    settings: RunSettings,
    budgets: Sequence[str],
    seeds: Sequence[int],
    *,
    with_plain: bool,
) -> list[SweepRun]:
    """Return the runs of a sweep, each with a folder of its own.

    Budgets are words such as "multiply_adds=50%"; each is learnt once with every seed. With a plain
    run for each seed the network is trained as it is, too.
    """
    if not budgets or not seeds:
        raise SettingsError("a sweep needs budgets and seeds: --budget multiply_adds=75%,50%")
    if (folder / CONFIG).is_file():
        raise SettingsError(f"{folder} is the folder of a run; choose another --out for the sweep")
    if settings.validation == 0:
        raise SettingsError(
            "runs are compared by validation data, but --validation 0 sets none apart; leave it out"
        )
    runs: list[SweepRun] = []
    for budget in [*([PLAIN] if with_plain else []), *dict.fromkeys(budgets)]:
        learn = "nothing" if budget == PLAIN else settings.gates.learn
        words = None if budget == PLAIN else (budget,)
        gates = replace(settings.gates, learn=learn, budget=words)
        name = budget.replace("=", "-").replace("%", "")
        for seed in dict.fromkeys(seeds):
            place = folder / f"{name}-seed-{seed}"
            runs.append(SweepRun(budget, place, replace(settings, gates=gates, seed=seed)))
    return runs


def run_sweep(
    runs: Sequence[SweepRun],
    n_jobs: int,
    on_end: Callable[[SweepRun], None],
    *,
    on_ray: bool = False,
) -> None:
    """Make all runs that are not finished, so many at a time; those that were begun go on.

    If one fails, or SIGINT or SIGTERM comes, the others that had begun are ended first. `on_end` is
    told of each run that has ended, and first of those that had. On Ray the workers of a cluster
    make them, the one of RAY_ADDRESS or, without it, one on this machine.
    """
    waiting: list[SweepRun] = []

    def end(run: SweepRun) -> None:
        _read_accuracy(run)  # refused after the first run, and not after all of them
        on_end(run)

    for run in runs:
        _check_settings(run)
    for run in runs:
        if read_summary(run.folder) is None:
            waiting.append(run)
        else:
            end(run)
    try:
        with _interrupting_on_sigterm():
            (_run_on_ray if on_ray else _run_here)(waiting, n_jobs, end)
    except KeyboardInterrupt as error:
        raise RunInterruptedError(
            "interrupted; give the same command again to go on with the runs that had begun"
        ) from error


@contextmanager
def _interrupting_on_sigterm() -> Generator[None]:
    """Let SIGTERM do what Ctrl-C does, so that no run is left behind without its sweep."""
    if threading.current_thread() is not threading.main_thread():  # which alone has signals
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run_here(waiting: list[SweepRun], n_jobs: int, on_end: Callable[[SweepRun], None]) -> None:
    working = dict[SweepRun, subprocess.Popen[str]]()
    try:
        while waiting or working:
            while waiting and len(working) < n_jobs:
                run = waiting.pop(0)
                working[run] = subprocess.Popen(
                    [sys.executable, "-m", "archlearn_cli", *_command(run)],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            for run, process in list(working.items()):
                if process.poll() is not None:
                    _, error = process.communicate()
                    del working[run]
                    if process.returncode:
                        raise _failed(run, error.strip() or process.returncode)
                    on_end(run)
            time.sleep(_SECONDS if working else 0.0)
    finally:
        for process in working.values():
            process.terminate()
            process.communicate()


def _run_on_ray(waiting: list[SweepRun], n_jobs: int, on_end: Callable[[SweepRun], None]) -> None:
    """Make each run a task with one CPU and, where the cluster has GPUs, its share of them.

    Ray gives the task of a worker that died to another one, which goes on in the run's folder.
    """
    check_installed("--ray", "ray", "ray")
    ray: Any = import_module("ray")
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    n_gpus = min(1.0, ray.cluster_resources().get("GPU", 0) / n_jobs)
    # A worker makes one run (max_calls), so that no run inherits another's threads or memory.
    task = ray.remote(num_cpus=1, num_gpus=n_gpus, max_retries=_RETRIES, max_calls=1)(_work)
    working: dict[Any, SweepRun] = {}
    try:
        while waiting or working:
            while waiting and len(working) < n_jobs:
                run = waiting.pop(0)
                working[task.remote(replace(run, folder=run.folder.resolve()))] = run
            done = ray.wait(list(working))[0][0]
            run = working.pop(done)
            try:
                error = ray.get(done)
            except ray.exceptions.RayError as caught:
                raise _failed(run, caught) from caught
            if error:
                raise _failed(run, error)
            on_end(run)
    finally:
        for each in working:
            ray.cancel(each, force=True)


def _work(run: SweepRun) -> str:
    """Make a run, or go on with it, in this process, with which it dies; return what went wrong."""
    sys.argv = ["archlearn", *_command(run)]
    with redirect_stderr(StringIO()) as said:
        try:
            run_module("archlearn_cli", run_name="__main__")
        except SystemExit as ended:
            return said.getvalue().strip() if ended.code else ""
    return ""


def _failed(run: SweepRun, reason: object) -> RunStoppedError:
    return RunStoppedError(
        f"the run {run.folder} failed: {reason}; "
        "finished runs are kept: correct this, and give the command again to go on"
    )


def _command(run: SweepRun) -> list[str]:
    """Return the words after `archlearn` that make a run, or go on with it."""
    if (run.folder / CONFIG).is_file():
        return ["learn", "--resume", str(run.folder)]
    with explaining_no_access(run.folder.parent):
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        run.config.write_text(format_settings(run.settings), encoding="utf-8")
    return ["learn", "--config", str(run.config), "--out", str(run.folder)]


def _check_settings(run: SweepRun) -> None:
    """Refuse a run that is there already and was asked for otherwise; hardware may be another."""
    if run.config.is_file() and run.folder.is_dir():
        before, now = read_settings(run.config), run.settings
        if replace(before, hardware=now.hardware, record=now.record) != now:
            raise SettingsError(
                f"{run.folder} was learnt with other settings, those of {run.config}; choose "
                "another --out, or give the same settings to go on"
            )


def read_summary(folder: Path) -> dict[str, Any] | None:
    """Return the summary of a finished run, or None."""
    path = folder / SUMMARY
    return json.loads(path.read_text("utf-8")) if path.is_file() else None


def _read_accuracy(run: SweepRun) -> float:
    """Return the accuracy on validation data that a finished run has; a regression has none."""
    score = (read_summary(run.folder) or {}).get("validation_accuracy")
    if not isinstance(score, float):
        raise SettingsError(
            f"{run.folder} has no accuracy on validation data, by which runs are compared; "
            "leave --validation as it is, and learn classes"
        )
    return score


@dataclass(frozen=True, slots=True)
class Point:
    """A budget of a sweep, or `PLAIN`: means over its seeds, and the run with the best accuracy.

    Accuracy is that on validation data; multiply-adds are those of an example.
    """

    budget: str
    accuracy: float
    parameters: float
    multiply_adds: float
    best: SweepRun


def summarise(runs: Sequence[SweepRun]) -> list[Point]:
    """Return one point for each budget of a finished sweep."""
    points: list[Point] = []
    for budget in dict.fromkeys(run.budget for run in runs):
        mine = [run for run in runs if run.budget == budget]
        found = [read_summary(run.folder) or {} for run in mine]
        scores = [_read_accuracy(run) for run in mine]
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


def choose_cheapest(points: Sequence[Point], lose: float) -> Point:
    """Return the cheapest point that is at most so many per cent points below the plain one."""
    plain = next(point for point in points if point.budget == PLAIN)
    near = [point for point in points if 100 * (plain.accuracy - point.accuracy) <= lose]
    return min(near, key=lambda point: point.multiply_adds)
