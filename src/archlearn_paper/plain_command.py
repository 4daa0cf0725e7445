"""Run an experiment without cyclopts, rich and matplotlib."""

import sys
from collections.abc import Callable

from archlearn.errors import ArchlearnError
from archlearn_paper.progress_lines import LineWatcher
from archlearn_paper.runner import RunRequest, conduct
from archlearn_paper.tables import describe_results, write_page


def carry_out(make_order: Callable[[], RunRequest]) -> int:
    """Conduct what is ordered, show and write what it came to; return the exit code."""
    try:
        order = make_order()
        results = conduct(order, LineWatcher(sys.stdout))
    except ArchlearnError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(describe_results(order.experiment, results) + "\n")
    sys.stdout.write(f"{write_page(order.experiment, results, order.folder)}\n")
    return 0
