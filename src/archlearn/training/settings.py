"""Settings of a run, as frozen dataclasses.

Nothing here imports torch, so that the command line can show its help at once.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from archlearn.gating.penalty_prices import CostName, PriceName

LoggerName = Literal["csv", "tensorboard", "wandb"]


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


def setting(default: Any, text: str, *, fixed: bool = False, within: Range | None = None) -> Any:
    """Return a dataclass field with its help.

    Args:
        default: The value used when nothing is said.
        text: One line for the command line's help and the documentation.
        fixed: Whether a resumed run must keep the value it was started with.
        within: The numbers it may be.
    """
    return field(default=default, metadata={"help": text, "fixed": fixed, "within": within})


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimiserSettings:
    """How the weights are learnt."""

    optimiser: Literal["sgd", "adam"] = setting("sgd", "What updates weights.", fixed=True)
    learning_rate: float | None = setting(
        None,
        "Highest rate of the weights. [default: 0.02 at batches of 125; Adam 1e-3]",
        within=_POSITIVE,
    )
    momentum: float = setting(0.9, "Momentum of SGD; gates never have any.", within=_BELOW_ONE)
    weight_decay: float = setting(
        5e-4, "Decay of the weights; gates never have any.", within=_FROM_ZERO
    )
    clip_norm: float = setting(
        5.0, "Largest norm of the weights' gradient; 0 leaves it as it is.", within=_FROM_ZERO
    )
    warmup_epochs: float | None = setting(
        None,
        "Epochs of linear warm-up before the cosine. [default: 1, at most a tenth]",
        within=_FROM_ZERO,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class GateSettings:
    """What is learnt of the architecture, and when."""

    learn: Literal["all", "width", "depth", "nothing"] = setting(
        "all", "What is learnt: widths, depth, both, or nothing (a baseline).", fixed=True
    )
    leave: tuple[str, ...] = setting(
        (), "Layers (names or globs) whose architecture is left alone.", fixed=True
    )
    budget: tuple[str, ...] | None = setting(
        None,
        "What the network may cost: multiply_adds=50%, parameters=10000, latency=50%, or several.",
        fixed=True,
    )
    multiple_of: int = setting(
        1,
        "Under a budget, channels kept are a multiple of this, or all there were.",
        fixed=True,
        within=_COUNT,
    )
    gate_optimiser: Literal["budget", "penalty"] | None = setting(
        None,
        "How gates learn: to a budget, or by the paper's penalty. "
        "[default: penalty where a width cost, gate rate or travel is given]",
        fixed=True,
    )
    gate_schedule: tuple[str, ...] | None = setting(
        None, "For experiments: name=value of archlearn.GateSchedule.", fixed=True
    )
    gate_rate: float | None = setting(
        None, "Learning rate of the gates. [default: from steps and width cost]", within=_FROM_ZERO
    )
    largest_step: float = setting(
        0.0, "Furthest a gate moves in one step; 0 sets no bound.", within=_FROM_ZERO
    )
    start_after: float = setting(
        0.1, "Part of the run before gates begin to move.", within=_UP_TO_ONE
    )
    freeze_for: float = setting(
        0.3, "Last part of the run in which gates stand still.", within=_UP_TO_ONE
    )
    width_start: float = setting(0.55, "Where width gates start.", fixed=True, within=_UP_TO_ONE)
    width_spread: float = setting(
        0.0,
        "Width gates start at random, up to so far above their start.",
        fixed=True,
        within=_UP_TO_ONE,
    )
    depth_start: float = setting(0.45, "Where depth gates start.", fixed=True, within=_UP_TO_ONE)
    travel: float | None = setting(
        None,
        "How far cost alone could push a gate, where no gate rate is given. [default: 1.5]",
        within=_FROM_ZERO,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class StrengthSettings:
    """How hard the terms of the penalty pull (the paper's four lambdas)."""

    width_cost: float | None = setting(
        None,
        "Price of a kept neuron, lambda 3. [default: from initial widths and loss]",
        within=_FROM_ZERO,
    )
    ratio: float = setting(0.4, "Width cost over binarising strength, lambda 3 / lambda 1.")
    depth_share: float = setting(
        0.1, "Depth strengths as a part of the width ones.", within=_FROM_ZERO
    )
    price: PriceName = setting(  # noqa: RUF009
        "neurons", "What a kept neuron is charged by."
    )
    pay: CostName = setting(  # noqa: RUF009
        "parameters", "A linear layer is merged when this becomes less."
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class HardwareSettings:
    """Where and how the arithmetic is done."""

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = setting("auto", "Which device.")
    precision: Literal["32-true", "bf16-mixed", "64-true"] = setting(
        "32-true", "Number format.", fixed=True
    )
    accumulate: int = setting(1, "Parts in which a batch is worked off.", fixed=True, within=_COUNT)
    threads: int | None = setting(
        None, "Threads on the CPU. [default: torch's choice]", within=_COUNT
    )
    capture: Literal["auto", "no"] = setting(
        "auto", "Capture the step as one CUDA graph where that can be done."
    )
    compile: bool = setting(
        False, "Compile the step before it is captured: faster steps, a later start."
    )
    shrink: bool | None = setting(
        None,
        "Cut out channels that are closed for good while a budget is learnt: faster steps. "
        "[default: on a CPU]",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordSettings:
    """What is written while a run goes on."""

    checkpoint_seconds: float = setting(
        20.0, "Least time between two checkpoints.", within=_FROM_ZERO
    )
    logger: LoggerName | None = setting(  # noqa: RUF009
        None,
        "Write the numbers of each epoch for other tools, too: csv, tensorboard "
        "(archlearn[tensorboard]) or wandb (archlearn[wandb]).",
    )
    report: bool = setting(True, "Write report.html at the end.")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """Everything that decides how a run goes."""

    model: str = setting(
        "lenet",
        "Built-in network (lenet, deep-lenet, mlp, convnet, caffenet, alexnet, resnet20, resnet56, "
        "preresnet20, vgg16-bn, mobilenetv2, densenet40, vit, mixer, gpt), or "
        "package.module:function.",
        fixed=True,
    )
    data: str = setting("mnist", "Data set; `archlearn data` lists them.", fixed=True)
    seed: int = setting(0, "Seed of weights, order of data and dropout.", fixed=True)
    epochs: int | None = setting(
        None,
        "Passes over the train data. [default: for 4,400 steps, at most 200]",
        fixed=True,
        within=_COUNT,
    )
    batch_size: int | None = setting(
        None,
        "Examples a step, over all processes. [default: 125, less if data are few]",
        fixed=True,
        within=_COUNT,
    )
    validation: float = setting(
        1 / 12,
        "Part of the train data that is set apart to validate on; 0 learns from all of them.",
        fixed=True,
        within=_BELOW_ONE,
    )
    limit: int | None = setting(None, "Use only so many train examples.", fixed=True, within=_COUNT)
    classes: int | None = setting(None, "Use only the first so many classes.", fixed=True)
    resize: int | None = setting(
        None, "Scale images to this side on the device, batch by batch.", fixed=True
    )
    augment: Literal["no", "flip", "crop", "crop-flip", "pad-crop-flip"] = setting(
        "no",
        "Vary train images at random: enlarged windows of them, left and right, both, or CIFAR's "
        "usual shift by up to an eighth of the side with left and right.",
        fixed=True,
    )
    normalise: Literal["data", "imagenet"] = setting(
        "data", "Whose mean and deviation inputs are normalised by.", fixed=True
    )
    skip_broken: bool = setting(
        False, "Leave broken images out, naming each, instead of stopping.", fixed=True
    )
    start_from: str | None = setting(
        None, "A pretrained network: a saved one, a state_dict, or a .caffemodel.", fixed=True
    )
    teacher: str | None = setting(
        None,
        "A frozen network to learn from beside the labels: original (the one that the run starts "
        "from), or a file as for --start-from.",
        fixed=True,
    )
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    gates: GateSettings = field(default_factory=GateSettings)
    strengths: StrengthSettings = field(default_factory=StrengthSettings)
    hardware: HardwareSettings = field(default_factory=HardwareSettings)
    record: RecordSettings = field(default_factory=RecordSettings)
