"""`archlearn report`."""

import sys
from pathlib import Path

EXAMPLES = """Examples:
  archlearn report runs/a
  archlearn report runs/a runs/b runs/c --out compare.html
"""


def report(*runs: Path, out: Path | None = None) -> None:
    """Write one self-contained page about one run, or several side by side.

    Args:
        runs: Folders of runs.
        out: The page. For one run it is report.html in the run's folder unless said otherwise;
            for several, report.html here.
    """
    from archlearn.errors import SettingsError
    from archlearn.training.run_directory import CONFIG, REPORT

    if not runs:
        raise SettingsError("say which runs: archlearn report runs/a runs/b")
    for run in runs:
        if not (run / CONFIG).is_file():
            raise SettingsError(f"{run} holds no run (there is no {CONFIG} in it)")
    from archlearn.cli.output_paths import writing
    from archlearn.reporting import write_report

    target = out or (runs[0] / REPORT if len(runs) == 1 else Path(REPORT))
    with writing(target):
        write_report(list(runs), target)
    sys.stdout.write(f"{target}\n")
