"""Numbers of a run lie in ranges; one outside is refused before anything is loaded or written."""

import math
from dataclasses import dataclass

from archlearn.errors import SettingsError
from archlearn.training.config import flat_settings
from archlearn.training.settings import RunSettings


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `least` to `most`, and how to say so."""

    text: str
    least: float = 0.0
    most: float = math.inf
    least_is_in: bool = True
    most_is_in: bool = False

    def holds(self, value: float) -> bool:
        """Return whether a number lies inside; what is no number never does."""
        above = value >= self.least if self.least_is_in else value > self.least
        return above and (value <= self.most if self.most_is_in else value < self.most)


_COUNT = Range("a whole number from 1 on", least=1)
_POSITIVE = Range("a number above 0", least_is_in=False)
_FROM_ZERO = Range("a number from 0 on")
_BELOW_ONE = Range("a number from 0 to below 1", most=1.0)
_UP_TO_ONE = Range("a number from 0 to 1", most=1.0, most_is_in=True)

RANGES = {
    "epochs": _COUNT,
    "batch_size": _COUNT,
    "validation": _BELOW_ONE,
    "limit": _COUNT,
    "learning_rate": _POSITIVE,
    "momentum": _BELOW_ONE,
    "weight_decay": _FROM_ZERO,
    "clip_norm": _FROM_ZERO,
    "warmup_epochs": _FROM_ZERO,
    "gate_rate": _FROM_ZERO,
    "largest_step": _FROM_ZERO,
    "start_after": _UP_TO_ONE,
    "freeze_for": _UP_TO_ONE,
    "width_start": _UP_TO_ONE,
    "width_spread": _UP_TO_ONE,
    "depth_start": _UP_TO_ONE,
    "travel": _FROM_ZERO,
    "width_cost": _FROM_ZERO,
    "depth_share": _FROM_ZERO,
    "accumulate": _COUNT,
    "threads": _COUNT,
    "checkpoint_seconds": _FROM_ZERO,
}


def check_ranges(settings: RunSettings) -> None:
    """Refuse numbers with which no run can go well.

    Raises:
        SettingsError: If a number lies outside its range, or gates could never move.
    """
    for section, name, _ in flat_settings():
        value = getattr(getattr(settings, section) if section else settings, name)
        if name in RANGES and value is not None and not RANGES[name].holds(value):
            option = name.replace("_", "-")
            raise SettingsError(f"{name} is {value}; give --{option} {RANGES[name].text}")
    gates = settings.gates
    if gates.learn != "nothing" and gates.start_after + gates.freeze_for >= 1:
        raise SettingsError(
            f"start_after is {gates.start_after:g} and freeze_for {gates.freeze_for:g}, so gates "
            "would never move; let both together be less than 1, or train without gates: "
            "--learn nothing"
        )
