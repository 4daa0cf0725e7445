"""Format numbers for reading: counts, percentages, durations, bytes."""

import math

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_ABSENT = "–"


def format_count(value: float | None) -> str:
    """Write 431080 as `431,080`."""
    return _ABSENT if value is None else f"{round(value):,}"


def format_short_count(value: float) -> str:
    """Write 431080 as `431k`, three digits at most, for the ticks of an axis."""
    shown = float(f"{value:.3g}")
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if shown >= size:
            return f"{shown / size:.4g}{letter}"
    return f"{shown:.3g}"


def format_percent(share: float | None, digits: int = 2) -> str:
    """Write 0.9932 as `99.32 %`, with a space that does not break."""
    return _ABSENT if share is None else f"{100 * share:.{digits}f}\u00a0%"


def format_ratio(before: float | None, after: float | None) -> str:
    """Write how many times smaller `after` is: `22.6×`."""
    if not before or not after:
        return _ABSENT
    ratio = before / after
    return f"{ratio:,.0f}×" if ratio >= 100 else f"{ratio:.3g}×"


def format_number(value: float | None) -> str:
    """Write any number with four digits; very small and very large ones as powers of ten."""
    if value is None:
        return _ABSENT
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if 3 <= exponent < 15 or (value == round(value) and exponent < 3):
        return f"{value:,.0f}"
    if -4 <= exponent < 3:
        return f"{value:.4g}"
    digits, _, power = f"{value:.2e}".partition("e")
    return f"{float(digits):.3g}\u00a0×\u00a010{str(int(power)).translate(_SUPERSCRIPTS)}"


def format_duration(seconds: float | None) -> str:
    """Write 181.2 seconds as `3 min 1 s`."""
    if seconds is None:
        return _ABSENT
    if seconds < 59.95:
        return f"{seconds:.3g}\u00a0s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}\u00a0min {rest}\u00a0s"
    return f"{minutes // 60}\u00a0h {minutes % 60}\u00a0min"


def format_bytes(n_bytes: float) -> str:
    """Write 76460 as `76.5 kB`."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if float(f"{n_bytes:.3g}") >= size:
            return f"{float(f'{n_bytes:.3g}') / size:.4g}\u00a0{unit}"
    return f"{n_bytes:.0f}\u00a0bytes"
