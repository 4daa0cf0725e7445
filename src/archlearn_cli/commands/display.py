"""The live picture of a run and of downloads on a terminal."""

import math
import os
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
)
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from archlearn.costs import COSTS, LATENCY, write_costs
from archlearn_cli.data.file_cache import DownloadProgress
from archlearn_cli.reporting.formatting import format_short_count
from archlearn_cli.training.callbacks import Callback, EpochEnd, RunStart
from archlearn_cli.training.settings import RunSettings


@contextmanager
def show_downloads() -> Generator[DownloadProgress]:
    """Yield what a download calls with each piece: it shows bars, or says once what is fetched."""
    console = Console(file=sys.stderr)
    bars = Progress(console=console, transient=True)
    tasks: dict[str, TaskID] = {}

    def show(what: str, done: int, total: int | None) -> None:
        if what not in tasks:
            tasks[what] = bars.add_task(what, total=total)
            is_count = what == "images"
            verb = "decoding" if is_count else "fetching"
            amount = MofNCompleteColumn() if is_count else DownloadColumn()
            bars.columns = (TextColumn(f"{verb} {{task.description}}"), BarColumn(), amount)
            if console.is_terminal:
                bars.start()
            elif not is_count:
                sys.stderr.write(f"fetching {what}\n")
        bars.update(tasks[what], completed=done, total=total)
        if bars.finished:
            bars.live.stop()

    try:
        yield show
    finally:
        bars.live.stop()


_LONGEST_LINE = 160  # of an architecture; of more layers their number is said
_LONGEST_ROW = 10_000
_MOST_NAMES = 4


@contextmanager
def make_display() -> Generator[Callback]:
    """Yield the display that fits the output; only the first of several processes shows one."""
    if os.environ.get("RANK", "0") != "0":
        yield Callback()
        return
    console = Console()
    if not console.is_terminal:
        yield PlainDisplay()
        return
    display = LiveDisplay(console)
    try:
        yield display
    finally:
        display.close()


class PlainDisplay(Callback):
    """One line at the start, one an epoch, and what came out of it."""

    def started(self, start: RunStart) -> None:
        """Say what is learnt from what."""
        _write(describe_run_start(start))

    def epoch_ended(self, end: EpochEnd) -> None:
        """Say how far the run is."""
        row = end.row
        parts = [
            f"epoch {row['epoch']:3d}",
            f"loss {_number(row['train_loss'])}",
            describe_score(row),
            _sizes(row),
            f"left {duration(end.seconds_left)}",
        ]
        _write("  ".join(parts))

    def finished(self, summary: Mapping[str, Any]) -> None:
        """Say what came out of it."""
        _write(describe_end(summary))


