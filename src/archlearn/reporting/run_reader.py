"""Read the folder of a run."""

import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard, cast

from archlearn.costs import COSTS
from archlearn.data.file_cache import CONFIG, GATES, METRICS, SPEED, SUMMARY
from archlearn.errors import InputError

JsonTable = Mapping[str, object]
"""An object read from JSON or TOML."""


def is_table(value: object) -> TypeGuard[JsonTable]:
    """Say whether a value is a JSON object or a TOML table."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    """Say whether a value is a JSON list or a TOML array."""
    return isinstance(value, list)


def as_table(value: object) -> JsonTable:
    """Return a JSON object as it is, and an empty one for anything else."""
    return value if is_table(value) else {}


def as_items(value: object) -> tuple[object, ...]:
    """Return the items of a JSON list, and nothing for anything else."""
    return tuple(value) if is_list(value) else ()


def as_number(value: object) -> float | None:
    """Return a finite number; `true`, `"3"`, NaN and infinities are not numbers here."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def as_text(value: object) -> str:
    """Return a string as it is, and an empty one for anything else."""
    return value if isinstance(value, str) else ""


def as_count(value: object) -> int | None:
    """Return a whole number of things, or None where there is none to return."""
    number = as_number(value)
    return None if number is None else round(number)


def counts_by_name(value: object) -> dict[str, int]:
    """Return the entries of a JSON object that are counts, in the order of the file."""
    counts = {name: as_count(entry) for name, entry in as_table(value).items()}
    return {name: count for name, count in counts.items() if count is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """What was measured at the end of one epoch; epoch 0 is before training.

    Attributes:
        score: Accuracy on the validation data, or the squared error for regression.
        is_error: Whether `score` is an error.
        widths: Channels kept in each layer, in order of the network, the output last; layers
            that merge at this moment are not among them.
        linear: For each layer whose depth is learnt, whether it stands at linear.
        gap: Mean distance of a gate from its nearer binary value.
        latency: Milliseconds of a run by the table, where latency has a budget.
        budget_path: What each cost with a budget may be at this moment.
        price: What the next channel to go earns for what it costs.
        trained: What the network costs that a step computes; less, once channels are cut out.
    """

    epoch: int
    train_loss: float | None
    validation_loss: float | None
    score: float | None
    is_error: bool
    penalty: float | None
    widths: Mapping[str, int]
    linear: Mapping[str, bool]
    gap: float | None
    binarised_share: float | None
    costs: Mapping[str, int | None]
    seconds: float | None
    latency: float | None = None
    budget_path: Mapping[str, float] = field(default_factory=dict[str, float])
    price: float | None = None
    trained: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkState:
    """A network at one moment: its layers and what it costs.

    Attributes:
        layers: Parameters and multiply-adds of each layer, where a finished run has written them.
    """

    architecture: str
    widths: Mapping[str, int]
    costs: Mapping[str, int | None]
    layers: Mapping[str, tuple[int, int]]

    @property
    def parameters(self) -> int | None:
        """The number of its parameters."""
        return self.costs["parameters"]

    @property
    def multiply_adds(self) -> int | None:
        """The multiply-adds of one example."""
        return self.costs["multiply_adds"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """Everything the report knows of one run.

    Attributes:
        validation_score: Accuracy or squared error on validation data after the last epoch.
        test_score: The same on test data, which a run looks at once, when it has finished.
        score_before: The same of a pretrained network before the run, where `archlearn evaluate`
            has measured it.
        before: The network at the start.
        after: The compact network, or the network as its gates stand now.
        merged: Layers that became linear and went into the next one.
        notes: Sentences about what is absent or could not be read.
        summary: The summary as written, empty while the run is unfinished.
    """

    folder: Path
    name: str
    model: str
    data: str
    regression: bool
    finished: bool
    validation_score: float | None
    test_score: float | None
    score_before: float | None
    epochs: tuple[Epoch, ...]
    before: NetworkState
    after: NetworkState
    merged: tuple[str, ...]
    config: JsonTable
    summary: JsonTable
    notes: tuple[str, ...]

    @property
    def score(self) -> float | None:
        """The figure of merit of the run by itself, on test data where it has finished."""
        return self.validation_score if self.test_score is None else self.test_score

    @property
    def score_source(self) -> str:
        """Where `score` was measured, `test` or `validation`."""
        return "validation" if self.test_score is None else "test"

    @property
    def score_name(self) -> str:
        """The word for the figure of merit."""
        return "squared error" if self.regression else "accuracy"


def read_run(folder: Path) -> RunRecord:
    """Return what the folder of a finished or unfinished run holds.

    Raises:
        InputError: If the folder is not that of a run; the message says what is missing.
    """
    config = _read_config(folder)
    summary, summary_note = _read_summary(folder / SUMMARY)
    rows = {as_count(row.get("epoch")): row for row in read_json_lines(folder / METRICS)}
    # A resumed run may have written an epoch twice: the later line holds.
    epochs = tuple(_epoch(n, rows[n]) for n in sorted(n for n in rows if n is not None))
    finished = bool(summary.get("finished", bool(summary)))
    task = as_text(summary.get("task")) or as_text(config.get("task"))
    regression = task == "regression" or any(epoch.is_error for epoch in epochs)
    return RunRecord(
        folder=folder,
        name=as_text(summary.get("name")) or folder.resolve().name,
        model=as_text(summary.get("model")) or as_text(config.get("model")),
        data=as_text(config.get("data")) or as_text(summary.get("data")),
        regression=regression,
        finished=finished,
        validation_score=epochs[-1].score if epochs else None,
        test_score=as_number(summary.get("test_error" if regression else "test_accuracy")),
        score_before=as_number(_read_measured(folder).get("score_before")),
        epochs=epochs,
        before=_standing(as_table(summary.get("before")), epochs[0] if epochs else None),
        after=_standing(as_table(summary.get("after")), epochs[-1] if epochs else None),
        merged=tuple(as_text(name) for name in as_items(summary.get("merged"))),
        config=config,
        summary=summary,
        notes=(*_notes(folder, epochs, finished=finished), *summary_note),
    )


def read_json_lines(path: Path) -> Iterator[JsonTable]:
    """Yield the objects of a file of JSON lines; a torn line, or no file, yields nothing."""
    if not path.is_file():
        return
    with path.open("rb") as lines:
        for line in lines:
            row = as_table(_parse(line))
            if row:
                yield row


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """Time and memory of a forward pass, before and after."""

    device: str
    batch_size: int
    seconds: tuple[float, float]
    bytes: tuple[float, float]


def read_speed(folder: Path) -> list[SpeedRow]:
    """Return what `archlearn evaluate` has measured of a run; nothing if it has not."""
    rows: list[SpeedRow] = []
    for row in map(as_table, as_items(_read_measured(folder).get("rows"))):
        size = as_count(row.get("batch_size"))
        pairs = [[as_number(n) for n in as_items(row.get(key))] for key in ("seconds", "bytes")]
        if size is not None and all(len(pair) == 2 and None not in pair for pair in pairs):
            (before, after), (held, holds) = cast("list[list[float]]", pairs)
            device = as_text(row.get("device"))
            rows.append(SpeedRow(device, size, (before, after), (held, holds)))
    return rows


def _read_measured(folder: Path) -> JsonTable:
    path = folder / SPEED
    return as_table(_parse(path.read_bytes())) if path.is_file() else {}


def _parse(text: bytes) -> object:
    try:
        return cast("object", json.loads(text))
    except (ValueError, RecursionError):
        return None


def _read_config(folder: Path) -> JsonTable:
    if not folder.is_dir():
        raise InputError(
            f"cannot report on {str(folder)!r}: there is no such folder; "
            "give a folder that `archlearn learn --out` has written"
        )
    if not (folder / CONFIG).is_file():
        found = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
        raise InputError(
            f"cannot report on {str(folder)!r}: it is not a run's folder, for {CONFIG} is "
            f"missing (found: {found}); give a folder that `archlearn learn --out` has written"
        )
    try:
        return cast("JsonTable", tomllib.loads((folder / CONFIG).read_text("utf-8")))
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, too many digits, too deep
        raise InputError(
            f"cannot report on {str(folder)!r}: {CONFIG} is not TOML ({error}); "
            "restore the file as `archlearn learn` wrote it"
        ) from error


def _read_summary(path: Path) -> tuple[JsonTable, tuple[str, ...]]:
    if not path.is_file():
        return {}, ()
    summary = as_table(_parse(path.read_bytes()))
    return summary, () if summary else (f"{SUMMARY} could not be read and is left out.",)


def _notes(folder: Path, epochs: tuple[Epoch, ...], *, finished: bool) -> Iterator[str]:
    if not finished:
        last = f"after epoch {epochs[-1].epoch}" if epochs else "before its first measurement"
        yield f"This run is unfinished: the page shows where it stood {last}."
    if epochs and all(epoch.validation_loss is None for epoch in epochs):
        yield "This run had no validation part: it is measured once, on the test part, at its end."
    for name in (METRICS, GATES):
        if not (folder / name).is_file():
            yield f"{name} is missing, so its figures are left out."


def _epoch(number: int, row: JsonTable) -> Epoch:
    error = as_number(row.get("validation_error"))
    accuracy = as_number(row.get("validation_accuracy"))
    linear = {name: bool(flag) for name, flag in as_table(row.get("linear")).items()}
    path = as_table(row.get("budget_path"))
    return Epoch(
        epoch=number,
        train_loss=as_number(row.get("train_loss")),
        validation_loss=as_number(row.get("validation_loss")),
        score=error if accuracy is None else accuracy,
        is_error=accuracy is None and error is not None,
        penalty=as_number(row.get("penalty")),
        widths=counts_by_name(row.get("widths")),
        linear=linear,
        gap=as_number(row.get("binarisation_gap")),
        binarised_share=as_number(row.get("binarised_share")),
        costs=_read_costs(row),
        seconds=as_number(row.get("seconds")),
        latency=as_number(row.get("latency")),
        budget_path={name: as_number(limit) or 0.0 for name, limit in path.items()},
        price=as_number(row.get("price")),
        trained=counts_by_name(row.get("trained")),
    )


def _read_costs(row: JsonTable) -> dict[str, int | None]:
    return {name: as_count(row.get(name)) for name in COSTS}


def _standing(summary: JsonTable, epoch: Epoch | None) -> NetworkState:
    entries = [as_table(entry) for entry in as_items(summary.get("widths"))]
    widths = counts_by_name({as_text(e.get("name")): e.get("width") for e in entries})
    if not widths and epoch is not None:
        widths = epoch.widths
    costs = _read_costs(summary) if summary or epoch is None else epoch.costs
    return NetworkState(
        architecture=as_text(summary.get("architecture")) or "-".join(map(str, widths.values())),
        widths=widths,
        costs=costs,
        layers={
            as_text(layer.get("name")): (
                as_count(layer.get("parameters")) or 0,
                as_count(layer.get("multiply_adds")) or 0,
            )
            for layer in map(as_table, as_items(summary.get("layers")))
        },
    )
