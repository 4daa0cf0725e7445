"""Settings of a run: frozen dataclasses, their TOML, and checks of names, kinds and ranges.

The text below a setting is its help on the command line.
Nothing here imports torch, so that the command line can show its help at once.
"""

import dataclasses
import difflib
import math
import tomllib
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import tomli_w

from archlearn.costs import CostName, PriceName
from archlearn.errors import SettingsError

LoggerName = Literal["csv", "tensorboard", "wandb"]


class Range(NamedTuple):
    """Which numbers a setting may be, and how to say so; what is no number never may."""

    holds: Callable[[float], bool]
    words: str


_COUNT = Range(lambda n: n >= 1, "a whole number from 1 on")
_THREADS = Range(lambda n: 1 <= n <= 1024, "a whole number from 1 to 1,024")
_POSITIVE = Range(lambda n: 0 < n < math.inf, "a number above 0")
_FROM_ZERO = Range(lambda n: 0 <= n < math.inf, "a number from 0 on")
_BELOW_ONE = Range(lambda n: 0 <= n < 1, "a number from 0 to below 1")
_UP_TO_ONE = Range(lambda n: 0 <= n <= 1, "a number from 0 to 1")
FIXED = "fixed"
"""Marks a setting that a resumed run must keep."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerSettings:
    """How the weights are learnt."""

    optimizer: Annotated[Literal["sgd", "adam"], FIXED] = "sgd"
    """Optimiser of the weights."""
    learning_rate: Annotated[float | None, _POSITIVE] = None
    """Highest learning rate of the weights. [default: 0.02 at batches of 125; Adam 1e-3]"""
    momentum: Annotated[float, _BELOW_ONE] = 0.9
    """Momentum of SGD, for the weights only."""
    weight_decay: Annotated[float, _FROM_ZERO] = 5e-4
    """Weight decay, for the weights only."""
    clip_norm: Annotated[float, _FROM_ZERO] = 5.0
    """Clip the norm of the weights' gradient to this; 0: do not clip."""
    warmup_epochs: Annotated[float | None, _FROM_ZERO] = None
    """Epochs of linear warm-up; then the rate falls by a cosine. [default: 1, at most a tenth]"""


@dataclass(frozen=True, kw_only=True, slots=True)
class GateSettings:
    """What is learnt of the architecture, and when."""

    budget: Annotated[tuple[str, ...] | None, FIXED] = None
    """What the network may cost: multiply_adds=50%, parameters=10000, latency=50%, or several.
    [default: half of the multiply-adds that can go]"""
    learn: Annotated[Literal["all", "width", "depth", "nothing"], FIXED] = "all"
    """What is learnt: widths, depth, both, or nothing (a baseline)."""
    leave: Annotated[tuple[str, ...], FIXED] = ()
    """Layers (names or globs) that keep their width and depth."""
    multiple_of: Annotated[int, FIXED, _COUNT] = 1
    """Under a budget, keep a multiple of so many channels in each layer, or all."""
    gate_optimizer: Annotated[Literal["budget", "penalty"] | None, FIXED] = None
    """Learn gates to a budget, or by the paper's penalty. [default: penalty if a width cost, gate
    rate or travel is given, else budget]"""
    gate_schedule: Annotated[tuple[str, ...] | None, FIXED] = None
    """Fields of archlearn.GateSchedule, such as branch_discount=16 for fewer blocks."""
    gate_rate: Annotated[float | None, _FROM_ZERO] = None
    """Learning rate of the gates. [default: from steps and width cost]"""
    largest_step: Annotated[float, _FROM_ZERO] = 0.0
    """Largest change of a gate in one step; 0: no bound."""
    start_after: Annotated[float, _UP_TO_ONE] = 0.1
    """Share of the run before gates begin to change."""
    freeze_for: Annotated[float, _UP_TO_ONE] = 0.3
    """Last share of the run, in which gates no longer change."""
    width_start: Annotated[float, FIXED, _UP_TO_ONE] = 0.55
    """Initial value of width gates."""
    width_spread: Annotated[float, FIXED, _UP_TO_ONE] = 0.0
    """Draw initial width gates at random from their start to so much above it."""
    depth_start: Annotated[float, FIXED, _UP_TO_ONE] = 0.45
    """Initial value of depth gates."""
    travel: Annotated[float | None, _FROM_ZERO] = None
    """How far the price alone could move a gate, if no gate rate is given. [default: 1.5]"""


