"""A run's folder: settings as TOML, metrics and gates as JSON lines, a summary as JSON.

Lines are added at the end of each epoch, before the checkpoint that counts the epoch; a resumed
run cuts off the lines that its checkpoint does not know.
"""

import json
import shlex
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from archlearn.data.file_cache import sync, write_whole
from archlearn.errors import SettingsError
from archlearn.training.checkpoint import LATEST, PREVIOUS
from archlearn.training.run_lock import lock_run
from archlearn.training.settings import RunSettings
from archlearn.training.toml import format_settings, read_settings

CONFIG, METRICS, GATES = "config.toml", "metrics.jsonl", "gates.jsonl"
SUMMARY, COMPACT, REPORT = "summary.json", "compact.safetensors", "report.html"


@contextmanager
def open_new_folder(folder: Path) -> Generator[None]:
    """Make and lock the folder of a new run; if the run never begins, nothing is left of it.

    Raises:
        SettingsError: If the folder holds a run already, or cannot be written.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with _explaining_no_access(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with lock_folder(folder):
            _refuse_run(folder)
            try:
                yield
            finally:
                if not has_begun(folder):
                    (folder / CONFIG).unlink(missing_ok=True)
    finally:
        _remove_empty(made)


@contextmanager
def lock_folder(folder: Path) -> Generator[None]:
    """Keep other processes from learning in a folder, or refuse because one does.

    Raises:
        SettingsError: If another process learns there, or the folder cannot be written.
    """
    with ExitStack() as stack:
        with _explaining_no_access(folder):
            stack.enter_context(lock_run(folder))
        yield


@contextmanager
def _explaining_no_access(folder: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise SettingsError(
            f"the run's folder {folder} cannot be written ({error.strerror}); choose another "
            "--out, or make it writable"
        ) from error


def _refuse_run(folder: Path) -> None:
    if any((folder / name).exists() for name in (CONFIG, METRICS, LATEST, PREVIOUS)):
        raise SettingsError(
            f"{folder} holds a run already; go on with it by --resume {shlex.quote(str(folder))}, "
            "or choose another --out"
        )


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove folders from the innermost on, up to the first that holds anything."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return


def has_begun(folder: Path) -> bool:
    """Return whether a run got as far as its first line; before that all settings are open."""
    return any((folder / name).exists() for name in (METRICS, LATEST, PREVIOUS))


def how_to_go_on(folder: Path) -> str:
    """Return what to type to go on with a run that was stopped."""
    if (folder / CONFIG).exists():
        return f"go on with: archlearn learn --resume {shlex.quote(str(folder))}"
    return "give the same command again: nothing was learnt yet"


def write_settings(folder: Path, settings: RunSettings) -> None:
    """Write the settings of a run as TOML."""
    write_whole(folder / CONFIG, format_settings(settings).encode())


def read_run_settings(folder: Path) -> RunSettings:
    """Return the settings a run was started with.

    Raises:
        SettingsError: If there is no run in the folder.
    """
    if not (folder / CONFIG).is_file():
        raise SettingsError(f"{folder} holds no run (there is no {CONFIG} in it)")
    return read_settings(folder / CONFIG)


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """Add one JSON object as a line; a kill does not lose it, a power cut may."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def sync_lines(folder: Path) -> None:
    """Wait until the disk has all lines, which must be before the checkpoint that counts them."""
    for name in (METRICS, GATES):
        with (folder / name).open("a", encoding="utf-8") as file:
            sync(file.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines; a line cut short by a crash is left out."""
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError):
            break
    return rows


def cut_lines(path: Path, last_epoch: int) -> list[dict[str, Any]]:
    """Leave only the lines up to an epoch in the file, and return them."""
    rows = [row for row in read_lines(path) if row["epoch"] <= last_epoch]
    if path.exists():
        write_whole(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return rows


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file whole."""
    write_whole(path, (json.dumps(content, indent=1, default=str) + "\n").encode())
