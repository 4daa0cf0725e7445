"""Checks of a results page: what was to be found, against what was."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing that an experiment must show: what was to be found, and what was."""

    what: str
    measured: str
    bound: str
    met: bool


def at_least(
    what: str, spread: Mapping[str, Any], bound: float, *, unit: str = " %", digits: int = 3
) -> Check:
    """Return whether a mean less one error of it reaches a bound; of one run nobody knows."""
    measured = write_with_error(spread, "−", digits) + unit
    met = reaches(spread, bound)
    return Check(what=what, measured=measured, bound=f"≥ {bound:g}{unit}", met=met)


def at_most(
    what: str, spread: Mapping[str, Any], bound: float, *, unit: str = " %", digits: int = 3
) -> Check:
    """Return whether a mean plus one error of it stays within a bound; of one run nobody knows."""
    measured = write_with_error(spread, "+", digits) + unit
    met = spread["error"] is not None and spread["mean"] + spread["error"] <= bound
    return Check(what=what, measured=measured, bound=f"≤ {bound:g}{unit}", met=met)


def reaches(spread: Mapping[str, Any], bound: float) -> bool:
    """Return whether a mean less one error of it reaches a bound."""
    return spread["error"] is not None and spread["mean"] - spread["error"] >= bound


def write_with_error(spread: Mapping[str, Any], sign: str = "−", digits: int = 3) -> str:
    """Write a mean and the error that is taken off or added: `99.150 − 0.031`."""
    mean = f"{spread['mean']:.{digits}f}"
    if spread["error"] is None:
        return f"{mean} (one run: its error is unknown)"
    return f"{mean} {sign} {spread['error']:.{digits}f}"