@dataclass(frozen=True, kw_only=True, slots=True)
class StrengthSettings:
    """How hard the terms of the penalty pull (the paper's four lambdas)."""

    width_cost: Annotated[float | None, _FROM_ZERO] = None
    """Price of a kept neuron, lambda 3. [default: from initial widths and loss]"""
    ratio: float = 0.4
    """Width cost by binarising strength, lambda 3 / lambda 1."""
    depth_share: Annotated[float, _FROM_ZERO] = 0.1
    """Strengths of depth gates as a share of those of width gates."""
    price: PriceName = "neurons"
    """What the price of a neuron is measured in."""
    pay: CostName = "parameters"
    """Merge a linear layer only if this falls."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HardwareSettings:
    """Where and how the arithmetic is done."""

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device."""
    precision: Annotated[Literal["32-true", "bf16-mixed", "64-true"], FIXED] = "32-true"
    """Number format of weights and activations."""
    accumulate: Annotated[int, FIXED, _COUNT] = 1
    """Gradient accumulation: parts that each batch is split into."""
    threads: Annotated[int | None, _THREADS] = None
    """CPU threads. [default: torch's choice]"""
    capture: Literal["auto", "no"] = "auto"
    """Capture each step as one CUDA graph where possible."""
    compile: bool = False
    """Compile steps by torch.compile: faster, but it starts later."""
    shrink: bool | None = None
    """Cut closed channels out during training, so that steps get faster. [default: but for short
    runs on a GPU]"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordSettings:
    """What is written while a run goes on."""

    checkpoint_seconds: Annotated[float, _FROM_ZERO] = 20.0
    """Seconds between checkpoints, at least."""
    logger: LoggerName | None = None
    """Write the numbers of each epoch for other tools as well: csv, tensorboard
    (archlearn[tensorboard]) or wandb (archlearn[wandb])."""
    report: bool = True
    """Write report.html at the end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """Everything that decides how a run goes."""

    model: Annotated[str, FIXED] = "lenet"
    """Built-in network (lenet, deep-lenet, mlp, convnet, alexnet, resnet20, resnet56, preresnet20,
    vgg16-bn, mobilenetv2, densenet40, vit, mixer, gpt), or package.module:function."""
    data: Annotated[str, FIXED] = "mnist"
    """Data set; `archlearn data` lists them."""
    seed: Annotated[int, FIXED] = 0
    """Random seed."""
    epochs: Annotated[int | None, FIXED, _COUNT] = None
    """Passes over the train data. [default: as many as 4,400 steps need, at most 200]"""
    batch_size: Annotated[int | None, FIXED, _COUNT] = None
    """Examples in a step, over all processes. [default: 125, less if data are few]"""
    validation: Annotated[float, FIXED, _BELOW_ONE] = 1 / 12
    """Share of the train data that is kept for validation; 0: none."""
    limit: Annotated[int | None, FIXED, _COUNT] = None
    """Use only so many train examples, always the same ones."""
    classes: Annotated[int | None, FIXED] = None
    """Use only the first so many classes."""
    resize: Annotated[int | None, FIXED] = None
    """Scale images to this side, batch by batch on the device."""
    augment: Annotated[Literal["no", "flip", "crop", "crop-flip", "pad-crop-flip"], FIXED] = "no"
    """Augment train images: mirrored (flip), enlarged random windows (crop), both, or CIFAR's
    usual shift by up to an eighth of the side, mirrored."""
    normalise: Annotated[Literal["data", "imagenet"], FIXED] = "data"
    """Normalise inputs by the mean and deviation of the data or of ImageNet."""
    skip_broken: Annotated[bool, FIXED] = False
    """Leave broken images out, naming each, instead of stopping."""
    start_from: Annotated[str | None, FIXED] = None
    """Pretrained weights: a file of archlearn.save, or a state_dict."""
    teacher: Annotated[str | None, FIXED] = None
    """Knowledge distillation from a frozen network: original (the one that the run starts from),
    or a file as for --start-from."""
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    gates: GateSettings = field(default_factory=GateSettings)
    strengths: StrengthSettings = field(default_factory=StrengthSettings)
    hardware: HardwareSettings = field(default_factory=HardwareSettings)
    record: RecordSettings = field(default_factory=RecordSettings)


