"""Read the folder of a run."""

import json
import tomllib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from archlearn.costs import COSTS
from archlearn.errors import ArchlearnError, InputError
from archlearn_cli.data.file_cache import CONFIG, GATES, METRICS, SPEED, SUMMARY

JsonTable = Mapping[str, Any]
"""An object read from JSON or TOML."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkState:
    """A network at one moment: widths and costs, those of each layer where a run has finished.

    Multiply-adds are those of one example.
    """

    architecture: str
    widths: Mapping[str, int]
    costs: Mapping[str, int | None]
    layers: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """Everything the report knows of one run.

    Attributes:
        validation_score: Accuracy or squared error on validation data after the last epoch.
        test_score: The same on test data, which a run looks at once, when it has finished.
        score_before: The same of a pretrained network before the run, where `archlearn evaluate`
            has measured it.
        epochs: Lines of `metrics.jsonl` in order, without what was not measured.
        after: The compact network, or the network as its gates stand now.
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
    epochs: tuple[JsonTable, ...]
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
    def learns_nothing(self) -> bool:
        """Whether the network was trained as it is, without gates."""
        return self.config.get("gates", {}).get("learn") == "nothing"

    @property
    def score_name(self) -> str:
        """The word for the figure of merit."""
        return "squared error" if self.regression else "accuracy"


def read_run(folder: Path) -> RunRecord:
    """Return what the folder of a finished or unfinished run holds."""
    config, summary = _read_config(folder), _read_json(folder / SUMMARY)
    rows = {row["epoch"]: row for row in read_json_lines(folder / METRICS)}
    # A resumed run may have written an epoch twice: the later line holds.
    epochs = tuple(
        {name: value for name, value in rows[n].items() if value is not None} for n in sorted(rows)
    )
    finished = bool(summary)
    task = summary.get("task", "")
    regression = task == "regression" or any("validation_error" in e for e in epochs)
    return RunRecord(
        folder=folder,
        name=summary.get("name") or folder.resolve().name,
        model=summary.get("model") or config.get("model", ""),
        data=config.get("data", ""),
        regression=regression,
        finished=finished,
        validation_score=score_of(epochs[-1]) if epochs else None,
        test_score=summary.get("test_error" if regression else "test_accuracy"),
        score_before=_read_json(folder / SPEED).get("score_before"),
        epochs=epochs,
        before=_read_state(summary.get("before", {}), epochs[0] if epochs else {}),
        after=_read_state(summary.get("after", {}), epochs[-1] if epochs else {}),
        merged=tuple(summary.get("merged", ())),
        config=config,
        summary=summary,
        notes=tuple(_notes(folder, epochs, finished=finished)),
    )


def score_of(epoch: JsonTable) -> float | None:
    """Return the accuracy on the validation data, or the squared error for regression."""
    return epoch.get("validation_accuracy", epoch.get("validation_error"))


@contextmanager
def explaining_odd_files(folders: Sequence[Path]) -> Generator[None]:
    """Say in one sentence that the files of runs hold what no run writes: a text for a number.

    Raises:
        InputError: Where reading or drawing them fails.
    """
    try:
        yield
    except ArchlearnError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"cannot report on {', '.join(map(str, folders))}: {METRICS}, {GATES}, {SUMMARY} or "
            f"{SPEED} holds what no run writes ({type(error).__name__}: {error}); restore the "
            "files as they were, or remove the line or file that was changed"
        ) from error


def read_json_lines(path: Path) -> Iterator[JsonTable]:
    """Yield the objects of a file of JSON lines; a torn line, or no file, yields nothing."""
    if not path.is_file():
        return
    with path.open("rb") as lines:
        for line in lines:
            if row := _parse(line):
                yield row


def read_speed(folder: Path) -> list[JsonTable]:
    """Return time and memory of forward passes before and after, if they have been measured.

    Each row has the device, the batch size, and pairs of seconds and bytes.
    """
    return _read_json(folder / SPEED).get("rows", [])


def _read_json(path: Path) -> JsonTable:
    return _parse(path.read_bytes()) if path.is_file() else {}


def _parse(text: bytes) -> JsonTable:
    """Return an object of JSON, an empty one where it is torn; what is no finite number is None."""
    try:
        entry = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


def _read_config(folder: Path) -> JsonTable:
    if not (folder / CONFIG).is_file():
        what = f"{CONFIG} is missing" if folder.is_dir() else "there is no such folder"
        raise InputError(
            f"cannot report on {str(folder)!r}: {what}; give a folder that `archlearn learn --out` "
            "has written"
        )
    try:
        return cast("JsonTable", tomllib.loads((folder / CONFIG).read_text("utf-8")))
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, too many digits, too deep
        raise InputError(
            f"cannot report on {str(folder)!r}: {CONFIG} is not TOML ({error}); "
            "restore the file as `archlearn learn` wrote it"
        ) from error


def _notes(folder: Path, epochs: tuple[JsonTable, ...], *, finished: bool) -> Iterator[str]:
    if not finished:
        last = f"after epoch {epochs[-1]['epoch']}" if epochs else "before its first measurement"
        yield f"This run is unfinished: the page shows where it stood {last}."
    if epochs and not any("validation_loss" in epoch for epoch in epochs):
        yield "This run had no validation part: it is measured once, on the test part, at its end."
    for name in (METRICS, GATES):
        if not (folder / name).is_file():
            yield f"{name} is missing, so its figures are left out."
    if (folder / SUMMARY).is_file() and not finished:
        yield f"{SUMMARY} could not be read and is left out."


def _read_state(summary: JsonTable, epoch: JsonTable) -> NetworkState:
    widths = {row["name"]: row["width"] for row in summary.get("widths", ())}
    widths = widths or epoch.get("widths", {})
    return NetworkState(
        architecture=summary.get("architecture") or "-".join(map(str, widths.values())),
        widths=widths,
        costs={name: summary.get(name) or epoch.get(name) for name in COSTS},
        layers={
            layer["name"]: (layer["parameters"], layer["multiply_adds"])
            for layer in summary.get("layers", ())
        },
    )
