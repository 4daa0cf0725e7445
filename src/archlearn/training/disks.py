"""A disk that is full stops a run with a sentence, and the run can be resumed."""

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from archlearn.training.errors import RunStoppedError
from archlearn.training.recording import how_to_go_on

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def says_full(error: OSError | SafetensorError) -> bool:
    """Return whether an error is that of a full disk; safetensors has the number in its text."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    return any(f"(os error {number})" in str(error) for number in _FULL)


@contextmanager
def explaining_full_disks(folder: Path) -> Generator[None]:
    """Turn the error of a full disk into one that says what to do."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if not says_full(error):
            raise
        why = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error)
        raise RunStoppedError(
            f"the disk is full: {why} while writing into {folder}; what was written "
            f"before is whole; make room, then {how_to_go_on(folder)}"
        ) from error
