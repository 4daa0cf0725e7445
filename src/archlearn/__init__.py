"""Learn a network's architecture in one training run, then compact it exactly.

Every public name is loaded when it is first used, so that `import archlearn` costs nothing. Which
names there are, and where, is listed in `__init__.pyi`; type checkers read that as well.
"""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], list[str]]:
    """Return the `__getattr__` of a package and its public names, as its stub lists them.

    A name is imported from its home at its first use; so is a package inside this one, which is
    not counted among the names.

    Args:
        package: The package's `__name__`.
        file: Its `__file__`, which the stub lies beside.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text("utf-8"))
    home_of: dict[str, str] = {}
    for node in stub.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(__name__):
            home_of |= {alias.name: node.module for alias in node.names}

    def find(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if home_of[name] == package:
            return import_module(f"{package}.{name}")
        value = getattr(import_module(home_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return find, [name for name, home in home_of.items() if home != package]


__getattr__, __all__ = lazy_names(__name__, __file__)


def __dir__() -> list[str]:
    """List the public names without importing their homes."""
    return [*__all__, "__version__"]