class LiveDisplay(Callback):
    """A table that changes in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False)
        self._start: RunStart | None = None
        self._end: EpochEnd | None = None
        self._step = 0
        self._shown = 0.0

    def started(self, start: RunStart) -> None:
        """Say what is learnt from what, and begin to show it."""
        self._console.print(Text(describe_run_start(start)))
        self._start, self._step = start, start.first_step
        self._live.start()

    def stepped(self, step: int) -> None:
        """Move the bar, a few times a second."""
        self._step = step
        if time.monotonic() - self._shown > 0.2:
            self._show()

    def epoch_ended(self, end: EpochEnd) -> None:
        """Show the new numbers."""
        self._end, self._step = end, end.row["step"]
        self._show()

    def finished(self, summary: Mapping[str, Any]) -> None:
        """Leave the last picture on the screen, and say what came out of it."""
        self.close()
        self._console.print(Text(describe_end(summary)))

    def close(self) -> None:
        """Leave the last picture on the screen."""
        self._live.stop()

    def _show(self) -> None:
        self._shown = time.monotonic()
        if self._start is None:
            return
        parts: list[Any] = [ProgressBar(total=self._start.n_steps, completed=self._step, width=60)]
        if self._end is not None:
            row, n_epochs = self._end.row, self._start.settings.epochs
            headline = (
                # Rich's bar does not end its line.
                f"\nepoch {row['epoch']}/{n_epochs}   loss {_number(row['train_loss'])}   "
                f"{describe_score(row)}   left {duration(self._end.seconds_left)}\n"
                f"{_sizes(row)}"
            )
            parts += [Text(headline), _widths(row, self._start.widths)]
        self._live.update(Group(*parts), refresh=True)


def _sizes(row: Mapping[str, Any]) -> str:
    """Return what the network costs; under a budget what it may cost now, too."""
    path = row.get("budget_path")
    if path:
        units = {name: "ms" if name == LATENCY else name.replace("_", "-") for name in path}
        return ", ".join(
            f"{format_short_count(row[name])}/{format_short_count(limit)} {units[name]}"
            for name, limit in path.items()
        )
    gates = f", gates {row['binarisation_gap']:.3f} from 0 or 1" if row["widths"] else ""
    return f"{row['parameters']:,} parameters{gates}"


def _widths(row: Mapping[str, Any], first: Mapping[str, int]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("layer", "kept", "", ""):
        table.add_column(title, justify="right" if title == "kept" else "left")
    for name, width in row["widths"].items():
        before = max(1, first.get(name, width))
        linear = "linear" if row["linear"].get(name) else ""
        table.add_row(
            name, f"{width}/{before}", ProgressBar(total=before, completed=width, width=30), linear
        )
    return table


def describe_run_start(start: RunStart) -> str:
    """Return what a run starts from, in a line or two."""
    settings = start.settings
    before = f"{in_a_line(start.architecture)}, " if start.architecture else ""
    lines = [
        f"{start.network} on {settings.data} ({start.data_source}): {before}"
        f"{start.parameters:,} parameters",
        f"{settings.epochs} {'epoch' if settings.epochs == 1 else 'epochs'}, "
        f"batches of {settings.batch_size}, {_aim(settings)}, seed {settings.seed}",
    ]
    if settings.validation == 0:
        lines.append("no validation part: measured once, on the test part, at the end")
    if start.first_step:
        lines.append(
            f"resumed at step {start.first_step:,} of {start.n_steps:,}, after epoch "
            f"{start.first_epoch} of {settings.epochs}"
        )
    return "\n".join(lines)


def _aim(settings: RunSettings) -> str:
    """Return what decides how small the network gets."""
    gates, cost = settings.gates, settings.strengths.width_cost
    if gates.learn == "nothing":
        return "without gates"
    if gates.budget:
        return f"budget {', '.join(gates.budget)}"
    if gates.gate_optimizer == "budget":
        half = "no budget, so half of the multiply-adds that can go"
        return half if cost is None else f"width cost {cost:.3g}"
    return f"width cost {cost:.3g}, gate rate {gates.gate_rate:.3g}"


def in_a_line(architecture: str) -> str:
    """Return an architecture in one line; of one with many layers, how many there are."""
    lines = architecture.splitlines()
    line = ", ".join(" ".join(words.split()) for words in lines)
    return line if len(line) <= _LONGEST_LINE else f"{len(lines)} layers"


def describe_end(summary: Mapping[str, Any]) -> str:
    """Return what came out of a run: before and after."""
    before, after = summary["before"], summary["after"]
    share = after["parameters"] / before["parameters"]
    score = (
        f"{summary['test_accuracy']:.2%} right, loss {summary['test_loss']:.4f},"
        if summary["test_accuracy"] is not None
        else f"mean squared error {summary['test_error']:.4g}"
    )
    return "\n".join(
        [
            f"before  {_describe_widths(before)}  "
            f"{write_costs({name: before[name] for name in COSTS})}",
            f"after   {_describe_widths(after)}{_describe_merged(summary)}  "
            f"{write_costs({name: after[name] for name in COSTS}, share)}",
            f"test     {score} on {summary['n_test']:,} examples, after "
            f"{duration(summary['seconds'])}",
        ]
    )


def _describe_widths(costs: Mapping[str, Any]) -> str:
    """Return an architecture behind a space, or nothing where no gates were."""
    line = in_a_line(costs.get("architecture", ""))
    return line and f" {line}"


def _describe_merged(summary: Mapping[str, Any]) -> str:
    """Return which layers are gone and how many are left: widths alone do not tell."""
    names = summary["merged"]
    if not names:
        return ""
    which = ", ".join(names) if len(names) <= _MOST_NAMES else f"{len(names)} layers"
    n_left = len(summary["after"]["widths"])
    return f" ({which} merged; {n_left} {'layer' if n_left == 1 else 'layers'} left)"


def describe_score(row: Mapping[str, Any]) -> str:
    """Return the score on the validation part."""
    accuracy = row.get("validation_accuracy")
    if row["validation_loss"] is None:
        return "not validated"
    if accuracy is not None:
        return f"validation {accuracy:.2%}"
    return f"validation error {row['validation_error']:.4g}"


def _number(value: float | None) -> str:
    """Return a number with four digits, or a dash."""
    return "     –" if value is None else f"{value:.4f}"


def duration(seconds: float) -> str:
    """Return a time as minutes and seconds, or a dash."""
    if not math.isfinite(seconds):
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_wide(content: Table | Text) -> None:
    """Print lines that a terminal breaks between words, and a file or pipe not at all."""
    Console(width=None if sys.stdout.isatty() else _LONGEST_ROW).print(content)
