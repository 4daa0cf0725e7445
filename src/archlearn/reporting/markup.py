"""Only what this package wrote is markup; every other value is escaped on its way in."""

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from string import Template


@dataclass(frozen=True, slots=True)
class Html:
    """Text that is safe to stand in a page as it is."""

    text: str


def fill(template: str, **values: object) -> Html:
    """Return the template with each `$name` replaced, escaped unless it is `Html` already."""
    return Html(Template(template).substitute({name: _safe(v) for name, v in values.items()}))


def join(parts: Iterable[Html], between: str = "\n") -> Html:
    """Return the parts one behind the other."""
    return Html(between.join(part.text for part in parts))


def _safe(value: object) -> str:
    return value.text if isinstance(value, Html) else escape(str(value))
