"""Settings as tables and TOML files; checks of their names, kinds and ranges."""

import dataclasses
import difflib
import re
import tomllib
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import tomli_w

from archlearn.errors import SettingsError
from archlearn.training.settings import Range, RunSettings

S = TypeVar("S")


def to_table(settings: object) -> dict[str, Any]:
    """Return settings as nested dictionaries; what is None is left out."""
    table: dict[str, Any] = {}
    for item in dataclasses.fields(cast("Any", settings)):
        value = getattr(settings, item.name)
        if dataclasses.is_dataclass(value):
            table[item.name] = to_table(value)
        elif value is not None:
            table[item.name] = list(value) if isinstance(value, tuple) else value
    return table


def from_table(kind: type[S], table: Mapping[str, Any], where: str = "") -> S:
    """Return settings made of nested dictionaries.

    Raises:
        SettingsError: If a key is unknown (the nearest is suggested) or a value of a wrong kind.
    """
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{where}{key}"
        if key not in hints:
            raise SettingsError(_unknown_key(name, key, kind))
        if dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, Mapping):
                raise SettingsError(f"{name!r} is a table of settings, but {value!r} was given")
            values[key] = from_table(cast("type", hints[key]), value, f"{name}.")
        else:
            values[key] = check_value(name, value, hints[key])
    return kind(**values)


def _unknown_key(name: str, key: str, kind: type) -> str:
    """Return a sentence that names the key meant, wherever it belongs."""
    homes = {item: section for section, item, _ in flat_settings()}
    here = [item.name for item in dataclasses.fields(cast("Any", kind))]
    near = difflib.get_close_matches(key, here, n=1) or difflib.get_close_matches(key, homes, n=1)
    if not near:
        return f"there is no setting {name!r}; here there are {', '.join(here)}"
    section = "" if near[0] in here else homes[near[0]]
    place = f" (in the table [{section}])" if section else ""
    return f"there is no setting {name!r}; did you mean {near[0]!r}{place}?"


def check_value(name: str, value: Any, hint: Any) -> Any:
    """Return a value in the type that a setting has, or refuse it."""
    if get_origin(hint) in (Union, types.UnionType):
        options = [option for option in get_args(hint) if option is not type(None)]
        return None if value is None else check_value(name, value, options[0])
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise SettingsError(_unknown_choice(name, value, get_args(hint)))
        return value
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise SettingsError(f"{name!r} must be a list of texts, but {value!r} was given")
        return tuple(check_value(name, item, str) for item in cast("list[object]", value))
    if hint is float and type(value) is int and abs(value) < 2**1000:
        return float(value)
    if type(value) is not hint:
        raise SettingsError(f"{name!r} must be {_NAMES[hint]}, but {value!r} was given")
    return value


_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def _unknown_choice(name: str, value: object, choices: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(str(value), choices, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{name!r} must be one of {', '.join(choices)}, but {value!r} was given{hint}"


def flat_settings() -> Iterator[tuple[str, str, dataclasses.Field[Any]]]:
    """Yield every setting as section, name and field; the section is "" at the top."""
    hints = get_type_hints(RunSettings)
    for item in dataclasses.fields(RunSettings):
        if dataclasses.is_dataclass(hints[item.name]):
            for inner in dataclasses.fields(hints[item.name]):
                yield item.name, inner.name, inner
        else:
            yield "", item.name, item


def override(settings: RunSettings, given: Mapping[str, Any]) -> RunSettings:
    """Return settings with values given by their bare names, whatever table they are in."""
    table = to_table(settings)
    homes = {name: section for section, name, _ in flat_settings()}
    for name, value in given.items():
        if name not in homes:
            raise SettingsError(_unknown_key(name, name, RunSettings))
        section = table.setdefault(homes[name], {}) if homes[name] else table
        section[name] = list(value) if isinstance(value, tuple) else value
    return from_table(RunSettings, table)


def changed_fixed(before: RunSettings, after: RunSettings) -> list[str]:
    """Return the names of settings that differ although a resumed run must keep them."""
    first, second = to_table(before), to_table(after)
    changed: list[str] = []
    for section, name, item in flat_settings():
        old = (first.get(section, {}) if section else first).get(name)
        new = (second.get(section, {}) if section else second).get(name)
        if item.metadata.get("fixed") and old != new:
            changed.append(name)
    return changed


MAX_CONFIG_BYTES = 2**20  # of a settings file; one of ours has two thousand
MAX_NAME_PARTS = 64  # of a dotted name, for which tomllib takes time and memory by the square
_BETWEEN_NAMES = re.compile(r"[^\w.\"'\- \t]")


def format_settings(settings: RunSettings) -> str:
    """Return settings as TOML."""
    return tomli_w.dumps(to_table(settings))


def parse_settings(text: str, where: str) -> RunSettings:
    """Return the settings that a TOML text holds.

    Raises:
        SettingsError: If it is not TOML, or a key or a value is not one of ours.
    """
    n_parts = 1 + max(part.count(".") for part in _BETWEEN_NAMES.split(text))
    if n_parts > MAX_NAME_PARTS:
        raise SettingsError(
            f"{where} is no settings file: it has a name of {n_parts:,} parts, more than "
            f"{MAX_NAME_PARTS} (MAX_NAME_PARTS in archlearn.training.config)"
        )
    try:
        table = tomllib.loads(text)
    except ValueError as error:  # not only TOMLDecodeError: Python limits the digits of a number
        raise SettingsError(f"{where} is not TOML: {error}") from error
    except RecursionError:
        raise SettingsError(f"{where} is no settings file: it is nested too deep") from None
    record = table.get("record")
    if isinstance(record, dict) and "tensorboard" in record:  # in files of earlier runs
        record |= {"logger": "tensorboard"} if record.pop("tensorboard") else {}
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
            "(MAX_CONFIG_BYTES in archlearn.training.config)"
        )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"the settings {path} are not UTF-8 (byte {error.start} is {content[error.start]:#x}); "
            "save them as UTF-8, which TOML asks for"
        ) from error
    return parse_settings(text, str(path))


def check_ranges(settings: RunSettings) -> None:
    """Refuse numbers with which no run can go well.

    Raises:
        SettingsError: If a number lies outside its range, or gates could never move.
    """
    for section, name, item in flat_settings():
        value = getattr(getattr(settings, section) if section else settings, name)
        within: Range | None = item.metadata["within"]
        if within is not None and value is not None and not within.holds(value):
            option = name.replace("_", "-")
            raise SettingsError(f"{name} is {value}; give --{option} {within.text}")
    gates = settings.gates
    if gates.learn != "nothing" and gates.start_after + gates.freeze_for >= 1:
        raise SettingsError(
            f"start_after is {gates.start_after:g} and freeze_for {gates.freeze_for:g}, so gates "
            "would never move; let both together be less than 1, or train without gates: "
            "--learn nothing"
        )
