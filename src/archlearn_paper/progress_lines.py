"""Show an experiment's progress as plain lines."""

import time
from typing import TextIO

from archlearn_paper.experiment import Row

_SECONDS_BETWEEN_LINES = 10.0


class LineWatcher:
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
