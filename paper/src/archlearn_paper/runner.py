"""Run an experiment: make the runs that are missing, keep what came of them."""

import datetime
import hashlib
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TextIO

from torch import nn

from archlearn.errors import DataError, RunInterruptedError, SettingsError
from archlearn.serialization import save
from archlearn_cli.data.dataset_registry import load_examples
from archlearn_cli.training.hardware import describe_hardware, describe_versions, start_fabric
from archlearn_cli.training.run_directory import check_writable
from archlearn_cli.training.settings import HardwareSettings
from archlearn_paper import results
from archlearn_paper.evaluation import evaluate_run
from archlearn_paper.experiment import (
    Experiment,
    FinishedRun,
    MissingModelError,
    Row,
    Run,
    RunKey,
    Scale,
    Stage,
)
from archlearn_paper.initial_networks import start_runs
from archlearn_paper.parallel_runs import SIDE_BY_SIDE, train_side_by_side

_SECONDS_BETWEEN_LINES = 10.0


class ProgressLines:
    """Writes a line for each run that has ended, and now and then how far the others are."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._started = self._said = time.monotonic()

    def began(self, n_runs: int, n_known: int) -> None:
        """Say what is to be done."""
        self._started = self._said = time.monotonic()
        skipped = f", {n_known} are there already" if n_known else ""
        if n_runs or n_known:
            self._write(f"{n_runs} runs to make{skipped}")

    def advanced(self, done: int, of: int) -> None:
        """Say how far the runs are, not too often."""
        now = time.monotonic()
        if now - self._said < _SECONDS_BETWEEN_LINES:
            return
        self._said = now
        left = (now - self._started) / done * (of - done)
        self._write(f"  {done / of:4.0%} of the epochs, {left:.0f} s left")

    def finished(self, row: Row) -> None:
        """Say what a run came to."""
        self._said = time.monotonic()
        self._write(
            f"  {row.row}, seed {row.seed}: {row.architecture}, {row.parameters:,} parameters, "
            f"test {row.accuracy:.2f} %"
        )

    def _write(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """What is to be carried out, and where to: results into a folder, models below it.

    Attributes:
        rows: Patterns of the rows that are made now, as "AL*"; others are left for another time.
        until: Time of `time.monotonic` after which no run begins.
    """

    experiment: Experiment
    scale: Scale
    folder: Path
    command: str
    side_by_side: int = SIDE_BY_SIDE
    force: bool = False
    rows: tuple[str, ...] = ("*",)
    until: float = math.inf


def check_earlier(request: RunRequest) -> None:
    """Refuse to replace results of another scale or version, unless that is asked for.

    The full version may take the place of a quick one.
    """
    for unfinished in (False, True):
        before = results.read_results(
            request.folder, request.experiment.name, unfinished=unfinished
        )
        may_go = request.force or (before and before.quick and request.scale.name != "quick")
        if before is None or may_go or _continues(request, before):
            continue
        name = request.experiment.name
        raise SettingsError(
            f"{results.results_path(request.folder, name, unfinished=unfinished)} holds "
            f"results of version {before.version} at {_name_scale(before.scale)}, and version "
            f"{request.experiment.version} at {_name_scale(asdict(request.scale))} was asked for; "
            "choose another folder with --out, or replace them with --force"
        )


def _continues(request: RunRequest, before: results.Results) -> bool:
    """Return whether the rows of earlier results are those that are asked for now."""
    held, asked = (
        {name: value for name, value in scale.items() if name != "seeds"}
        | {"data": re.sub("^(tiny-imagenet):.*", r"\1", scale.get("data", ""))}
        for scale in (before.scale, asdict(request.scale))
    )
    return before.version == request.experiment.version and held == asked


def _name_scale(scale: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {scale.get(name)}" for name in ("name", "data", "epochs", "limit"))


def run_stages(request: RunRequest, callback: ProgressLines) -> results.Results | None:
    """Make all runs that are missing and return the results, which are on the disk by then.

    Every finished run is written down at once, so that an interrupted experiment goes on where
    it was, from the results alone: a model is needed only where a missing run starts from it, and
    made again if it is gone. A row and a seed name a run; those of another scale or version of the
    experiment are made again. None is returned where the time was up before all runs were there,
    or some of them were not to be made.
    """
    check_earlier(request)
    check_writable(results.results_path(request.folder, request.experiment.name))
    try:
        return _StageRunner(request, callback).run()
    except KeyboardInterrupt as error:
        raise RunInterruptedError(
            f"interrupted; every run that had ended is in {request.folder}, and the same command "
            "goes on from there"
        ) from error


class _StageRunner:
    """Keeps what is done while an experiment goes on."""

    def __init__(self, request: RunRequest, callback: ProgressLines) -> None:
        self._request = request
        self._callback = callback
        self._commit = results.find_commit()
        self._done: list[FinishedRun] = []
        self._lost: set[RunKey] = set()
        name = request.experiment.name
        files = [
            results.read_results(request.folder, name, unfinished=early) for early in (False, True)
        ]
        whole, part = (file if file and _continues(request, file) else None for file in files)
        rows = [row for file in (whole, part) if file for row in file.rows]
        self._known = {row.key: self._finish(row) for row in rows}
        reach = [file.out_of_reach for file in (whole, part) if file]
        self._out_of_reach: set[RunKey] = {(row, seed) for keys in reach for row, seed in keys}
        self._unfinished = {row.key: row for row in (part.rows if part else ())}
        settings = HardwareSettings()
        # Asked once: it takes longer than writing results does.
        self._hardware = describe_hardware(start_fabric(settings), settings.precision)

    def run(self) -> results.Results | None:
        """Carry out all stages; None if some runs are left for another time."""
        experiment, whole = self._request.experiment, None
        while whole is None:
            self._done = []
            try:
                whole = all(self._carry_out(stage) for stage in experiment.stages)
            except MissingModelError as error:
                # From the first stage on: what a lost model was made of may be lost, too.
                self._lost.update(error.args)
                for key in error.args:
                    del self._known[key]
        if whole and experiment.extra is not None:
            self._carry_out(experiment.extra)
        if not whole:
            return None
        # What is there of other seeds and rows stays, behind those that were asked for.
        rows = list(({done.row.key: done for done in self._done} | self._known).values())
        derived = experiment.derive([done.row for done in rows])
        complete = replace(self._results([done.row for done in rows]), derived=derived)
        folder = self._request.folder
        results.write_results(folder, complete)
        results.results_path(folder, experiment.name, unfinished=True).unlink(missing_ok=True)
        return complete

    def _carry_out(self, stage: Stage) -> bool:
        """Make the runs of a stage that are missing; return whether all of them are there."""
        asked = {work.key: work for work in stage(self._request.scale, self._done)}
        works = {key: work for key, work in asked.items() if key not in self._out_of_reach}
        missing = {key: work for key, work in works.items() if key not in self._known}
        patterns = self._request.rows
        wanted = [
            work
            for key, work in missing.items()
            if key in self._lost or any(fnmatchcase(work.row, pattern) for pattern in patterns)
        ]
        self._callback.began(len(wanted), len(works) - len(missing))
        if not self._make(wanted) or len(wanted) < len(missing):
            return False
        lost: list[str] = []
        for done in [self._known[key] for key in works if key not in self._out_of_reach]:
            if time.monotonic() > self._request.until:
                return False
            try:
                self._done.append(self._measure(done))
            except MissingModelError as error:
                lost += error.args
        if lost:
            raise MissingModelError(*lost)
        return True

    def _make(self, asked: Sequence[Run]) -> bool:
        """Make runs, and return whether there was time for all of them."""
        needs_mnist = any(work.settings.data == "mnist" for work in asked)
        if needs_mnist and load_examples("mnist").name != "mnist":
            raise DataError(
                "MNIST could not be had, and results on other digits would not be those of the "
                "paper; put its four files into the cache, or say --data digits:28 to run on "
                "scikit-learn's"
            )
        works = start_runs(asked)
        self._out_of_reach |= {work.key for work in asked} - {work.key for work in works}
        for work in works:
            if work.network is not None and not work.is_trained:
                self._record(evaluate_run(work), work, work.network)
        runs = [work for work in works if work.is_trained]
        outcomes = train_side_by_side(
            runs,
            on_epoch=self._callback.advanced,
            side_by_side=self._request.side_by_side,
            until=self._request.until,
        )
        n_ended = 0
        for work, outcome in zip(runs, outcomes, strict=False):
            self._record(outcome.row, work, outcome.model)
            n_ended += 1
        return n_ended == len(runs)

    def _record(self, row: Row, work: Run, model: nn.Module) -> None:
        """Write a finished run down, and its model."""
        experiment = self._request.experiment
        path = self._finish(row).path
        path.parent.mkdir(parents=True, exist_ok=True)
        save(model, path)
        row = replace(
            row,
            commit=self._commit,
            digest=hashlib.sha256(path.read_bytes()).hexdigest(),
            history=row.history if experiment.keeps_history else (),
            measured=work.measured,
        )
        done = self._finish(row)
        self._write_down(done)
        self._callback.finished(row)
        self._measure(done)

    def _finish(self, row: Row) -> FinishedRun:
        request = self._request
        path = results.model_path(request.folder, request.experiment.name, row.row, row.seed)
        return FinishedRun(row=row, path=path)

    def _write_down(self, done: FinishedRun) -> None:
        self._known[done.row.key] = done
        self._unfinished[done.row.key] = done.row
        results.write_results(self._request.folder, self._results(list(self._unfinished.values())))

    def _measure(self, done: FinishedRun) -> FinishedRun:
        measure = self._request.experiment.measure
        numbers = {} if measure is None or done.row.measured else measure(self._request.scale, done)
        if not numbers:
            return done
        measured = replace(done, row=replace(done.row, measured=numbers))
        self._write_down(measured)
        return measured

    def _results(self, rows: Sequence[Row]) -> results.Results:
        request = self._request
        times = {(row.seconds, row.epochs) for row in rows}
        return results.Results(
            experiment=request.experiment.name,
            command=request.command,
            date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            hardware=self._hardware,
            versions=describe_versions(),
            seeds=request.scale.seeds,
            quick=request.scale.name == "quick",
            scale=asdict(request.scale),
            rows=rows,
            seconds=round(sum(seconds for seconds, _ in times), 1),
            out_of_reach=sorted(self._out_of_reach),
            version=request.experiment.version,
        )
