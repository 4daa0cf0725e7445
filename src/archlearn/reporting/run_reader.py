"""A run's folder is read without torch, as far as it was written when the run stopped."""

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from archlearn.errors import InputError
from archlearn.reporting.json_values import (
    Table,
    as_count,
    as_items,
    as_number,
    as_table,
    as_text,
    counts_by_name,
)
from archlearn.reporting.run import Epoch, Run, Standing

CONFIG, METRICS, GATES, SUMMARY = "config.toml", "metrics.jsonl", "gates.jsonl", "summary.json"


def read_run(folder: Path) -> Run:
    """Return what the folder of a finished or unfinished run holds.

    Raises:
        InputError: If the folder is not that of a run; the message says what is missing.
    """
    config = _read_config(folder)
    summary, summary_note = _read_summary(folder / SUMMARY)
    rows = {as_count(row.get("epoch")): row for row in read_lines(folder / METRICS)}
    # A resumed run may have written an epoch twice: the later line holds.
    epochs = tuple(_epoch(n, rows[n]) for n in sorted(n for n in rows if n is not None))
    finished = bool(summary.get("finished", bool(summary)))
    notes = (*_notes(folder, epochs, finished=finished), *summary_note)
    return _assemble(folder, config, summary, _Progress(epochs, finished, notes))


def read_lines(path: Path) -> Iterator[Table]:
    """Yield the objects of a file of JSON lines; a torn line, or no file, yields nothing."""
    if not path.is_file():
        return
    with path.open("rb") as lines:
        for line in lines:
            row = as_table(_parse(line))
            if row:
                yield row


@dataclass(frozen=True, slots=True)
class _Progress:
    epochs: tuple[Epoch, ...]
    finished: bool
    notes: tuple[str, ...]


def _parse(text: bytes) -> object:
    try:
        return cast("object", json.loads(text))
    except (ValueError, RecursionError):
        return None


def _read_config(folder: Path) -> Table:
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
        return cast("Table", tomllib.loads((folder / CONFIG).read_text("utf-8")))
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, too many digits, too deep
        raise InputError(
            f"cannot report on {str(folder)!r}: {CONFIG} is not TOML ({error}); "
            "restore the file as `archlearn learn` wrote it"
        ) from error


def _read_summary(path: Path) -> tuple[Table, tuple[str, ...]]:
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


def _epoch(number: int, row: Table) -> Epoch:
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
        parameters=as_count(row.get("parameters")),
        multiply_adds=as_count(row.get("multiply_adds")),
        seconds=as_number(row.get("seconds")),
        budget_path={name: round(as_number(limit) or 0) for name, limit in path.items()},
        price=as_number(row.get("price")),
    )


def _standing(summary: Table, epoch: Epoch | None) -> Standing:
    entries = [as_table(entry) for entry in as_items(summary.get("widths"))]
    widths = counts_by_name({as_text(e.get("name")): e.get("width") for e in entries})
    if not widths and epoch is not None:
        widths = epoch.widths
    parameters = as_count(summary.get("parameters"))
    multiply_adds = as_count(summary.get("multiply_adds"))
    if not summary and epoch is not None:
        parameters, multiply_adds = epoch.parameters, epoch.multiply_adds
    return Standing(
        architecture=as_text(summary.get("architecture")) or "-".join(map(str, widths.values())),
        widths=widths,
        parameters=parameters,
        multiply_adds=multiply_adds,
    )


def _assemble(folder: Path, config: Table, summary: Table, progress: _Progress) -> Run:
    task = as_text(summary.get("task")) or as_text(config.get("task"))
    epochs = progress.epochs
    regression = task == "regression" or any(epoch.is_error for epoch in epochs)
    test_score = as_number(summary.get("test_error" if regression else "test_accuracy"))
    return Run(
        folder=folder,
        name=as_text(summary.get("name")) or folder.resolve().name,
        model=as_text(summary.get("model")) or as_text(config.get("model")),
        data=as_text(config.get("data")) or as_text(summary.get("data")),
        regression=regression,
        finished=progress.finished,
        validation_score=epochs[-1].score if epochs else None,
        test_score=test_score,
        epochs=epochs,
        before=_standing(as_table(summary.get("before")), epochs[0] if epochs else None),
        after=_standing(as_table(summary.get("after")), epochs[-1] if epochs else None),
        merged=tuple(as_text(name) for name in as_items(summary.get("merged"))),
        config=config,
        summary=summary,
        notes=progress.notes,
    )
