"""A file that is to be written is looked at first: what cannot be written is refused at once."""

import tempfile
from pathlib import Path

from archlearn.training.errors import SettingsError


def check_target(path: Path) -> None:
    """Make the folder of a file that is to be written, and see that it can be.

    Raises:
        SettingsError: If the file is a folder, or nothing can be written there.
    """
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
