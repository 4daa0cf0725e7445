"""Import a user's model or data set, given as `package.module:function`."""

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from archlearn.errors import ArchlearnError, InputError

_NOT_THEIRS = (str(Path(__file__).parents[1]), sys.prefix, sys.base_prefix, "<frozen")
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
    """Blame the package that cannot be imported, if it is one; else the user's last line."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [number for number, frame in enumerate(frames) if _is_theirs(frame)]
    what = f"{type(error).__name__}: {error}"
    after = frames[theirs[-1] + 1 :] if theirs else _behind_our_own(frames)
    entered = [frame for frame in after if not _is_machinery(frame)]
    is_import = bool(entered) and entered[0].name == "<module>"
    package = _name_package(entered[0]) if is_import else ""
    if package:
        by = f" ({_place(frames[theirs[-1]])})" if theirs else ""
        return (
            f"{reference!r}{by} imports {package!r}, which cannot be imported here: {what} "
            f"({_place(entered[-1])}); install a {package} that fits the other packages, torch "
            f'above all, until `python -c "import {package}"` says nothing'
        )
    place = f" ({_place(frames[theirs[-1]])})" if theirs else ""
    return f"{reference!r} raised {what}{place}; try it in Python alone"


def _behind_our_own(frames: Sequence[traceback.FrameSummary]) -> Sequence[traceback.FrameSummary]:
    names = (__file__, importlib.__file__)
    last = max((n for n, frame in enumerate(frames) if frame.filename in names), default=-1)
    return frames[last + 1 :]


def _is_theirs(frame: traceback.FrameSummary) -> bool:
    installed = _INSTALLED & set(Path(frame.filename).parts)
    return not installed and not frame.filename.startswith(_NOT_THEIRS)


def _is_machinery(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith("<frozen importlib")


def _name_package(frame: traceback.FrameSummary) -> str:
    """Return the installed package that a frame lies in, or nothing."""
    parts = Path(frame.filename).parts
    places = [number for number, part in enumerate(parts) if part in _INSTALLED]
    return parts[places[-1] + 1].removesuffix(".py") if places else ""


def _place(frame: traceback.FrameSummary) -> str:
    return f"{frame.filename}:{frame.lineno}"
