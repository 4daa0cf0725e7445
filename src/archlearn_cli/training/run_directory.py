"""The folder of a run: its files, its lock, and full disks.

Lines are added at the end of each epoch, before the checkpoint that counts the epoch; a resumed
run cuts off the lines that its checkpoint does not know.
"""

import errno
import json
import logging
import os
import shlex
import socket
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import torch
from safetensors import SafetensorError

from archlearn.errors import (
    ArchlearnError,
    CheckpointError,
    RunStoppedError,
    SettingsError,
    first_line,
)
from archlearn_cli.data.file_cache import CONFIG, METRICS, write_atomically
from archlearn_cli.training.checkpoint import LATEST, PREVIOUS
from archlearn_cli.training.settings import RunSettings, format_settings, read_settings

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None


logger = logging.getLogger(__name__)
LOCK = "run.lock"


@contextmanager
def lock_folder(folder: Path) -> Generator[None]:
    """Keep other processes from learning in a folder until this block is left."""
    path = folder / LOCK
    with explaining_no_access(folder):
        file = path.open("a+", encoding="utf-8")
    with file:
        # A run that ended since the file was opened has deleted it: others would lock a new one.
        if not _try_to_lock(file) or os.fstat(file.fileno()).st_nlink == 0:
            file.seek(0)
            owner = file.read().strip() or "another process"
            raise SettingsError(
                f"{folder} is being learnt already, by {owner}; wait until that one ends, or stop "
                "it first"
            )
        try:
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
            yield
        finally:
            path.unlink(missing_ok=True)


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


COMPACT, REPORT, LATENCY_FILE = "compact.safetensors", "report.html", "latency.json"


@contextmanager
def open_new_folder(folder: Path) -> Generator[None]:
    """Make and lock the folder of a new run; if the run never begins, nothing is left of it."""
    try:
        str(folder.absolute()).encode()
    except UnicodeEncodeError:
        raise SettingsError(
            f"the name of the folder {str(folder)!a} is not UTF-8, and no checkpoint could be "
            "read from there; choose another --out"
        ) from None
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with explaining_no_access(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with lock_folder(folder):
            if any((folder / name).exists() for name in (CONFIG, METRICS, LATEST, PREVIOUS)):
                raise SettingsError(
                    f"{folder} holds a run already; go on with it by --resume "
                    f"{shlex.quote(str(folder))}, or choose another --out"
                )
            try:
                yield
            finally:
                if not has_begun(folder):
                    (folder / CONFIG).unlink(missing_ok=True)
    finally:
        with suppress(OSError):  # from the innermost on, up to the first that holds anything
            for path in missing:
                path.rmdir()


@contextmanager
def explaining_no_access(folder: Path) -> Generator[None]:
    """Turn the error of a folder that cannot be written into one with advice."""
    try:
        yield
    except OSError as error:
        raise SettingsError(
            f"the folder {folder} cannot be written ({error.strerror}); choose another "
            "--out, or make it writable"
        ) from error


def has_begun(folder: Path) -> bool:
    """Return whether a run got as far as its first line; before that all settings are open."""
    return any((folder / name).exists() for name in (METRICS, LATEST, PREVIOUS))


def resume_hint(folder: Path) -> str:
    """Return what to type to go on with a run that was stopped."""
    if (folder / CONFIG).exists():
        return f"go on with: archlearn learn --resume {shlex.quote(str(folder))}"
    return "give the same command again: nothing was learnt yet"


def write_settings(folder: Path, settings: RunSettings) -> None:
    """Write the settings of a run as TOML."""
    write_atomically(folder / CONFIG, format_settings(settings).encode())


def read_run_settings(folder: Path) -> RunSettings:
    """Return the settings a run was started with."""
    if not (folder / CONFIG).is_file():
        raise SettingsError(
            f"{folder} holds no run (there is no {CONFIG} in it); give the "
            "folder that `archlearn learn --out` wrote"
        )
    return read_settings(folder / CONFIG)


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """Add one JSON object as a line; a kill does not lose it, a power cut may."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines; a line cut short by a crash is left out.

    Raises:
        CheckpointError: If a line is not about an epoch.
    """
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(row, dict) or not isinstance(row.get("epoch"), int):
            raise CheckpointError(
                f"{path} has the line {line[:40]!r}, in which no epoch is a whole number; correct "
                "the line, or remove it"
            )
        rows.append(row)
    return rows


def cut_lines(path: Path, last_epoch: int) -> list[dict[str, Any]]:
    """Leave only the lines up to an epoch in the file, and return them."""
    rows = [row for row in read_lines(path) if row["epoch"] <= last_epoch]
    if path.exists():
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return rows


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file whole."""
    write_atomically(path, (json.dumps(content, indent=1, default=str) + "\n").encode())


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def explaining_full_disks(folder: Path) -> Generator[None]:
    """Turn the error of a full disk into one that says how to go on with a run."""
    with _explaining_full_disks(
        RunStoppedError,
        lambda: f"what was written into {folder} is whole; make room, then {resume_hint(folder)}",
    ):
        yield


@contextmanager
def writing(path: Path) -> Generator[None]:
    """See that a file can be written before anything is done, and say so if its disk gets full."""
    check_writable(path)
    advice = f"so {path} was not written; make room, or choose another file with --out"
    with _explaining_full_disks(SettingsError, lambda: advice):
        yield


@contextmanager
def _explaining_full_disks(
    kind: type[ArchlearnError], advise: Callable[[], str]
) -> Generator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        # Safetensors has the number in its text.
        numbers = {error.errno} if isinstance(error, OSError) else set[int | None]()
        numbers |= {number for number in _FULL if f"(os error {number})" in str(error)}
        if not numbers & _FULL:
            raise
        why = error.strerror if isinstance(error, OSError) else error
        raise kind(f"the disk is full: {why}; {advise()}") from error


def check_writable(path: Path, advice: str = "choose another file with --out") -> None:
    """Refuse a file that is a folder or cannot be written, before anything is done for it."""
    if path.is_dir():
        raise SettingsError(f"cannot write {path}: it is a folder; {advice}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise SettingsError(f"cannot write {path} ({error.strerror}); {advice}") from error


@contextmanager
def explaining_full_memory() -> Generator[None]:
    """Turn the error of a memory that is full, the host's or a GPU's, into one with advice."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        is_full = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not is_full and "can't allocate memory" not in str(error):  # of the host, by torch
            raise
        raise SettingsError(
            f"the memory is too small for this run ({first_line(error)}); choose a smaller "
            "network, a smaller --batch-size, or work each batch off in parts: --accumulate 4"
        ) from error
