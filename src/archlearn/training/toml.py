"""Settings are kept as TOML: read by the standard library, written by these few lines."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archlearn.errors import SettingsError
from archlearn.training.config import from_table, to_table
from archlearn.training.settings import RunSettings

MAX_CONFIG_BYTES = 2**20  # of a settings file; one of ours has two thousand
MAX_NAME_PARTS = 64  # of a dotted name, for which tomllib takes time and memory by the square
_BETWEEN_NAMES = re.compile(r"[^\w.\"'\- \t]")


def format_settings(settings: RunSettings) -> str:
    """Return settings as TOML."""
    return format_table(to_table(settings))


def format_table(table: Mapping[str, Any]) -> str:
    """Return one level of tables as TOML: plain values first, then each table."""
    lines = [_line(key, value) for key, value in table.items() if not isinstance(value, Mapping)]
    for name, inner in table.items():
        if isinstance(inner, Mapping):
            lines += ["", f"[{name}]"]
            lines += [_line(key, value) for key, value in inner.items()]
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any) -> str:
    return f"{key} = {_value(value)}"


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case list():
            return "[" + ", ".join(_value(item) for item in value) + "]"
        case _:
            return '"' + "".join(_escape(character) for character in str(value)) + '"'


def _escape(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if ord(character) < 0x20 or ord(character) == 0x7F:
        return f"\\u{ord(character):04x}"
    return character


def parse_settings(text: str, where: str) -> RunSettings:
    """Return the settings that a TOML text holds.

    Raises:
        SettingsError: If it is not TOML, or a key or a value is not one of ours.
    """
    n_parts = 1 + max(part.count(".") for part in _BETWEEN_NAMES.split(text))
    if n_parts > MAX_NAME_PARTS:
        raise SettingsError(
            f"{where} is no settings file: it has a name of {n_parts:,} parts, more than "
            f"{MAX_NAME_PARTS} (MAX_NAME_PARTS in archlearn.training.toml)"
        )
    try:
        table = tomllib.loads(text)
    except ValueError as error:  # not only TOMLDecodeError: Python limits the digits of a number
        raise SettingsError(f"{where} is not TOML: {error}") from error
    except RecursionError:
        raise SettingsError(f"{where} is no settings file: it is nested too deep") from None
    try:
        return from_table(RunSettings, table)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from error


def read_settings(path: Path) -> RunSettings:
    """Return the settings that a TOML file holds."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise SettingsError(
            f"cannot read the settings {path}: {error.strerror}; give a TOML file, as the "
            "config.toml of a run"
        ) from error
    if len(content) > MAX_CONFIG_BYTES:
        raise SettingsError(
            f"{path} is no settings file: it has more than {MAX_CONFIG_BYTES:,} bytes "
            "(MAX_CONFIG_BYTES in archlearn.training.toml)"
        )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"the settings {path} are not UTF-8 (byte {error.start} is {content[error.start]:#x}); "
            "save them as UTF-8, which TOML asks for"
        ) from error
    return parse_settings(text, str(path))
