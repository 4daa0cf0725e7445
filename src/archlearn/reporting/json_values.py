"""A value from a file has the type that was expected of it, or counts as absent."""

import math
from collections.abc import Mapping
from typing import TypeGuard

Table = Mapping[str, object]
"""An object read from JSON or TOML."""


def is_table(value: object) -> TypeGuard[Table]:
    """Say whether a value is a JSON object or a TOML table."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    """Say whether a value is a JSON list or a TOML array."""
    return isinstance(value, list)


def as_table(value: object) -> Table:
    """Return a JSON object as it is, and an empty one for anything else."""
    return value if is_table(value) else {}


def as_items(value: object) -> tuple[object, ...]:
    """Return the items of a JSON list, and nothing for anything else."""
    return tuple(value) if is_list(value) else ()


def as_number(value: object) -> float | None:
    """Return a finite number; `true`, `"3"`, NaN and infinities are not numbers here."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def as_text(value: object) -> str:
    """Return a string as it is, and an empty one for anything else."""
    return value if isinstance(value, str) else ""


def as_count(value: object) -> int | None:
    """Return a whole number of things, or None where there is none to return."""
    number = as_number(value)
    return None if number is None else round(number)


def counts_by_name(value: object) -> dict[str, int]:
    """Return the entries of a JSON object that are counts, in the order of the file."""
    counts = {name: as_count(entry) for name, entry in as_table(value).items()}
    return {name: count for name, count in counts.items() if count is not None}
