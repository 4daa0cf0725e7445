"""A disk that is full stops a run with a sentence, and the run can be resumed."""

import errno
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from archlearn.training.errors import RunStoppedError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def explaining_full_disks(folder: Path) -> Generator[None]:
    """Turn the error of a full disk into one that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise RunStoppedError(
            f"the disk is full: {error.strerror} while writing into {folder}; what was written "
            f"before is whole; make room, then: archlearn learn --resume {folder}"
        ) from error
