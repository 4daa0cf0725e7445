"""Colours of figures and page, for light and for dark mode.

The series are told apart by people with any kind of colour vision (after Okabe and Ito), and by
their dashes besides.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Colour:
    """A role, and its shade on a light and on a dark page."""

    role: str
    light: str
    dark: str


INK = Colour("ink", "#1a1d21", "#e8eaed")
MUTED = Colour("muted", "#59616b", "#a3abb5")
GRID = Colour("grid", "#dfe3e8", "#33393f")
GHOST = Colour("ghost", "#e9edf1", "#2a2f35")
GHOST_EDGE = Colour("ghost-edge", "#aab3bd", "#626b75")
SURFACE = Colour("surface", "#fefefe", "#1b1e22")
PAGE = Colour("page", "#f6f7f9", "#121416")
LINK = Colour("link", "#0b5fa5", "#79bdf5")
WARNING = Colour("warning", "#8a5200", "#f0b860")
SERIES = (
    Colour("series-1", "#0072b2", "#56b0ec"),
    Colour("series-2", "#d05a00", "#ff9254"),
    Colour("series-3", "#00825d", "#41cfa0"),
    Colour("series-4", "#b24c8c", "#e79bc8"),
    Colour("series-5", "#9a6b00", "#e6bb4e"),
    Colour("series-6", "#4b5a9e", "#a9b5f2"),
)
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1)), (0, (8, 2)))
ALL = (INK, MUTED, GRID, GHOST, GHOST_EDGE, SURFACE, PAGE, LINK, WARNING, *SERIES)


def write_variables(*, dark: bool) -> str:
    """Return the declarations that give each role its shade in a style sheet."""
    shades = {colour.role: colour.dark if dark else colour.light for colour in ALL}
    return " ".join(f"--{role}: {shade};" for role, shade in shades.items())
