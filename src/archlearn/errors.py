"""Every error says what was asked, what was found, and what to do."""

import sys
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


def with_article(name: str) -> str:
    """Return a name with "a" or "an" in front of it."""
    return f"{'an' if name[:1].lower() in tuple('aeiou') else 'a'} {name}"


def lies_in(value: Any, low: float, high: float) -> bool:
    """Return whether a value is a number from `low` to `high`; NaN is not."""
    try:
        return bool(low <= value <= high)
    except (TypeError, RuntimeError, ValueError):  # a string, several numbers
        return False


def first_line(error: BaseException) -> str:
    """Return what an error says, without the notes that tracing adds to it."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
