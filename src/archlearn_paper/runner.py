"""Run an experiment: make the runs that are missing, keep what came of them."""

import datetime
import hashlib
import json
import platform
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

import archlearn
from archlearn.data.dataset_registry import load_examples
from archlearn.errors import DataError, RunInterruptedError, SettingsError
from archlearn.gating.attach import add_gates
from archlearn.gating.learn import Learn
from archlearn.gating.parameters import width_gates
from archlearn.serialization import save
from archlearn.training.config import to_table
from archlearn.training.hardware import describe_hardware, start_fabric
from archlearn.training.settings import HardwareSettings
from archlearn_paper.baselines.budget import Sizes
from archlearn_paper.baselines.interface import TOLERANCE
from archlearn_paper.comparison.protocol import Contest
from archlearn_paper.evaluation import evaluate_work, find_dataset
from archlearn_paper.experiment import Done, Evaluation, Experiment, Row, Scale, Work, read_row
from archlearn_paper.outcomes import Outcome
from archlearn_paper.parallel_runs import SIDE_BY_SIDE, Run, train_team
from archlearn_paper.results import Results, model_path, read_results, write_results

_LENGTH = 16


# Settings that came after the first results: as these they change nothing, and do not count.
_ADDED_LATER = {"normalise": "data"}


def describe_work(work: Work) -> str:
    """Return a text that is the same for the same row, settings and network, and no others.

    What is done after an epoch counts by its `repr`. Where and how fast the arithmetic is done
    does not count.
    """
    settings = to_table(work.settings)
    settings.pop("hardware", None)
    settings.pop("record", None)
    for name, value in _ADDED_LATER.items():
        if settings.get(name) == value:
            del settings[name]
    asked: list[Any] = [work.row, settings]
    if isinstance(work, Run):
        asked += [repr(work.after_epoch), work.finish_compact]
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode())
    if work.network is not None:
        _add_network(digest, work.network)
    kind = "measured" if isinstance(work, Evaluation) else "trained"
    return f"{kind}-{digest.hexdigest()[:_LENGTH]}"


def _add_network(digest: "hashlib._Hash", network: nn.Module) -> None:
    for name, tensor in network.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())


MNIST = "mnist"


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be written, before the first run and not after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SettingsError(
            f"results cannot be written into {folder} ({error.strerror}); choose another folder "
            "with --out"
        ) from error


def check_time(experiment: Experiment, within: float | None) -> None:
    """Refuse to stop early where nothing can be made of a part of the runs."""
    if within is not None and not experiment.shows_part:
        raise SettingsError(
            f"{experiment.name} was asked for within {within:g} s, but it needs all "
            "its runs; leave the time out: stopped, it goes on where it was"
        )


def check_data(scale: Scale) -> None:
    """Refuse to call results MNIST's that are those of the digits that stand in for it."""
    if scale.data == MNIST and load_examples(MNIST).name != MNIST:
        raise DataError(
            "MNIST could not be had, and results on other digits would not be those of the paper; "
            "put its four files into the cache or a folder and say --data idx:DIR, or say "
            "--data digits:28 to run on scikit-learn's"
        )


def check_contest(contest: Contest) -> None:
    """Refuse data without classes and budgets out of reach, before anything is trained.

    Raises:
        SettingsError: If a budget is below the network with a channel a layer, or not below the
            whole network.
        DataError: If the data have no classes.
    """
    if find_dataset(contest.plain(0, 1)).task == "regression":
        raise DataError(
            f"{contest.scale.data!r} is a regression, but results state an accuracy; choose data "
            "with classes (archlearn data lists them)"
        )
    network, example = contest.fresh_network(0), contest.example()
    gated = add_gates(network, example, learn={"*": Learn.WIDTH}, width_start=1.0)
    least = Sizes(gated).parameters([1] * len(width_gates(gated)))
    most = sum(parameter.numel() for parameter in network.parameters())
    for budget in contest.budgets:
        if least > (1 + TOLERANCE) * budget or budget >= most:
            raise SettingsError(
                f"--budget {budget:,}: {contest.model} has {most:,} parameters, and {least:,} with "
                "one channel in each layer; choose budgets in between"
            )


