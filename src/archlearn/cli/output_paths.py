"""Fail early if an output path cannot be written."""

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from archlearn.errors import SettingsError
from archlearn.training.run_directory import says_full


@contextmanager
def writing(path: Path) -> Generator[None]:
    """See that a file can be written before anything is done, and say so if its disk gets full.

    Raises:
        SettingsError: If the file is a folder, or cannot be written.
    """
    _check(path)
    try:
        yield
    except (OSError, SafetensorError) as error:
        if not says_full(error):
            raise
        raise SettingsError(
            f"the disk is full, so {path} was not written; make room, or choose another file with "
            "--out"
        ) from error


def _check(path: Path) -> None:
    if path.is_dir():
        raise SettingsError(f"cannot write {path}: it is a folder; name a file in it with --out")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise SettingsError(
            f"cannot write {path} ({error.strerror}); choose another file with --out"
        ) from error
