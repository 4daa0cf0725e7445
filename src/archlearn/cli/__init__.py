"""The command line: each command parses, calls the library and prints."""

import sys
from collections.abc import Sequence

_EXTRA = {
    "lightning_fabric",
    "cyclopts",
    "rich",
    "matplotlib",
    "jinja2",
    "PIL",
    "sklearn",
    "tomli_w",
}
"""What `pip install archlearn` leaves out, and `archlearn[cli]` has."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave with its exit code; say what to install where that is missing."""
    try:
        from archlearn.cli import app

        app.run_app(arguments)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA:
            raise
        sys.stderr.write(
            f"error: the command line needs {package}, which is not installed; "
            "pip install 'archlearn[cli]'\n"
        )
        sys.exit(1)


__all__ = ["main"]
