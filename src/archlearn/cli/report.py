"""`archlearn report`."""

import sys
from pathlib import Path
from typing import Literal

EXAMPLES = """Examples:
  archlearn report runs/a
  archlearn report runs/a runs/b runs/c --out compare.html
  archlearn report runs/a --to latex
"""


def report(
    *runs: Path, to: Literal["html", "latex", "markdown"] = "html", out: Path | None = None
) -> None:
    """Write one self-contained page about one run, or several side by side.

    Args:
        runs: Folders of runs.
        to: A page, or a table of costs and accuracy to paste into a paper.
        out: The file. A page of one run is report.html in the run's folder unless said otherwise,
            one of several report.html here; a table is printed.
    """
    from archlearn.errors import SettingsError
    from archlearn.training.run_directory import CONFIG, REPORT

    if not runs:
        raise SettingsError("say which runs: archlearn report runs/a runs/b")
    for run in runs:
        if not (run / CONFIG).is_file():
            raise SettingsError(f"{run} holds no run (there is no {CONFIG} in it)")
    from archlearn.reporting import write_report
    from archlearn.reporting.paper_table import read_paper_table, write_paper_table
    from archlearn.reporting.run_reader import read_run
    from archlearn.training.run_directory import writing

    if to == "html":
        target = out or (runs[0] / REPORT if len(runs) == 1 else Path(REPORT))
        with writing(target):
            write_report(list(runs), target)
        sys.stdout.write(f"{target}\n")
        return
    text = write_paper_table(read_paper_table([read_run(run) for run in runs]), to)
    if out is None:
        sys.stdout.write(text)
        return
    with writing(out):
        out.write_text(text, encoding="utf-8")
