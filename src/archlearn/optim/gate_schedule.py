"""`GateSchedule`: when the gates of a run decide, and by what."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from archlearn.costs import power_of
from archlearn.errors import InputError, lies_in


@dataclass(frozen=True, kw_only=True, slots=True)
class GateSchedule:
    """When gates decide, and by what. The defaults were chosen on validation data.

    Attributes:
        begin: The part of the run after which the first gate may close.
        end: The part of the run after which all gates stand still, and weights alone learn.
        power: How the budget falls: with this power of the time that is left.
        decisions: How often gates decide in between.
        memory: The decay of the mean square of gradients, by step.
        stay: How many times more a closed channel must earn than an open one to take its place.
        stay_linear: The same for a branch that is closed and, with a `width_cost`, for a layer that
            has become linear.
        depth_power: How far plain layers merge under a budget: until halfway between `begin` and
            `end` the cost falls to start * (budget / start) ** depth_power. With 0 none does that
            need not.
        branch_discount: What a branch's earnings are divided by; above 1 whole blocks go sooner, so
            that networks of the same cost become shallower, and faster, instead of narrower.
        patience: After how many decisions in a row a closed channel is closed for good.
        cuts: How often `can_shrink` says yes while gates decide; once more when they stand still.
            torch.compile compiles anew behind each.
        signal: What a gate earns by: the mean square of its gradient, its mean size, or the signed
            gradient of the paper (for comparison; at rest it does no better than chance).
        cost_power: The power of its cost that a channel's earnings are divided by; with 0 costs do
            not count. Left out, what suits the cost that the budget is on; the mean of several.
        size_power: The power of the number of neurons that a gate stands for (one of a stream, of
            heads, of a branch) that its earnings are multiplied by. Left out, `cost_power - 1`: a
            gate of many neurons goes when they would go one by one; with less it goes sooner.
    """

    begin: float = 0.1
    end: float = 0.7
    power: float = 3.0
    decisions: int = 200
    memory: float = 0.995
    stay: float = 1.2
    stay_linear: float = 4.0
    depth_power: float = 0.5
    branch_discount: float = 1.0
    patience: int = 20
    cuts: int = 5
    signal: Literal["square", "size", "signed"] = "square"
    cost_power: float | None = None
    size_power: float | None = None

    def __post_init__(self) -> None:
        if self.signal not in ("square", "size", "signed"):
            raise InputError(f"signal is {self.signal!r}; choose square, size or signed")
        if not lies_in(self.depth_power, 0, 1):
            raise InputError(f"depth_power is {self.depth_power!r}; give a power from 0 to 1")
        are_parts = lies_in(self.begin, 0, 1) and lies_in(self.end, 0, 1)
        if not are_parts or self.begin >= self.end:
            raise InputError(
                f"begin is {self.begin!r} and end {self.end!r}; both are parts of the run, and the "
                "first comes before the second"
            )
        if not lies_in(self.memory, 0, 1) or self.memory == 1:
            raise InputError(f"memory is {self.memory!r}; a decay is from 0 to below 1")
        bounds = {"power": 0, "decisions": 1, "stay": 1, "stay_linear": 1, "cost_power": 0}
        bounds |= {"branch_discount": 1, "patience": 1, "cuts": 0, "size_power": 0}
        for name, least in bounds.items():
            value = getattr(self, name)
            is_left_out = value is None and name in ("cost_power", "size_power")
            if not is_left_out and not lies_in(value, least, math.inf):
                raise InputError(f"{name} is {value!r}; give a number from {least} on")

    def powers(self, budget: Iterable[str]) -> tuple[float, float]:
        """Return the powers of cost and of size, under a budget on these costs."""
        cost_power = self.cost_power
        if cost_power is None:
            cost_power = statistics.fmean(power_of(name) for name in budget)
        size_power = max(0.0, cost_power - 1.0) if self.size_power is None else self.size_power
        return cost_power, size_power
