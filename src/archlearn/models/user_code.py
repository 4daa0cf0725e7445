"""Import a user's model or data set, given as `package.module:function`."""

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from archlearn.errors import ArchlearnError, InputError

_OURS = str(Path(__file__).parents[1])
_NOT_THEIRS = (_OURS, sys.prefix, sys.base_prefix, "<frozen")
_INSTALLED = {"site-packages", "dist-packages"}


def is_reference(name: str) -> bool:
    """Return whether a name has the form `package.module:function`."""
    module, colon, function = name.partition(":")
    dotted = all(part.isidentifier() for part in module.split("."))
    return bool(colon) and dotted and function.isidentifier()


def refuse_file(name: str) -> None:
    """Refuse `folder/module.py:function` with the name that Python has for it.

    Raises:
        InputError: If the name is that of a file.
    """
    file, _, function = name.rpartition(":") if ".py:" in name else (name, "", "")
    path = Path(file)
    if path.suffix != ".py":
        return
    inside = not path.is_absolute() and ".." not in path.parts
    dotted = ".".join(path.with_suffix("").parts) if inside else path.stem
    where = "" if inside else f"go to the folder {str(path.parent)!r} and "
    raise InputError(
        f"{name!r} is a file; {where}name the module and what is in it, with dots and without .py: "
        f"{dotted}:{function or 'build'}"
    )


def import_callable(reference: str) -> Callable[..., object]:
    """Return the function that `package.module:function` names.

    The working directory is looked in first, as `python -m` does.

    Raises:
        InputError: If the module or the function is not there.
    """
    module_name, _, attribute = reference.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with explaining_users_code(reference):
        module = importlib.import_module(module_name)
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
        InputError: If it raises anything that is not ours.
    """
    try:
        yield
    except ArchlearnError:
        raise
    except ModuleNotFoundError as error:
        raise InputError(_explain_missing(reference, error)) from error
    except Exception as error:
        raise InputError(_explain(reference, error)) from error


def _explain_missing(reference: str, error: ModuleNotFoundError) -> str:
    module, missing = reference.partition(":")[0], error.name or ""
    if f"{module}.".startswith(f"{missing}."):
        return (
            f"cannot import {module!r} for {reference!r}: {error}; run the command in the folder "
            "that holds the module, or install it"
        )
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_machinery(f)]
    return f"{reference!r} needs {missing!r} ({_place(frames[-1])}): {error}; install it"


def _explain(reference: str, error: Exception) -> str:
    """Return what was raised, at which line of the user's, and at which line of a package."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if _is_theirs(frame)]
    raised = [] if frames[-1].filename.startswith(_OURS) else frames[-1:]
    places = list(dict.fromkeys(_place(frame) for frame in (*theirs[-1:], *raised)))
    where = f" ({', '.join(places)})" if places else ""
    return f"{reference!r} raised {type(error).__name__}: {error}{where}; try it in Python alone"


def _is_theirs(frame: traceback.FrameSummary) -> bool:
    installed = _INSTALLED & set(Path(frame.filename).parts)
    return not installed and not frame.filename.startswith(_NOT_THEIRS)


def _is_machinery(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith("<frozen importlib")


def _place(frame: traceback.FrameSummary) -> str:
    return f"{frame.filename}:{frame.lineno}"