class ProgressCallback(Protocol):
    """Hears how an experiment gets on."""

    def began(self, n_runs: int, n_known: int) -> None:
        """Take note of a stage: so many runs are to be made, so many are there already."""
        ...

    def advanced(self, done: int, of: int) -> None:
        """Take note of epochs done by the runs of the stage together."""
        ...

    def finished(self, row: Row) -> None:
        """Take note of a run that has ended."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """What is to be carried out, and where to.

    Attributes:
        folder: Results go here, models below it.
        command: As it was typed, for the record.
        side_by_side: How many runs share a GPU at a time.
        within: Seconds after which no further run is begun; None makes all.
    """

    experiment: Experiment
    scale: Scale
    folder: Path
    command: str
    side_by_side: int = SIDE_BY_SIDE
    within: float | None = None


def conduct(order: RunRequest, watcher: ProgressCallback) -> Results:
    """Make all runs that are missing and return the results, which are on the disk by then.

    Every finished run is written down at once, so that an interrupted experiment goes on where
    it was. A run whose settings have changed since is made again.

    Raises:
        DataError: If MNIST was asked for and cannot be had: nothing stands in for it here.
        SettingsError: If nothing can be written into the folder, or the time is limited but the
            experiment makes nothing of a part of its runs.
        RunInterruptedError: If Ctrl-C was pressed; what had ended by then is kept.
    """
    check_data(order.scale)
    check_time(order.experiment, order.within)
    check_folder(order.folder)
    try:
        return _Conductor(order, watcher).conduct()
    except KeyboardInterrupt as error:
        raise RunInterruptedError(
            f"interrupted; every run that had ended is in {order.folder}, and the same command "
            "goes on from there"
        ) from error


class _Conductor:
    """Keeps what is done while an experiment goes on."""

    def __init__(self, order: RunRequest, watcher: ProgressCallback) -> None:
        self._order = order
        self._watcher = watcher
        self._known = _read_known(order)
        self._before = read_results(order.folder, order.experiment.name)
        self._done: list[Done] = []
        self._fresh: list[Row] = []
        self._has_any = False
        self._began = time.monotonic()
        self._hardware = _describe_hardware()

    def conduct(self) -> Results:
        """Carry out all stages."""
        experiment, scale = self._order.experiment, self._order.scale
        for number, stage in enumerate(experiment.stages, start=1):
            works = stage(scale, self._done)
            asked = [describe_work(work) for work in works]
            self._has_any = self._has_any or any(key in self._known for key in asked)
            last = number == len(experiment.stages)
            known = [self._knows(key, last=last) for key in asked]
            missing = [work for work, there in zip(works, known, strict=True) if not there]
            self._watcher.began(len(missing), len(works) - len(missing))
            self._carry_out(missing)
            # Where the time is over, some of them were not made.
            self._done += [self._measure(self._known[key]) for key in asked if key in self._known]
        derived = experiment.derive([done.row for done in self._done])
        results = replace(self._results([done.row for done in self._done]), derived=derived)
        write_results(self._order.folder, results)
        return results

    def _knows(self, key: str, *, last: bool) -> bool:
        """Return whether a run was made and its model is there, if it can still be needed."""
        if key not in self._known:
            return False
        done = self._known[key]
        measured = self._order.experiment.measure is None or bool(done.row.measured)
        return (last and measured) or done.path.is_file()

    def _carry_out(self, works: Sequence[Work]) -> None:
        for work in works:
            if isinstance(work, Evaluation) and self._goes_on():
                self._keep(evaluate_work(work), work, work.network)
        runs = [work for work in works if isinstance(work, Run)]
        recorder = _Recorder(self, runs)
        train_team(
            runs,
            observer=recorder,
            side_by_side=self._order.side_by_side,
            go_on=self._goes_on,
        )

    def _goes_on(self) -> bool:
        """Return whether there is time for another run; without any there is nothing to show.

        Runs in the file that were asked for differently do not count.
        """
        within = self._order.within
        return within is None or not self._has_any or time.monotonic() - self._began < within

    def keep_outcome(self, outcome: Outcome, run: Run) -> None:
        """Write a finished run down."""
        table = outcome.to_json(history=self._order.experiment.keeps_history)
        self._keep(table, run, outcome.model)

    def advanced(self, done: int, of: int) -> None:
        """Pass on how far the runs are."""
        self._watcher.advanced(done, of)

    def _keep(self, table: dict[str, Any], work: Work, model: torch.nn.Module) -> None:
        if table.get("test_accuracy") is None:
            raise DataError(
                f"{self._order.scale.data!r} is a regression, but results state an accuracy; "
                "choose data with classes (archlearn data lists them)"
            )
        key = describe_work(work)
        row = read_row({**table, "asked": key})
        name = self._order.experiment.name
        path = model_path(self._order.folder, name, row.row, row.seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        save(model, path)
        self._known[key] = Done(row=row, path=path)
        self._fresh.append(row)
        self._has_any = True
        self._write_so_far()
        self._watcher.finished(row)

    def _measure(self, done: Done) -> Done:
        measure = self._order.experiment.measure
        if measure is None or done.row.measured:
            return done
        measured = Done(
            row=replace(done.row, measured=measure(self._order.scale, done)), path=done.path
        )
        self._known[done.row.asked] = measured
        return measured

    def _write_so_far(self) -> None:
        """Write what is there, with what the file held before, as unfinished."""
        before = self._before.rows if self._before else ()
        rows = {row.asked: row for row in (*before, *(d.row for d in self._done), *self._fresh)}
        write_results(self._order.folder, self._results(list(rows.values())))

    def _results(self, rows: Sequence[Row]) -> Results:
        order = self._order
        times = {(row.seconds, row.epochs) for row in rows}
        return Results(
            experiment=order.experiment.name,
            command=order.command,
            date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            hardware=self._hardware,
            versions={
                "archlearn": archlearn.__version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            seeds=order.scale.seeds,
            quick=order.scale.name == "quick",
            scale=asdict(order.scale),
            rows=rows,
            seconds=sum(seconds for seconds, _ in times),
        )


class _Recorder:
    """Writes the runs of a team down as they end, which they do in order."""

    def __init__(self, conductor: _Conductor, runs: Sequence[Run]) -> None:
        self._conductor = conductor
        self._waiting = list(runs)

    def advanced(self, done: int, of: int) -> None:
        """Pass on how far the team is."""
        self._conductor.advanced(done, of)

    def finished(self, outcome: Outcome) -> None:
        """Write a run down."""
        self._conductor.keep_outcome(outcome, self._waiting.pop(0))


def _read_known(order: RunRequest) -> dict[str, Done]:
    """Return the finished runs of this experiment and of those it borrows from."""
    known: dict[str, Done] = {}
    for name in (*order.experiment.borrows, order.experiment.name):
        results = read_results(order.folder, name)
        for row in results.rows if results else ():
            path = model_path(order.folder, name, row.row, row.seed)
            if row.asked in known and not path.is_file():
                path = known[row.asked].path
            known[row.asked] = Done(row=row, path=path)
    return known


def _describe_hardware() -> dict[str, object]:
    """Return what runs are computed on. Asked once: it takes longer than writing results does."""
    settings = HardwareSettings()
    return describe_hardware(start_fabric(settings), settings.precision)
