"""`archlearn paper`: run, show and draw an experiment."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from archlearn.errors import SettingsError
from archlearn_paper.documentation import write_documentation
from archlearn_paper.earlier_results import check_earlier_results
from archlearn_paper.experiment import Row, Scale
from archlearn_paper.price_trials import NAME, TRIALS, read_trials
from archlearn_paper.progress_lines import LineWatcher, describe_row
from archlearn_paper.registry import find_experiment
from archlearn_paper.results import Results, read_results, write_results
from archlearn_paper.runner import ProgressCallback, RunRequest, conduct
from archlearn_paper.tables import describe_results, write_page


def run_experiment(
    name: str, scale: Scale, folder: Path, *, command: str, side_by_side: int
) -> None:
    """Make the missing runs of an experiment, then write and show what came of them."""
    check_earlier_results(folder, name, scale)
    order = RunRequest(
        experiment=find_experiment(name),
        scale=scale,
        folder=folder,
        command=command,
        side_by_side=side_by_side,
    )
    with make_watcher() as watcher:
        results = conduct(order, watcher)
    _conclude(name, results, folder)


def draw_results(name: str, folder: Path) -> None:
    """Write numbers, tables and figure of an experiment anew from its runs."""
    results = read_results(folder, name)
    if results is None or not results.complete:
        raise SettingsError(
            f"there are no finished results of {name} in {folder}; run: archlearn paper {name}"
        )
    derived = find_experiment(name).derive(results.rows)
    results = replace(results, derived=derived)
    write_results(folder, results)
    _conclude(name, results, folder)


def write_docs(folder: Path, docs: Path) -> Path:
    """Write the documentation's page of results, with the figure of the prices tried."""
    from archlearn_paper.plots.figures import draw_prices, save_figure

    if not docs.is_dir():
        raise SettingsError(
            f"there is no folder {docs} here to write the page into; go to the root of the "
            "repository"
        )
    trials = folder / TRIALS
    if trials.is_file():
        save_figure(draw_prices(read_trials(trials)), NAME, folder)
    return write_documentation(folder, docs)


def _conclude(name: str, results: Results, folder: Path) -> None:
    from archlearn_paper.plots.figures import write_figure

    experiment = find_experiment(name)
    drawn = write_figure(name, results.derived, folder)
    page = write_page(experiment, results, folder)
    sys.stdout.write(f"{describe_results(experiment, results)}\n\n")
    for path in (folder / f"{name}.json", page, *drawn):
        sys.stdout.write(f"{path}\n")


@contextmanager
def make_watcher() -> Generator[ProgressCallback]:
    """Yield what fits the output: a bar on a terminal, plain lines anywhere else."""
    console = Console()
    if not console.is_terminal:
        yield LineWatcher(sys.stdout)
        return
    watcher = _BarWatcher(console)
    try:
        yield watcher
    finally:
        watcher.close()


class _BarWatcher:
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
