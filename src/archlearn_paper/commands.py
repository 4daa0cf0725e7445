"""`archlearn paper` and `archlearn compare`: run experiments, show and draw what came of them."""

import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from archlearn.errors import SettingsError
from archlearn_paper.comparison.methods import SCRATCH, Method
from archlearn_paper.comparison.protocol import ComparisonSetup, check_setup
from archlearn_paper.comparison.ranking import UNTUNED, read_result
from archlearn_paper.comparison.stages import find_comparisons, make_experiment, name_comparison
from archlearn_paper.documentation import NAME, TRIALS, read_trials, write_documentation
from archlearn_paper.experiment import FULL, QUICK, Experiment, Row, Scale, parse_seeds
from archlearn_paper.results import Results, write_results
from archlearn_paper.runner import ProgressCallback, RunRequest, run_stages
from archlearn_paper.tables import describe_results, write_page

RESULTS, QUICK_RESULTS = Path("results"), Path("runs") / "quick"
_SECONDS_BETWEEN_LINES = 10.0


def choose_scale(experiment: Experiment, *, quick: bool, seeds: str | None, data: str) -> Scale:
    """Return the scale that was asked for; an experiment says how many seeds it has.

    Raises:
        SettingsError: If the seeds are no numbers.
    """
    full = replace(FULL, seeds=tuple(range(experiment.n_seeds)))
    scale = replace(QUICK if quick else full, data=data)
    return scale if seeds is None else replace(scale, seeds=parse_seeds(seeds))


def choose_folder(out: Path | None, *, quick: bool) -> Path:
    """Return where results go: a quick version never into the place of the full one."""
    return out or (QUICK_RESULTS if quick else RESULTS)


def run_experiment(request: RunRequest) -> None:
    """Make the missing runs of an experiment, then write and show what came of them."""
    with make_progress() as callback:
        results = run_stages(request, callback)
    _show(request.experiment, results, request.folder)


def draw_anew(experiment: Experiment, results: Results | None, folder: Path) -> None:
    """Write numbers, tables and figure of an experiment anew from its runs.

    Raises:
        SettingsError: If there are no finished results.
    """
    if results is None or not results.complete:
        raise SettingsError(
            f"there are no finished results of {experiment.name} in {folder}; run: archlearn paper "
            f"{experiment.name}"
        )
    results = replace(results, derived=experiment.derive(results.rows))
    write_results(folder, results)
    _show(experiment, results, folder)


def request_comparison(
    setup: ComparisonSetup, methods: Sequence[Method], folder: Path, command: str
) -> RunRequest:
    """Return what a comparison of some methods asks for.

    Raises:
        SettingsError: If a budget is out of reach.
        DataError: If the data have no classes.
    """
    check_setup(setup)
    names = {each.name for each in methods} | {UNTUNED, SCRATCH}

    def includes(row: str) -> bool:
        result = read_result(row)
        return result is None or (result[0] in names and result[1] in setup.budgets)

    return RunRequest(
        experiment=make_experiment(setup.model, setup.scale.data, setup.budgets, methods),
        scale=setup.scale,
        folder=folder,
        command=command,
        includes=includes,
    )


def draw_comparison_anew(setup: ComparisonSetup, folder: Path) -> None:
    """Write a comparison anew, at the methods and budgets that its runs were for."""
    name = name_comparison(setup.model, setup.scale.data)
    found = {e.name: (e, results) for e, results in find_comparisons(folder)}
    if name not in found:
        raise SettingsError(
            f"there are no finished results of {name} in {folder}; run the command without --draw"
        )
    draw_anew(*found[name], folder)


def _show(experiment: Experiment, results: Results, folder: Path) -> None:
    from archlearn_paper.plots.paper_figures import write_figure

    drawn = write_figure(experiment.name, results.derived, folder)
    page = write_page(experiment, results, folder)
    sys.stdout.write(f"{describe_results(experiment, results)}\n\n")
    for path in (folder / f"{experiment.name}.json", page, *drawn):
        sys.stdout.write(f"{path}\n")


def write_docs(folder: Path, docs: Path) -> Path:
    """Write the documentation's page of results, with the figure of the prices tried."""
    from archlearn_paper.plots.paper_figures import draw_prices, save_figure

    if not docs.is_dir():
        raise SettingsError(
            f"there is no folder {docs} here to write the page into; go to the root of the "
            "repository"
        )
    trials = folder / TRIALS
    if trials.is_file():
        save_figure(draw_prices(read_trials(trials)), NAME, folder)
    return write_documentation(folder, docs)


@contextmanager
def make_progress() -> Generator[ProgressCallback]:
    """Yield what fits the output: a bar on a terminal, plain lines anywhere else."""
    console = Console()
    if not console.is_terminal:
        yield ProgressLines(sys.stdout)
        return
    callback = _ProgressBar(console)
    try:
        yield callback
    finally:
        callback.close()


class _ProgressBar:
    """Shows a bar for the epochs of a stage, and a line above it for each run that has ended."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:.0f} %"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=console, transient=True)
        self._task: TaskID | None = None

    def began(self, n_runs: int, n_known: int) -> None:
        """Begin a bar."""
        self.close()
        if n_known:
            self._progress.console.print(f"{n_known} runs are there already", highlight=False)
        if n_runs:
            self._progress.start()
            self._task = self._progress.add_task(f"{n_runs} runs", total=None)

    def advanced(self, done: int, of: int) -> None:
        """Move the bar."""
        if self._task is not None:
            self._progress.update(self._task, completed=done, total=of)

    def finished(self, row: Row) -> None:
        """Say what a run came to."""
        self._progress.console.print(describe_row(row).strip(), highlight=False, markup=False)

    def close(self) -> None:
        """Take the bar away."""
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None
        self._progress.stop()


class ProgressLines:
    """Writes a line for each run that has ended, and now and then how far the others are."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._started = self._said = time.monotonic()

    def began(self, n_runs: int, n_known: int) -> None:
        """Say what is to be done."""
        self._started = self._said = time.monotonic()
        known = f", {n_known} are there already" if n_known else ""
        if n_runs or n_known:
            self._write(f"{n_runs} runs to make{known}")

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
        self._write(describe_row(row))

    def _write(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


def describe_row(row: Row) -> str:
    """Return one line about a finished run."""
    return (
        f"  {row.row}, seed {row.seed}: {row.architecture}, {row.parameters:,} parameters, "
        f"test {row.accuracy:.2f} %"
    )
