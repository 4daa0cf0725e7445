"""A user's own model or data is named `package.module:function`."""

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from archlearn.errors import ArchlearnError, InputError

_NOT_THEIRS = (str(Path(__file__).parents[1]), sys.prefix, sys.base_prefix, "<frozen")


def is_reference(name: str) -> bool:
    """Return whether a name has the form `package.module:function`."""
    module, colon, function = name.partition(":")
    dotted = all(part.isidentifier() for part in module.split("."))
    return bool(colon) and dotted and function.isidentifier()


def import_callable(reference: str) -> Callable[..., object]:
    """Return the function that `package.module:function` names.

    The working directory is looked in first, as `python -m` does.

    Raises:
        InputError: If the module or the function is not there.
    """
    module_name, _, attribute = reference.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with explaining_users_code(reference):
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"cannot import {module_name!r} for {reference!r}: {error}; run the command in the "
            "folder that holds the module, or install it"
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise InputError(
            f"{reference!r} was asked for, but {module_name!r} has no function {attribute!r}"
        )
    return function


@contextmanager
def explaining_users_code(reference: str) -> Generator[None]:
    """Say what a user's module or function stumbled over, and at which line of theirs.

    Raises:
        InputError: If it raises anything that is not ours and not about a missing module.
    """
    try:
        yield
    except (ArchlearnError, ModuleNotFoundError):
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [frame for frame in frames if not frame.filename.startswith(_NOT_THEIRS)]
        place = f" ({theirs[-1].filename}:{theirs[-1].lineno})" if theirs else ""
        raise InputError(
            f"{reference!r} raised {type(error).__name__}: {error}{place}; try it in Python alone"
        ) from error
