"""The command line of archlearn, and what it is made of: one run, networks, data and the report.

Every name is loaded when it is first used, as those of `archlearn` are; `__init__.pyi` lists them.
This package may change at any time; `archlearn` is the library that keeps its promises.
"""

import sys
from collections.abc import Sequence

from archlearn import lazy_names

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
PAPER = "archlearn_paper"
_HOW_TO_INSTALL_PAPER = "run `pip install ./paper` in a clone of archlearn's repository"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code; name the package to install where one is missing."""
    try:
        from archlearn_cli.commands import app

        app.run_app(arguments)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA | {PAPER}:
            raise
        needs = "this command" if package == PAPER else "the command line"
        how = _HOW_TO_INSTALL_PAPER if package == PAPER else "pip install 'archlearn[cli]'"
        sys.stderr.write(f"error: {needs} needs {package}, which is not installed; {how}\n")
        sys.exit(1)


__getattr__, _names = lazy_names(__name__, __file__)
__all__ = ["main"]
