"""Settings of a run: frozen dataclasses, their TOML, and checks of names, kinds and ranges.

Nothing here imports torch, so that the command line can show its help at once.
"""

import dataclasses
import difflib
import math
import re
import tomllib
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import tomli_w

from archlearn.costs import CostName, PriceName
from archlearn.errors import SettingsError

LoggerName = Literal["csv", "tensorboard", "wandb"]


Range = tuple[Callable[[float], bool], str]
"""Whether a number may be, and how to say which; what is no number never may."""
_COUNT: Range = (lambda n: n >= 1, "a whole number from 1 on")
_THREADS: Range = (lambda n: 1 <= n <= 1024, "a whole number from 1 to 1,024")
_POSITIVE: Range = (lambda n: 0 < n < math.inf, "a number above 0")
_FROM_ZERO: Range = (lambda n: 0 <= n < math.inf, "a number from 0 on")
_BELOW_ONE: Range = (lambda n: 0 <= n < 1, "a number from 0 to below 1")
_UP_TO_ONE: Range = (lambda n: 0 <= n <= 1, "a number from 0 to 1")


def setting(default: Any, text: str, *, fixed: bool = False, within: Range | None = None) -> Any:
    """Return a dataclass field with one line of help, and the numbers it may be.

    A resumed run must keep a value that is fixed.
    """
    return field(default=default, metadata={"help": text, "fixed": fixed, "within": within})


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimiserSettings:
    """How the weights are learnt."""

    optimiser: Literal["sgd", "adam"] = setting("sgd", "Optimiser of the weights.", fixed=True)
    learning_rate: float | None = setting(
        None,
        "Highest learning rate of the weights. [default: 0.02 at batches of 125; Adam 1e-3]",
        within=_POSITIVE,
    )
    momentum: float = setting(0.9, "Momentum of SGD, for the weights only.", within=_BELOW_ONE)
    weight_decay: float = setting(5e-4, "Weight decay, for the weights only.", within=_FROM_ZERO)
    clip_norm: float = setting(
        5.0, "Clip the norm of the weights' gradient to this; 0: do not clip.", within=_FROM_ZERO
    )
    warmup_epochs: float | None = setting(
        None,
        "Epochs of linear warm-up; then the rate falls by a cosine. [default: 1, at most a tenth]",
        within=_FROM_ZERO,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class GateSettings:
    """What is learnt of the architecture, and when."""

    learn: Literal["all", "width", "depth", "nothing"] = setting(
        "all", "What is learnt: widths, depth, both, or nothing (a baseline).", fixed=True
    )
    leave: tuple[str, ...] = setting(
        (), "Layers (names or globs) that keep their width and depth.", fixed=True
    )
    budget: tuple[str, ...] | None = setting(
        None,
        "What the network may cost: multiply_adds=50%, parameters=10000, latency=50%, or several. "
        "[default: half of the multiply-adds that can go]",
        fixed=True,
    )
    multiple_of: int = setting(
        1,
        "Under a budget, keep a multiple of so many channels in each layer, or all.",
        fixed=True,
        within=_COUNT,
    )
    gate_optimiser: Literal["budget", "penalty"] | None = setting(
        None,
        "Learn gates to a budget, or by the paper's penalty. "
        "[default: penalty if a width cost, gate rate or travel is given, else budget]",
        fixed=True,
    )
    gate_schedule: tuple[str, ...] | None = setting(
        None,
        "Fields of archlearn.GateSchedule, such as branch_discount=16 for fewer blocks.",
        fixed=True,
    )
    gate_rate: float | None = setting(
        None, "Learning rate of the gates. [default: from steps and width cost]", within=_FROM_ZERO
    )
    largest_step: float = setting(
        0.0, "Largest change of a gate in one step; 0: no bound.", within=_FROM_ZERO
    )
    start_after: float = setting(
        0.1, "Share of the run before gates begin to change.", within=_UP_TO_ONE
    )
    freeze_for: float = setting(
        0.3, "Last share of the run, in which gates no longer change.", within=_UP_TO_ONE
    )
    width_start: float = setting(
        0.55, "Initial value of width gates.", fixed=True, within=_UP_TO_ONE
    )
    width_spread: float = setting(
        0.0,
        "Draw initial width gates at random from their start to so much above it.",
        fixed=True,
        within=_UP_TO_ONE,
    )
    depth_start: float = setting(
        0.45, "Initial value of depth gates.", fixed=True, within=_UP_TO_ONE
    )
    travel: float | None = setting(
        None,
        "How far the price alone could move a gate, if no gate rate is given. [default: 1.5]",
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
    ratio: float = setting(0.4, "Width cost by binarising strength, lambda 3 / lambda 1.")
    depth_share: float = setting(
        0.1, "Strengths of depth gates as a share of those of width gates.", within=_FROM_ZERO
    )
    price: PriceName = setting(  # noqa: RUF009
        "neurons", "What the price of a neuron is measured in."
    )
    pay: CostName = setting(  # noqa: RUF009
        "parameters", "Merge a linear layer only if this falls."
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class HardwareSettings:
    """Where and how the arithmetic is done."""

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = setting("auto", "Device.")
    precision: Literal["32-true", "bf16-mixed", "64-true"] = setting(
        "32-true", "Number format of weights and activations.", fixed=True
    )
    accumulate: int = setting(
        1, "Gradient accumulation: parts that each batch is split into.", fixed=True, within=_COUNT
    )
    threads: int | None = setting(None, "CPU threads. [default: torch's choice]", within=_THREADS)
    capture: Literal["auto", "no"] = setting(
        "auto", "Capture each step as one CUDA graph where possible."
    )
    compile: bool = setting(False, "Compile steps by torch.compile: faster, but it starts later.")
    shrink: bool | None = setting(
        None,
        "Cut closed channels out during training, so that steps get faster. "
        "[default: but for short runs on a GPU]",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordSettings:
    """What is written while a run goes on."""

    checkpoint_seconds: float = setting(
        20.0, "Seconds between checkpoints, at least.", within=_FROM_ZERO
    )
    logger: LoggerName | None = setting(  # noqa: RUF009
        None,
        "Write the numbers of each epoch for other tools as well: csv, tensorboard "
        "(archlearn[tensorboard]) or wandb (archlearn[wandb]).",
    )
    report: bool = setting(True, "Write report.html at the end.")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """Everything that decides how a run goes."""

    model: str = setting(
        "lenet",
        "Built-in network (lenet, deep-lenet, mlp, convnet, alexnet, resnet20, resnet56, "
        "preresnet20, vgg16-bn, mobilenetv2, densenet40, vit, mixer, gpt), or "
        "package.module:function.",
        fixed=True,
    )
    data: str = setting("mnist", "Data set; `archlearn data` lists them.", fixed=True)
    seed: int = setting(0, "Random seed.", fixed=True)
    epochs: int | None = setting(
        None,
        "Passes over the train data. [default: as many as 4,400 steps need, at most 200]",
        fixed=True,
        within=_COUNT,
    )
    batch_size: int | None = setting(
        None,
        "Examples in a step, over all processes. [default: 125, less if data are few]",
        fixed=True,
        within=_COUNT,
    )
    validation: float = setting(
        1 / 12,
        "Share of the train data that is kept for validation; 0: none.",
        fixed=True,
        within=_BELOW_ONE,
    )
    limit: int | None = setting(
        None, "Use only so many train examples, always the same ones.", fixed=True, within=_COUNT
    )
    classes: int | None = setting(None, "Use only the first so many classes.", fixed=True)
    resize: int | None = setting(
        None, "Scale images to this side, batch by batch on the device.", fixed=True
    )
    augment: Literal["no", "flip", "crop", "crop-flip", "pad-crop-flip"] = setting(
        "no",
        "Augment train images: mirrored (flip), enlarged random windows (crop), both, or CIFAR's "
        "usual shift by up to an eighth of the side, mirrored.",
        fixed=True,
    )
    normalise: Literal["data", "imagenet"] = setting(
        "data", "Normalise inputs by the mean and deviation of the data or of ImageNet.", fixed=True
    )
    skip_broken: bool = setting(
        False, "Leave broken images out, naming each, instead of stopping.", fixed=True
    )
    start_from: str | None = setting(
        None,
        "Pretrained weights: a file of archlearn.save, or a state_dict.",
        fixed=True,
    )
    teacher: str | None = setting(
        None,
        "Knowledge distillation from a frozen network: original (the one that the run starts "
        "from), or a file as for --start-from.",
        fixed=True,
    )
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    gates: GateSettings = field(default_factory=GateSettings)
    strengths: StrengthSettings = field(default_factory=StrengthSettings)
    hardware: HardwareSettings = field(default_factory=HardwareSettings)
    record: RecordSettings = field(default_factory=RecordSettings)


S = TypeVar("S")


def to_table(settings: object) -> dict[str, Any]:
    """Return settings as nested dictionaries; what is None is left out."""
    return dataclasses.asdict(
        cast("Any", settings),
        dict_factory=lambda items: {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in items
            if value is not None
        },
    )


def from_table(kind: type[S], table: Mapping[str, Any], where: str = "") -> S:
    """Return settings made of nested dictionaries."""
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{where}{key}"
        if key not in hints:
            raise SettingsError(_unknown_key(name, key, kind))
        if dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, Mapping):
                raise SettingsError(f"{name!r} is a table of settings, but {value!r} was given")
            values[key] = from_table(cast("type", hints[key]), value, f"{name}.")
        else:
            values[key] = check_value(name, value, hints[key])
    return kind(**values)


_FORMER = {"record.tensorboard": 'take it out, or write logger = "tensorboard"'}


def _unknown_key(name: str, key: str, kind: type) -> str:
    """Return a sentence that names the key meant, wherever it belongs."""
    if name in _FORMER:
        return f"there is no setting {name!r} any more; {_FORMER[name]}"
    homes = {item: section for section, item, _ in flat_settings()}
    here = [item.name for item in dataclasses.fields(cast("Any", kind))]
    near = difflib.get_close_matches(key, here, n=1) or difflib.get_close_matches(key, homes, n=1)
    if not near:
        return f"there is no setting {name!r}; here there are {', '.join(here)}"
    section = "" if near[0] in here else homes[near[0]]
    place = f" (in the table [{section}])" if section else ""
    return f"there is no setting {name!r}; did you mean {near[0]!r}{place}?"


def check_value(name: str, value: Any, hint: Any) -> Any:
    """Return a value in the type that a setting has, or refuse it."""
    if get_origin(hint) in (Union, types.UnionType):
        options = [option for option in get_args(hint) if option is not type(None)]
        return None if value is None else check_value(name, value, options[0])
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            near = difflib.get_close_matches(str(value), get_args(hint), n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            known = ", ".join(get_args(hint))
            raise SettingsError(f"{name!r} must be one of {known}, but {value!r} was given{meant}")
        return value
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            written = f'; write ["{value}"]' if isinstance(value, str) else ""
            raise SettingsError(
                f"{name!r} must be a list of texts, but {value!r} was given{written}"
            )
        return tuple(check_value(name, item, str) for item in cast("list[object]", value))
    if hint is float and type(value) is int and abs(value) < 2**1000:
        return float(value)
    if type(value) is not hint:
        raise SettingsError(f"{name!r} must be {_NAMES[hint]}, but {value!r} was given")
    return value


_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def flat_settings() -> Iterator[tuple[str, str, dataclasses.Field[Any]]]:
    """Yield every setting as section, name and field; the section is "" at the top."""
    hints = get_type_hints(RunSettings)
    for item in dataclasses.fields(RunSettings):
        if dataclasses.is_dataclass(hints[item.name]):
            for inner in dataclasses.fields(hints[item.name]):
                yield item.name, inner.name, inner
        else:
            yield "", item.name, item


def override(settings: RunSettings, given: Mapping[str, Any]) -> RunSettings:
    """Return settings with values given by their bare names, whatever table they are in."""
    table = to_table(settings)
    homes = {name: section for section, name, _ in flat_settings()}
    for name, value in given.items():
        if name not in homes:
            raise SettingsError(_unknown_key(name, name, RunSettings))
        section = table.setdefault(homes[name], {}) if homes[name] else table
        section[name] = list(value) if isinstance(value, tuple) else value
    return from_table(RunSettings, table)


def changed_fixed(before: RunSettings, after: RunSettings) -> list[str]:
    """Return the names of settings that differ although a resumed run must keep them."""
    return [
        name
        for section, name, item in flat_settings()
        if item.metadata["fixed"] and _get(before, section, name) != _get(after, section, name)
    ]


def _get(settings: RunSettings, section: str, name: str) -> Any:
    return getattr(getattr(settings, section) if section else settings, name)


MAX_CONFIG_BYTES = 2**20  # of a settings file; one of ours has two thousand
MAX_NAME_PARTS = 64  # of a dotted name, for which tomllib takes time and memory by the square
_BETWEEN_NAMES = re.compile(r"[^\w.\"'\- \t]")


def format_settings(settings: RunSettings) -> str:
    """Return settings as TOML."""
    return tomli_w.dumps(to_table(settings))


def parse_settings(text: str, where: str) -> RunSettings:
    """Return the settings that a TOML text holds."""
    n_parts = 1 + max(part.count(".") for part in _BETWEEN_NAMES.split(text))
    if n_parts > MAX_NAME_PARTS:
        raise SettingsError(
            f"{where} is no settings file: it has a name of {n_parts:,} parts, more than "
            f"{MAX_NAME_PARTS} (MAX_NAME_PARTS in archlearn_cli.training.settings)"
        )
    try:
        table = tomllib.loads(text)
    except ValueError as error:  # not only TOMLDecodeError: Python limits the digits of a number
        raise SettingsError(f"{where} is not TOML: {error}") from error
    except RecursionError:
        raise SettingsError(f"{where} is no settings file: it is nested too deep") from None
    try:
        return from_table(RunSettings, table)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from error


def read_settings(path: Path) -> RunSettings:
    """Return the settings that a TOML file holds."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise SettingsError(
            f"cannot read the settings {path}: {error.strerror}; give a TOML file, as the "
            "config.toml of a run"
        ) from error
    if len(content) > MAX_CONFIG_BYTES:
        raise SettingsError(
            f"{path} is no settings file: it has more than {MAX_CONFIG_BYTES:,} bytes "
            "(MAX_CONFIG_BYTES in archlearn_cli.training.settings)"
        )
    try:
        return parse_settings(content.decode("utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not TOML, which is UTF-8: {error}") from error


def check_ranges(settings: RunSettings) -> None:
    """Refuse numbers with which no run can go well."""
    for section, name, item in flat_settings():
        value = _get(settings, section, name)
        within: Range | None = item.metadata["within"]
        if within is not None and value is not None and not within[0](value):
            option = name.replace("_", "-")
            raise SettingsError(f"{name} is {value}; give --{option} {within[1]}")
    gates = settings.gates
    if gates.learn == "nothing" and gates.budget:
        raise SettingsError(
            f"a budget of {', '.join(gates.budget)} was asked for, but --learn nothing leaves the "
            "network as it is; leave out one of them"
        )
    if gates.learn != "nothing" and gates.start_after + gates.freeze_for >= 1:
        raise SettingsError(
            f"start_after is {gates.start_after:g} and freeze_for {gates.freeze_for:g}, so gates "
            "would never move; let both together be less than 1, or train without gates: "
            "--learn nothing"
        )
