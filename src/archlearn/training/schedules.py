"""How rates change over a run: warm-up and cosine for weights, on and off for gates."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """The rates at every step of a run.

    Attributes:
        n_steps: Steps of the whole run.
        n_warmup: Steps in which the rate of the weights rises from near zero.
        gates_from: First step at which gates move.
        gates_until: First step at which they stand still again.
    """

    n_steps: int
    n_warmup: int
    gates_from: int
    gates_until: int
    learning_rate: float
    gate_rate: float

    def weight_rate(self, step: int) -> float:
        """Return the rate of the weights at a step, counted from 0."""
        if step < self.n_warmup:
            return self.learning_rate * (step + 1) / self.n_warmup
        done = (step - self.n_warmup) / max(1, self.n_steps - self.n_warmup)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    def gate_rate_at(self, step: int) -> float:
        """Return the rate of the gates at a step: all or nothing."""
        return self.gate_rate if self.gates_from <= step < self.gates_until else 0.0
