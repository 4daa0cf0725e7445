"""A run's folder: settings as TOML, metrics and gates as JSON lines, a summary as JSON.

Lines are added at the end of each epoch, before the checkpoint that counts the epoch; a resumed
run cuts off the lines that its checkpoint does not know.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archlearn.training.checkpoints import LATEST, PREVIOUS
from archlearn.training.data.caching import sync, write_whole
from archlearn.training.errors import SettingsError
from archlearn.training.settings import RunSettings
from archlearn.training.toml import format_settings, read_settings

CONFIG, METRICS, GATES = "config.toml", "metrics.jsonl", "gates.jsonl"
SUMMARY, COMPACT, REPORT = "summary.json", "compact.safetensors", "report.html"


def start_folder(folder: Path, settings: RunSettings) -> None:
    """Make a run's folder and write its settings.

    Raises:
        SettingsError: If the folder holds a run already, or cannot be made.
    """
    if any((folder / name).exists() for name in (CONFIG, METRICS, LATEST, PREVIOUS)):
        raise SettingsError(
            f"{folder} holds a run already; go on with it by --resume {folder}, or choose "
            "another --out"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_settings(folder, settings)
    except (FileExistsError, NotADirectoryError, PermissionError, FileNotFoundError) as error:
        raise SettingsError(
            f"the run's folder cannot be made at {folder} ({error.strerror}); choose another --out"
        ) from error


def has_begun(folder: Path) -> bool:
    """Return whether a run got as far as its first line; before that all settings are open."""
    return any((folder / name).exists() for name in (METRICS, LATEST, PREVIOUS))


def drop_folder(folder: Path) -> None:
    """Take back the folder of a run that never began; one that did is left as it is."""
    if has_begun(folder):
        return
    (folder / CONFIG).unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


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
