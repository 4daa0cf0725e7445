"""Defaults of a run, each with its reason: learning rates, schedules, strengths.

A gate moves by rate x strength at each step, so what decides whether gates can settle is the
product of rate, strength and number of steps; that product is held constant here. The width
cost is such that all neurons together cost a fixed part of the loss of a guess, as the paper's
supplement advises: ten times the neurons, a tenth of the cost. `docs/defaults.md` shows what the
same defaults do on several data sets.
"""

import math
from dataclasses import dataclass, replace

from archlearn.errors import SettingsError
from archlearn_cli.data.dataset import Dataset
from archlearn_cli.training.settings import RunSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """The rates at every step of a run; in the first ones that of the weights rises from near zero.

    Gates move from a step on until, at another, they stand still again.
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


COST_OF_ALL_NEURONS = 0.1
"""Width cost x number of neurons, as a part of the loss of a guess."""
TRAVEL = 1.5
"""Gate rate x width cost x steps in which gates move: how far cost alone could push a gate."""
MOST_TRAVEL_A_STEP = 0.003
"""Short runs travel less: gates that must decide in a few steps follow the noise of single batches.
No run of 834 steps or more is touched by this."""
ENOUGH_STEPS = 4400
MOST_EPOCHS = 200
"""Few data passed over more often than this are learnt by heart."""
_BATCH = 125
_LARGE_BATCH = 500
"""From here on the rate does not grow with the batch: LeNet dies at eight times the usual rate."""
_FEWEST_BATCHES = 10
_RATES = {"sgd": 0.02, "adam": 1e-3}


def derive_sizes(settings: RunSettings, n_train: int, n_parts: int) -> RunSettings:
    """Return settings with batch size, epochs, rate and warm-up filled in.

    Each of `n_parts`, processes times accumulated parts, has one example of a batch at least.
    """
    batch = settings.batch_size
    if batch is None:
        batch = max(n_parts, min(_BATCH, n_train // _FEWEST_BATCHES))
    steps = steps_per_epoch(n_train, batch)
    epochs = settings.epochs or min(MOST_EPOCHS, math.ceil(ENOUGH_STEPS / steps))
    optimizer = settings.optimizer
    rate = optimizer.learning_rate
    if rate is None:
        rate = _RATES[optimizer.optimizer]
        if optimizer.optimizer == "sgd":
            rate *= min(max(batch, _BATCH), _LARGE_BATCH) / _BATCH
    warmup = optimizer.warmup_epochs
    if warmup is None:
        warmup = min(max(1.0, 0.05 * epochs), 0.1 * epochs)
    optimizer = replace(optimizer, learning_rate=rate, warmup_epochs=warmup)
    return replace(settings, batch_size=batch, epochs=epochs, optimizer=optimizer)


def steps_per_epoch(n_train: int, batch_size: int) -> int:
    """Return the number of whole batches; what is left over waits for another epoch's order."""
    return max(1, n_train // batch_size)


def loss_of_a_guess(dataset: Dataset) -> float:
    """Return the loss of a network that knows nothing: ln(classes), or the variance 1."""
    return 1.0 if dataset.task == "regression" else math.log(max(2, dataset.n_outputs))


def derive_gate_optimizer(settings: RunSettings) -> RunSettings:
    """Return settings that say how gates learn: to a budget, unless a price is given."""
    gates, strengths = settings.gates, settings.strengths
    priced = strengths.width_cost, gates.gate_rate, gates.travel
    asked = gates.gate_optimizer
    if gates.learn == "nothing":
        return settings
    if asked is None:
        asked = "budget" if gates.budget or all(term is None for term in priced) else "penalty"
    if gates.budget and (asked == "penalty" or strengths.width_cost is not None):
        raise SettingsError(
            "a budget and a price were asked for, and each says when to stop; leave out --budget, "
            "or --width-cost and --gate-optimizer penalty"
        )
    if gates.multiple_of > 1 and asked == "penalty":
        raise SettingsError(
            f"multiple_of is {gates.multiple_of}, but gates learn by a penalty, which closes them "
            "one by one; give a budget, or --gate-optimizer budget"
        )
    rate = 0.0 if asked == "budget" else gates.gate_rate
    return replace(settings, gates=replace(gates, gate_optimizer=asked, gate_rate=rate))


def derive_strengths(settings: RunSettings, dataset: Dataset, n_neurons: int) -> RunSettings:
    """Return settings, whose sizes are known, with width cost and gate rate filled in."""
    strengths, gates = settings.strengths, settings.gates
    if gates.gate_optimizer == "budget":
        return settings
    cost = strengths.width_cost
    if cost is None:
        cost = COST_OF_ALL_NEURONS * loss_of_a_guess(dataset) / max(1, n_neurons)
    rate = gates.gate_rate
    if rate is None:
        n_steps = count_steps(settings, len(dataset.train))
        active = n_steps * max(0.0, 1.0 - gates.start_after - gates.freeze_for)
        travel = gates.travel
        if travel is None:  # whoever sets a price has gates pushed all the way
            short = strengths.width_cost is None
            travel = min(TRAVEL, MOST_TRAVEL_A_STEP * active) if short else TRAVEL
        rate = travel / (cost * active) if cost > 0 and active > 0 else 0.0
    return replace(
        settings,
        strengths=replace(strengths, width_cost=cost),
        gates=replace(gates, gate_rate=rate),
    )


def count_steps(settings: RunSettings, n_train: int) -> int:
    """Return the steps of the whole run."""
    assert settings.epochs is not None
    assert settings.batch_size is not None
    return settings.epochs * steps_per_epoch(n_train, settings.batch_size)


def make_schedule(settings: RunSettings, n_train: int) -> Schedule:
    """Return the rates over a run whose settings are all filled in."""
    optimizer, gates = settings.optimizer, settings.gates
    assert settings.epochs is not None
    assert optimizer.learning_rate is not None
    assert optimizer.warmup_epochs is not None
    assert gates.gate_rate is not None
    n_steps = count_steps(settings, n_train)
    return Schedule(
        n_steps=n_steps,
        n_warmup=round(optimizer.warmup_epochs * n_steps / settings.epochs),
        gates_from=round(gates.start_after * n_steps),
        gates_until=round((1.0 - gates.freeze_for) * n_steps),
        learning_rate=optimizer.learning_rate,
        gate_rate=gates.gate_rate,
    )
