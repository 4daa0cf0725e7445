"""How CaffeNet is trained, pretrained and learnt smaller: every constant that was chosen.

The reference is trained first. Every method then starts from that same reference and has the same
number of epochs, the same rates and the same data.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch

from archlearn.errors import SettingsError
from archlearn.training.settings import (
    GateSettings,
    HardwareSettings,
    OptimiserSettings,
    RunSettings,
    StrengthSettings,
)
from archlearn_paper.experiment import Scale

REFERENCE, FURTHER, ALL = "reference", "reference, trained further", "AL-all"
LEARNING_RATE = 0.02
"""Of the reference, at batches of 256; what starts from it has half of that."""
FURTHER_RATE = 0.01
WEIGHT_DECAY = 5e-4
START_AFTER = 0.0
FREEZE_FOR = 0.5
"""Half of the epochs are the compact network's, which has lost neurons to make up for."""
WIDTH_START = 0.51
WIDTH_SPREAD = 0.15
"""Gates start open, anywhere from 0.51 to 0.66, and so close one after the other."""
TRAVEL = 0.5
CaffeNetPrice = Literal["neurons", "parameters"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseStudy:
    """How large the case study is made.

    Attributes:
        further: Epochs of every method, from the trained reference on.
        largest_step: Furthest a gate moves in one step. Channels of convolutions feel much more
            noise than neurons; without a bound it alone would close them.
        classes: The first so many; None takes all.
    """

    model: str
    side: int
    epochs: int
    further: int
    batch_size: int
    validation: float
    largest_step: float
    limit: int | None = None
    classes: int | None = None


FULL_STUDY = CaseStudy(
    model="caffenet",
    side=227,
    epochs=12,
    further=4,
    batch_size=256,
    validation=0.05,
    largest_step=0.003,
)
QUICK_STUDY = CaseStudy(
    model="caffenet:0.125",
    side=67,
    epochs=6,
    further=4,
    batch_size=50,
    validation=0.1,
    largest_step=0.05,
    limit=1500,
    classes=10,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CaffeNetTerms:
    """What a row learns of the architecture, and at which price.

    Attributes:
        leave: Layers that are left alone.
        cost: CaffeNetPrice of all neurons together, as a part of the loss of a guess.
        others: Prices that are tried next, one by one, while the row misses what it must be.
        least: Share of the reference's parameters that the network must keep.
        most: Share that it may keep. Where the price leads out of this window, the cut through
            the gates' values goes to its edge.
        price: What a neuron is charged by.
        travel: How far cost alone could push a gate.
        relaxes: Whether dropout becomes less with the connections, once gates stand still.
    """

    leave: tuple[str, ...]
    cost: float
    others: tuple[float, ...]
    least: float
    most: float
    travel: float = TRAVEL
    price: CaffeNetPrice = "neurons"
    learn: Literal["all", "width"] = "width"
    relaxes: bool = False


LEARNT_ROWS = {
    "AL-fc": CaffeNetTerms(leave=("conv*",), cost=0.3, others=(0.2, 0.5), least=0.29, most=0.318),
    "AL-conv": CaffeNetTerms(
        leave=("fc*",), cost=0.02, others=(0.01, 0.04), least=0.74, most=0.778
    ),
    "AL-conv-fc": CaffeNetTerms(
        leave=("conv[1234]",), cost=0.3, others=(0.2, 0.5), least=0.29, most=0.318
    ),
    ALL: CaffeNetTerms(leave=(), cost=0.4, others=(0.25, 0.6), least=0.2, most=0.285, relaxes=True),
}
"""The windows are the paper's sizes, 32 % and 78 %, and below; that of all layers is below them
all. Prices were chosen on a validation part alone: that of twenty classes, on a network
of a quarter of the widths."""


def choose_plan(scale: Scale) -> CaseStudy:
    """Return the plan for a scale.

    Raises:
        SettingsError: If the data are not colour images of many classes.
    """
    if scale.data.partition(":")[0] not in ("tiny-imagenet", "imagenet", "folder"):
        raise SettingsError(
            f"table-4 was asked for on {scale.data!r}; give images: --data tiny-imagenet:DIR, "
            "imagenet:DIR or folder:DIR"
        )
    return QUICK_STUDY if scale.name == "quick" else FULL_STUDY


def train_reference(scale: Scale, seed: int) -> RunSettings:
    """Return the settings of the reference."""
    plan = choose_plan(scale)
    return _settings(scale, seed, plan.epochs, LEARNING_RATE, GateSettings(learn="nothing"))


def train_further(scale: Scale, seed: int) -> RunSettings:
    """Return the settings of a network that was made smaller beforehand."""
    plan = choose_plan(scale)
    return _settings(scale, seed, plan.further, FURTHER_RATE, GateSettings(learn="nothing"))


def settled_epoch(scale: Scale) -> int:
    """Return the epochs after which gates stand still."""
    return math.ceil((1 - FREEZE_FOR) * choose_plan(scale).further)


def learn_smaller(scale: Scale, seed: int, terms: CaffeNetTerms, width_cost: float) -> RunSettings:
    """Return the settings of learning the architecture from the reference."""
    plan = choose_plan(scale)
    gates = GateSettings(
        learn=terms.learn,
        leave=terms.leave,
        start_after=START_AFTER,
        freeze_for=FREEZE_FOR,
        width_start=WIDTH_START,
        width_spread=WIDTH_SPREAD,
        travel=terms.travel,
        largest_step=plan.largest_step,
    )
    strengths = StrengthSettings(width_cost=width_cost, price=terms.price, depth_share=1.0)
    return _settings(scale, seed, plan.further, FURTHER_RATE, gates, strengths)


def _settings(
    scale: Scale,
    seed: int,
    epochs: int,
    rate: float,
    gates: GateSettings,
    strengths: StrengthSettings | None = None,
) -> RunSettings:
    plan = choose_plan(scale)
    on_gpu = torch.cuda.is_available()
    return RunSettings(
        model=plan.model,
        data=scale.data,
        seed=seed,
        epochs=epochs,
        batch_size=plan.batch_size,
        validation=plan.validation,
        limit=plan.limit,
        classes=plan.classes,
        resize=plan.side,
        augment="crop-flip",
        optimiser=OptimiserSettings(
            learning_rate=rate, weight_decay=WEIGHT_DECAY, warmup_epochs=min(1.0, epochs / 10)
        ),
        gates=gates,
        strengths=strengths or StrengthSettings(),
        hardware=HardwareSettings(precision="bf16-mixed" if on_gpu else "32-true"),
    )