S = TypeVar("S")
FORMER_NAMES = {"optimiser": "optimizer", "gate_optimiser": "gate_optimizer"}
"""Settings and tables that files and options may call by an earlier name."""


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
    for item, value in table.items():
        key = FORMER_NAMES.get(item, item)
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


def _unknown_key(name: str, key: str, kind: type) -> str:
    """Return a sentence that names the key meant, wherever it belongs."""
    homes = {item: section for section, item, _ in flat_settings()}
    here = [item.name for item in dataclasses.fields(cast("Any", kind))]
    near = difflib.get_close_matches(key, here, n=1) or difflib.get_close_matches(key, homes, n=1)
    if not near:
        return f"there is no setting {name!r}; here there are {', '.join(here)}"
    section = "" if near[0] in here else homes[near[0]]
    where = f" (in the table [{section}])" if section else ""
    return f"there is no setting {name!r}; did you mean {near[0]!r}{where}?"


def check_value(name: str, value: Any, hint: Any) -> Any:
    """Return a value in the type that a setting has, or refuse it."""
    if get_origin(hint) in (Union, types.UnionType):
        options = [option for option in get_args(hint) if option is not type(None)]
        return None if value is None else check_value(name, value, options[0])
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            near = difflib.get_close_matches(str(value), get_args(hint), n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            words = ", ".join(get_args(hint))
            raise SettingsError(f"{name!r} must be one of {words}, but {value!r} was given{meant}")
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


def flat_settings() -> Iterator[tuple[str, str, tuple[object, ...]]]:
    """Yield every setting as section, name and marks; the section is "" at the top."""
    for name, hint in get_type_hints(RunSettings, include_extras=True).items():
        inside = get_type_hints(hint, include_extras=True) if dataclasses.is_dataclass(hint) else {}
        for inner, its_hint in inside.items():
            yield name, inner, getattr(its_hint, "__metadata__", ())
        if not inside:
            yield "", name, getattr(hint, "__metadata__", ())


def flatten(settings: RunSettings) -> dict[str, Any]:
    """Return settings by their bare names, whatever table they are in."""
    return {name: _get(settings, section, name) for section, name, _ in flat_settings()}


def override(settings: RunSettings, changes: Mapping[str, Any]) -> RunSettings:
    """Return settings with values given by their bare names, whatever table they are in."""
    table = to_table(settings)
    homes = {name: section for section, name, _ in flat_settings()}
    for asked, value in changes.items():
        name = FORMER_NAMES.get(asked, asked)
        if name not in homes:
            raise SettingsError(_unknown_key(name, name, RunSettings))
        section = table.setdefault(homes[name], {}) if homes[name] else table
        section[name] = list(value) if isinstance(value, tuple) else value
    return from_table(RunSettings, table)


def changed_fixed(before: RunSettings, after: RunSettings) -> list[str]:
    """Return the names of settings that differ although a resumed run must keep them."""
    return [
        name
        for section, name, marks in flat_settings()
        if FIXED in marks and _get(before, section, name) != _get(after, section, name)
    ]


def _get(settings: RunSettings, section: str, name: str) -> Any:
    return getattr(getattr(settings, section) if section else settings, name)


MAX_CONFIG_BYTES = 2**15  # of a settings file; one of ours has two thousand


def format_settings(settings: RunSettings) -> str:
    """Return settings as TOML."""
    return tomli_w.dumps(to_table(settings))


def parse_settings(text: str, where: str) -> RunSettings:
    """Return the settings that a TOML text holds."""
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
    for section, name, marks in flat_settings():
        value = _get(settings, section, name)
        for mark in marks:
            if isinstance(mark, Range) and value is not None and not mark.holds(value):
                option = name.replace("_", "-")
                raise SettingsError(f"{name} is {value}; give --{option} {mark.words}")
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
