"""Errors: each says what was asked, what was found, and what to do."""

import difflib
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

LARGEST = sys.float_info.max


class ArchlearnError(Exception):
    """Whatever this package refuses to do."""


class InputError(ArchlearnError, ValueError):
    """An argument does not fit the model or the call."""


class TracingError(ArchlearnError):
    """A model's `forward` cannot be followed call by call."""


class GateError(ArchlearnError, ValueError):
    """A gate holds a value that no gate may have."""


class SurgeryError(ArchlearnError):
    """A change to the network would not be exact."""


class CertificateError(ArchlearnError):
    """Two models that should compute the same function do not."""


class FileError(ArchlearnError, ValueError):
    """A model file is truncated, foreign, of a later version, or not allowed."""


def check_installed(what: str, extra: str, *packages: str) -> None:
    """Raise if something needs packages, by the names they are imported by, that are not installed.

    The error says what needs them, and which extra of archlearn has them.
    """
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise InputError(
            f"{what} needs {', '.join(missing)}, which is not installed; "
            f"pip install 'archlearn[{extra}]'"
        )


def with_article(name: str) -> str:
    """Return a name with "a" or "an" in front of it."""
    return f"{'an' if name[:1].lower() in tuple('aeiou') else 'a'} {name}"


def check_kind(name: str, value: object, kind: type | tuple[type, ...], advice: str) -> None:
    """Raise if an argument is of another kind than it should be, with the advice what to give."""
    if not isinstance(value, kind):
        raise InputError(f"{name} is {with_article(type(value).__name__)}; {advice}")


def lies_in(value: Any, low: float, high: float) -> bool:
    """Return whether a value is a number from `low` to `high`; NaN is not."""
    try:
        return bool(low <= value <= high)
    except (TypeError, RuntimeError, ValueError):  # a string, several numbers
        return False


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a question that names the nearest of the known names, or nothing if none is near."""
    ratios = {other: difflib.SequenceMatcher(None, other, name).ratio() for other in names}
    near = [repr(other) for other in ratios if ratios[other] == max(ratios.values()) >= 0.5]
    return f"did you mean {' or '.join(near)}? " if near else ""


def first_line(error: BaseException) -> str:
    """Return what an error says, without the notes that tracing adds to it."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class SettingsError(InputError):
    """A setting is misspelt, of the wrong kind, or at odds with another one."""


class DataError(ArchlearnError):
    """A data set cannot be found, read or trusted."""


class CheckpointError(FileError):
    """A checkpoint is torn, foreign, or of another run."""


class RunStoppedError(ArchlearnError):
    """A run cannot go on, but what it has done is safe and can be resumed."""


class RunInterruptedError(RunStoppedError):
    """A run was told to stop, and saved itself first."""
