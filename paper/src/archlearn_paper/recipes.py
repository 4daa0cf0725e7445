"""How the networks of all experiments are trained: every tuned constant.

They were settled on validation data; the test data had no part in it. `learn_architecture` is the
paper's penalty at a price, `learn_to_budget` the library's `GateOptimizer` at a number of
parameters; `fix_width` learns which neurons stay of a number given; `reinitialise` gives a learnt
architecture fresh weights.
"""

import copy
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Literal

import torch
from torch import Tensor, nn

from archlearn.errors import InputError
from archlearn.gating.parameters import depth_gates, width_gates
from archlearn.nn.functional import THRESHOLD
from archlearn_cli.training.defaults import TRAVEL
from archlearn_cli.training.settings import GateSettings, OptimizerSettings, RunSettings, override
from archlearn_paper.experiment import Scale

LearntParts = Literal["all", "width"]

RATE_OF_AN_EXAMPLE = 0.04 / 250
"""Rate of the weights by example in a batch."""
PLAIN_RATE_OF_AN_EXAMPLE = 2 * RATE_OF_AN_EXAMPLE
"""The large network without gates does best with twice that. So do networks with gates, as was
found on validation data after most experiments had been made: smaller and more accurate."""
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
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


def read_paper(table: str) -> dict[str, dict[str, Any]]:
    """Return the rows of a table of the paper by their names, as `paper.toml` has them."""
    text = resources.files("archlearn_paper").joinpath("paper.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)[table]


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
        optimizer=OptimizerSettings(
            learning_rate=rate * scale.batch_size,
            momentum=MOMENTUM,
            weight_decay=weight_decay,
            warmup_epochs=min(WARMUP_EPOCHS, scale.epochs / 10),
        ),
        gates=GateSettings(learn="nothing"),
    )


def learn_architecture(
    scale: Scale,
    seed: int,
    cost: float,
    *,
    model: str = "lenet",
    rate: float = RATE_OF_AN_EXAMPLE,
    **changed: Any,
) -> RunSettings:
    """Return the settings of training that learns the architecture by the paper's penalty.

    `cost` is its lambda 3, `rate` that of the weights by example in a batch; `changed` are settings
    that are not the recipe's.
    """
    recipe = {
        "learn": "width",
        "width_cost": cost,
        "depth_share": DEPTH_SHARE,
        "start_after": START_AFTER,
        "freeze_for": FREEZE_FOR,
    }
    return override(train_plainly(scale, seed, model=model, rate=rate), recipe | changed)


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


def choose_gate_rate(scale: Scale, cost: float, freeze_for: float = FREEZE_FOR) -> float:
    """Return the rate that follows from a cost, for runs of other settings to have the same."""
    n_train = scale.limit or MNIST_TRAIN * (1 - scale.validation)
    n_steps = scale.epochs * (n_train // scale.batch_size)
    return TRAVEL / (cost * n_steps * (1 - START_AFTER - freeze_for))


def fine_tune(scale: Scale, seed: int) -> RunSettings:
    """Return the settings of training a network further that was made smaller."""
    shorter = replace(scale, epochs=max(1, round(FINE_TUNING * scale.epochs)))
    return train_plainly(shorter, seed, rate=FINE_TUNING_RATE_OF_AN_EXAMPLE)


_JUST_BELOW = THRESHOLD - 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """The architecture that is given (FFW, fixed final width): neurons that stay, by layer.

    A layer not named is left to learning; that of a linear one loses its activation.
    """

    widths: Mapping[str, int]
    linear: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Holds the gates of a run to given numbers; called after each epoch.

    Gates learn as ever, and are then projected onto the nearest values of which so many are open.
    The number falls from all to the given one over the first half of the time in which gates
    move, from the first epoch to the last, so that there is time to find out which are useful.
    """

    target: Given
    first: float
    last: float

    def __call__(self, model: nn.Module, epoch: int) -> None:
        """Change the gates in place."""
        done = min(1.0, max(0.0, (epoch - self.first) / max(1.0, self.last - self.first)))
        for name, gate in width_gates(model).items():
            if name in self.target.widths:
                n_kept = count_kept(gate.numel(), self.target.widths[name], done)
                gate.copy_(project(gate, n_kept))
        for name, gate in depth_gates(model).items():
            if name in self.target.linear and done > 0:
                gate.fill_(1.0)


def fix_width(target: Given, settings: RunSettings) -> Holder:
    """Return what holds the gates of a run with these settings to the given numbers."""
    assert settings.epochs is not None
    first = settings.gates.start_after * settings.epochs
    stop = (1.0 - settings.gates.freeze_for) * settings.epochs
    return Holder(target=target, first=first, last=(first + stop) / 2)


def count_kept(n_all: int, n_final: int, done: float) -> int:
    """Return how many gates stay open when a part of the way from all to the final is done."""
    return n_final + round((n_all - n_final) * (1.0 - done))


def project(gate: Tensor, n_kept: int) -> Tensor:
    """Return the nearest gates of which exactly `n_kept` are open.

    Of equal gates the first ones stay. Nothing is read back from the device.
    """
    order = torch.argsort(gate.detach(), descending=True, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=gate.device)
    opened = gate.detach().clamp_min(THRESHOLD)
    closed = gate.detach().clamp_max(_JUST_BELOW)
    return torch.where(rank < n_kept, opened, closed)


def reinitialise(model: nn.Module, seed: int) -> nn.Module:
    """Return a copy of a model with the weights and buffers of a fresh one.

    Every layer's own `reset_parameters` is called, in the order of the modules, with torch's
    generators seeded and afterwards as they were.
    """
    for name, module in model.named_modules():
        parameters = list(module.parameters(recurse=False))
        if parameters and not hasattr(module, "reset_parameters"):
            raise InputError(
                f"{name or 'the model'!r}, a {type(module).__name__}, has parameters but no "
                "reset_parameters(); give its class one"
            )
    network = copy.deepcopy(model)
    devices = [p.device for p in network.parameters() if p.is_cuda][:1]
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        for module in network.modules():
            reset: Any = getattr(module, "reset_parameters", None)
            if reset is not None:
                reset()
    return network
