"""`write_report`: one HTML file without scripts, network or other files."""

import os
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from archlearn.errors import InputError
from archlearn.reporting.colours import write_variables
from archlearn.reporting.comparison import write_comparison
from archlearn.reporting.markup import Html, fill, join
from archlearn.reporting.progress import write_gates, write_progress
from archlearn.reporting.run_reader import Run, read_run
from archlearn.reporting.sections import (
    write_architecture,
    write_certificate,
    write_configuration,
    write_header,
    write_loading,
    write_provenance,
    write_title,
)

_PAGE = """<!DOCTYPE html>
<html lang="en-GB">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="archlearn">
<meta http-equiv="Content-Security-Policy" content="$policy">
<title>$title</title>
<style>
:root { $light }
@media screen and (prefers-color-scheme: dark) { :root { $dark } }
$style
</style>
</head>
<body>
<main>
$body
</main>
</body>
</html>
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write_report(run_folders: Sequence[Path], out: Path) -> Path:
    """Write the page of one run, or of several side by side, and return where it is.

    An unfinished run gets a page with what there is. The file appears whole or not at all.

    Args:
        run_folders: Folders that `archlearn learn --out` has written.
        out: The HTML file to write; folders on the way are made.

    Raises:
        InputError: If there are no folders, one is not a run's, or `out` is a folder.
    """
    if not run_folders:
        raise InputError("cannot write a report of no runs; give at least one run's folder")
    if out.is_dir():
        raise InputError(
            f"cannot write the report to {str(out)!r}: that is a folder; "
            f"give a file, such as {str(out / 'report.html')!r}"
        )
    runs = [read_run(Path(folder)) for folder in run_folders]
    page = write_page(runs[0]) if len(runs) == 1 else write_comparison_page(runs)
    _replace(out, page.text)
    return out


def write_page(run: Run) -> Html:
    """Return the page of one run."""
    sections = (
        write_header(run),
        write_architecture(run),
        write_progress(run),
        write_gates(run),
        write_certificate(run),
        write_loading(run),
        write_configuration(run),
        write_provenance(run),
    )
    return _page(f"{run.name}: {write_title(run)}", join(sections))


def write_comparison_page(runs: Sequence[Run]) -> Html:
    """Return the page of several runs side by side."""
    return _page(f"{len(runs)} runs side by side", write_comparison(runs))


def _page(title: str, body: Html) -> Html:
    style = resources.files("archlearn.reporting").joinpath("style.css").read_text("utf-8")
    return fill(
        _PAGE,
        policy=_POLICY,
        title=title,
        light=Html(write_variables(dark=False)),
        dark=Html(write_variables(dark=True)),
        style=Html(style),
        body=body,
    )


def _replace(out: Path, text: str) -> None:
    """Write beside the file first, so that a reader never sees half a page."""
    out.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.", suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        part.chmod(0o644)
        part.replace(out)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
