"""Call a user's model or data set, given as `package.module:function`."""

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from archlearn.errors import ArchlearnError, InputError, did_you_mean

_OURS = str(Path(__file__).parents[2])
_NOT_THEIRS = (_OURS, sys.prefix, sys.base_prefix, "<")  # generated code has no file
_INSTALLED = {"site-packages", "dist-packages"}


def call_users_code(name: str, kind: str, choices: Iterable[str], **offered: object) -> object:
    """Return what the function that `package.module:function` names returns.

    The working directory is looked in first, as `python -m` does. `kind` and the built-in
    `choices` are for messages; arguments `offered` are given if it has such parameters.
    """
    _refuse_file(name)
    module_name, colon, attribute = name.partition(":")
    dotted = all(part.isidentifier() for part in module_name.split("."))
    if not (colon and dotted and attribute.isidentifier()):
        hint = did_you_mean(module_name, [entry.partition(":")[0] for entry in choices])
        raise InputError(f"there is no {kind} {name!r}; {hint}choose one of {', '.join(choices)}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        function = getattr(importlib.import_module(module_name), attribute, None)
        if not callable(function):
            raise InputError(
                f"{name!r} was asked for, but {module_name!r} has no function {attribute!r}"
            )
        wanted = inspect.signature(function).parameters
        return function(**{key: value for key, value in offered.items() if key in wanted})
    except ArchlearnError:
        raise
    except ModuleNotFoundError as error:
        raise InputError(_explain_missing(name, error)) from error
    except Exception as error:
        raise InputError(_explain(name, error)) from error


def _refuse_file(name: str) -> None:
    """Refuse `folder/module.py:function` with the name that Python has for it."""
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


def _explain_missing(reference: str, error: ModuleNotFoundError) -> str:
    module, missing = reference.partition(":")[0], error.name or ""
    if f"{module}.".startswith(f"{missing}."):
        return (
            f"cannot import {module!r} for {reference!r}: {error}; run the command in the folder "
            "that holds the module, or install it"
        )
    frames = traceback.extract_tb(error.__traceback__)
    importing = [f for f in frames if not f.filename.startswith("<frozen importlib")]
    return f"{reference!r} needs {missing!r} ({_place(importing[-1])}): {error}; install it"


def _explain(reference: str, error: Exception) -> str:
    """Return what was raised, at which line of the user's, and at which line of a package."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if _is_theirs(frame)]
    raised = [] if frames[-1].filename.startswith(_OURS) else frames[-1:]
    places = list(dict.fromkeys(_place(frame) for frame in (*theirs[-1:], *raised)))
    where = f" ({', '.join(places)})" if places else ""
    return f"{reference!r} raised {type(error).__name__}: {error}{where}; try it in Python alone"


def find_line(error: Exception) -> str:
    """Return the line of the user's at which an error was raised, or '' if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [_place(frame) for frame in frames if _is_theirs(frame)]
    return f" ({theirs[-1]})" if theirs else ""


def _is_theirs(frame: traceback.FrameSummary) -> bool:
    installed = _INSTALLED & set(Path(frame.filename).parts)
    return not installed and not frame.filename.startswith(_NOT_THEIRS)


def _place(frame: traceback.FrameSummary) -> str:
    return f"{frame.filename}:{frame.lineno}"
