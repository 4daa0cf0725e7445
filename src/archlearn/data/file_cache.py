"""The folder of downloaded files; files are written atomically."""

import errno
import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Return the folder for one data set, under `$ARCHLEARN_CACHE` or `~/.cache/archlearn`."""
    root = os.environ.get("ARCHLEARN_CACHE")
    base = Path(root) if root else Path.home() / ".cache" / "archlearn"
    return base / name


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is never seen half written, not even after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            sync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def sync(handle: int) -> None:
    """Wait until the disk has what was written; where there is no disk there is no wait."""
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def _sync_folder(folder: Path) -> None:
    """Make the new name itself durable, where a folder can be opened like a file."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        sync(handle)
    finally:
        os.close(handle)
