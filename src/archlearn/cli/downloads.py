"""A bar for each file that is fetched; plain lines where the output is not a terminal."""

import sys
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from archlearn.data.downloads import Progress as Callback


@contextmanager
def show_downloads() -> Generator[Callback]:
    """Yield what a download calls with each piece."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield _Lines()
        return
    bars = _Bars(console)
    try:
        yield bars
    finally:
        bars.stop()


class _Lines:
    """Says once what is being fetched."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, what: str, done: int, total: int | None) -> None:
        del done, total
        if what not in self._said and what != "images":
            self._said.add(what)
            sys.stderr.write(f"fetching {what}\n")


class _Bars:
    """Shows a bar for each file while it is fetched."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("fetching {task.description}"), BarColumn(), DownloadColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if what not in self._tasks:
            self._progress.start()
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._tasks[what], completed=done, total=total)
        if total is not None and done >= total and self._progress.finished:
            self._progress.stop()

    def stop(self) -> None:
        """Take the bars away."""
        self._progress.stop()
