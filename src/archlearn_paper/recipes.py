"""How the networks of all experiments are trained: every tuned constant.

They were settled on validation data; the test data had no part in it. `Terms` are the paper's
penalty at a price, `learn_to_budget` is the library's `GateOptimizer` at a number of parameters.
"""

from dataclasses import dataclass, replace
from typing import Literal

from archlearn.gating.penalty_prices import PriceName
from archlearn.training.defaults import TRAVEL
from archlearn.training.settings import (
    GateSettings,
    OptimiserSettings,
    RunSettings,
    StrengthSettings,
)
from archlearn_paper.experiment import Scale

LearntParts = Literal["all", "width"]

RATE_OF_AN_EXAMPLE = 0.04 / 250
"""Rate of the weights by example in a batch."""
PLAIN_RATE_OF_AN_EXAMPLE = 2 * RATE_OF_AN_EXAMPLE
"""The large network without gates does best with twice that. So do networks with gates, as was
found on validation data after most experiments had been made: smaller and more accurate."""
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
SMALL_WEIGHT_DECAY = 2 * WEIGHT_DECAY
"""Very small networks come out smaller and more accurate with twice that
(`results/choosing_prices_3.jsonl`)."""
WARMUP_EPOCHS = 3.0
MNIST_TRAIN = 60_000
START_AFTER = 0.04
"""Part of the run before gates move: early enough to find small networks."""
FREEZE_FOR = 0.6
"""Last part of the run, in which gates stand still, the network is compact already and weights
settle. Small networks gain from training for long."""
DEPTH_SHARE = 1.0
"""Depth strengths as a part of the width ones. At the paper's tenth the loss holds the
non-linearity of the wide layer."""
VALIDATION = 1 / 12
"""Part of the train data on which something is chosen, with seeds that count nowhere else."""
CHOICE_SEEDS = (1000, 1001)
COST_POWERS = (0.0, 0.5, 1.0, 1.5)
"""Powers of a channel's cost that its earnings are divided by under a budget: 1.5 is the library's
default, at 0 every neuron costs the same, as in the paper."""
BUDGET_START_AFTER, BUDGET_FREEZE_FOR = 0.1, 0.5
"""Parts of a run to a budget before gates decide and after: the better end on validation data in
the grid of `results/learning.md`."""
FINE_TUNING = 0.3
"""Epochs of fine-tuning as a part of those of training, which come before."""
FINE_TUNING_RATE_OF_AN_EXAMPLE = RATE_OF_AN_EXAMPLE / 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """What is learnt of the architecture and at which price.

    Attributes:
        cost: The paper's lambda 3.
        ratio: Lambda 3 as a part of lambda 1.
        gate_rate: None follows from the steps and the cost.
        start_after: Part of the run before gates move.
        freeze_for: Last part of the run in which they stand still.
        width_start: Where width gates start.
        depth_start: Where depth gates start; from one half on, layers start linear.
        largest_step: Furthest a gate moves in one step; 0 sets no bound.
        rate: Of the weights, by example in a batch.
        weight_decay: Of the weights.
    """

    cost: float
    learn: LearntParts = "width"
    price: PriceName = "neurons"
    ratio: float = 0.4
    depth_share: float = DEPTH_SHARE
    gate_rate: float | None = None
    start_after: float = START_AFTER
    freeze_for: float = FREEZE_FOR
    width_start: float = 0.55
    depth_start: float = 0.45
    largest_step: float = 0.0
    leave: tuple[str, ...] = ()
    rate: float = RATE_OF_AN_EXAMPLE
    weight_decay: float = WEIGHT_DECAY


def baseline(scale: Scale, seed: int) -> RunSettings:
    """Return the settings of the large network that nothing of is learnt but weights."""
    return train_plainly(scale, seed, rate=PLAIN_RATE_OF_AN_EXAMPLE)


def train_plainly(
    scale: Scale,
    seed: int,
    *,
    model: str = "lenet",
    rate: float = RATE_OF_AN_EXAMPLE,
    weight_decay: float = WEIGHT_DECAY,
) -> RunSettings:
    """Return the settings of training any network from scratch, at the rate of those learnt."""
    return RunSettings(
        model=model,
        data=scale.data,
        seed=seed,
        epochs=scale.epochs,
        batch_size=scale.batch_size,
        validation=scale.validation,
        limit=scale.limit,
        optimiser=_optimiser(scale, rate, weight_decay),
        gates=GateSettings(learn="nothing"),
    )


def learn_architecture(
    scale: Scale,
    seed: int,
    terms: Terms,
    *,
    model: str = "lenet",
) -> RunSettings:
    """Return the settings of training that learns the architecture on the given terms."""
    plain = train_plainly(
        scale, seed, model=model, rate=terms.rate, weight_decay=terms.weight_decay
    )
    gates = GateSettings(
        learn=terms.learn,
        leave=terms.leave,
        gate_rate=terms.gate_rate,
        start_after=terms.start_after,
        freeze_for=terms.freeze_for,
        width_start=terms.width_start,
        depth_start=terms.depth_start,
        largest_step=terms.largest_step,
    )
    strengths = StrengthSettings(
        width_cost=terms.cost,
        ratio=terms.ratio,
        depth_share=terms.depth_share,
        price=terms.price,
    )
    return replace(plain, gates=gates, strengths=strengths)


def learn_to_budget(
    scale: Scale,
    seed: int,
    budget: int,
    cost_power: float,
    *,
    learn: LearntParts = "all",
    model: str = "lenet",
    rate: float = PLAIN_RATE_OF_AN_EXAMPLE,
    weight_decay: float = WEIGHT_DECAY,
) -> RunSettings:
    """Return the settings of training that learns which parameters stay, of a number given."""
    plain = train_plainly(scale, seed, model=model, rate=rate, weight_decay=weight_decay)
    gates = GateSettings(
        learn=learn,
        budget=(f"parameters={budget}",),
        gate_schedule=(f"cost_power={cost_power:g}",),
        start_after=BUDGET_START_AFTER,
        freeze_for=BUDGET_FREEZE_FOR,
    )
    return replace(plain, gates=gates)


def choose_gate_rate(scale: Scale, terms: Terms) -> float:
    """Return the rate that the engine would derive, for runs of other terms to have the same."""
    n_train = scale.limit or MNIST_TRAIN * (1 - scale.validation)
    n_steps = scale.epochs * (n_train // scale.batch_size)
    return TRAVEL / (terms.cost * n_steps * (1 - terms.start_after - terms.freeze_for))


def fine_tune(scale: Scale, seed: int) -> RunSettings:
    """Return the settings of training a network further that was made smaller."""
    shorter = replace(scale, epochs=max(1, round(FINE_TUNING * scale.epochs)))
    return train_plainly(shorter, seed, rate=FINE_TUNING_RATE_OF_AN_EXAMPLE)


def _optimiser(scale: Scale, rate: float, weight_decay: float) -> OptimiserSettings:
    return OptimiserSettings(
        learning_rate=rate * scale.batch_size,
        momentum=MOMENTUM,
        weight_decay=weight_decay,
        warmup_epochs=min(WARMUP_EPOCHS, scale.epochs / 10),
    )
