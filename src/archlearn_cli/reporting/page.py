"""`write_report`: one HTML file without scripts, network or other files."""

from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from archlearn.errors import InputError
from archlearn_cli.data.file_cache import write_atomically
from archlearn_cli.reporting.figures import write_variables
from archlearn_cli.reporting.run_reader import explaining_odd_files, read_run
from archlearn_cli.reporting.sections import describe_run


def write_report(run_folder: Path, out: Path) -> Path:
    """Write the page of one run, and return where it is.

    An unfinished run gets a page with what there is. The file appears whole or not at all.

    Args:
        run_folder: A folder that `archlearn learn --out` has written.
        out: The HTML file to write; folders on the way are made.

    Raises:
        InputError: If the folder is not a run's or was changed by hand, or `out` is a folder.
    """
    if out.is_dir():
        raise InputError(
            f"cannot write the report to {str(out)!r}: that is a folder; "
            f"give a file, such as {str(out / 'report.html')!r}"
        )
    with explaining_odd_files([run_folder]):
        page = render(describe_run(read_run(run_folder)))
    write_atomically(out, page.encode())
    return out


def render(content: Mapping[str, object]) -> str:
    """Return the page that `template.html` makes of the data of a run."""
    environment = Environment(
        loader=PackageLoader("archlearn_cli.reporting", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shades = {"light": write_variables(dark=False), "dark": write_variables(dark=True)}
    return environment.get_template("template.html").render(content, **shades)
