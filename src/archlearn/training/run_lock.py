"""Lock of a run's folder: one trainer at a time, and the lock dies with its process."""

import logging
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from archlearn.errors import SettingsError

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None

logger = logging.getLogger(__name__)

LOCK = "run.lock"


@contextmanager
def lock_run(folder: Path) -> Generator[None]:
    """Keep other trainers out of a run's folder until this block is left.

    Raises:
        SettingsError: If another process learns there; it is named.
    """
    path = folder / LOCK
    file = _open_locked(path)
    try:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()


def _open_locked(path: Path) -> TextIO:
    while True:
        file = path.open("a+", encoding="utf-8")
        if not _try_to_lock(file):
            file.seek(0)
            owner = file.read().strip() or "another process"
            file.close()
            raise SettingsError(
                f"{path.parent} is being learnt already, by {owner}; wait until that one ends, or "
                "stop it first"
            )
        if _is_still_at(path, file):
            return file
        file.close()  # its owner took it away between open and lock


def _try_to_lock(file: TextIO) -> bool:
    """Return whether the file is locked for this process now; where no locks are, it is said."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        logger.warning(
            "%s cannot be locked (%s); see that no other process learns in that folder",
            file.name,
            error.strerror,
        )
    return True


def _is_still_at(path: Path, file: TextIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
