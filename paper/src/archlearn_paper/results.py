"""Results of an experiment: one JSON file, its models beside it."""

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from archlearn.errors import DataError
from archlearn_cli.data.file_cache import write_atomically
from archlearn_paper.experiment import Row, RunKey, read_row

_FORMAT = 2
"""1 had hashes of settings in place of versions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """All that is known of an experiment.

    Attributes:
        out_of_reach: Runs that are left out: no network of theirs meets the budget.
        version: Of the experiment.
        derived: Numbers that are there once all runs are.
    """

    experiment: str
    command: str
    date: str
    hardware: Mapping[str, Any]
    versions: Mapping[str, str]
    seeds: Sequence[int]
    quick: bool
    scale: Mapping[str, Any]
    rows: Sequence[Row]
    seconds: float = 0.0
    out_of_reach: Sequence[RunKey] = ()
    version: int = 1
    derived: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def complete(self) -> bool:
        """Return whether all runs were made."""
        return bool(self.derived)

    @property
    def commits(self) -> list[str]:
        """Return the commits that made the runs; "not recorded" where older runs say none."""
        return sorted({row.commit or "not recorded" for row in self.rows})


def find_commit() -> str:
    """Return the commit of the code that runs, or what the environment calls `COMMIT`.

    A tree with changes is told by a plus sign; one without its history has no commit.
    """
    named = os.environ.get("COMMIT")  # where the working tree came without its history
    if named:
        return named
    here = Path(__file__).parent
    asked = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def results_path(folder: Path, name: str, *, unfinished: bool = False) -> Path:
    """Return where the results of an experiment are, or those of a run that goes on still."""
    return folder / f"{name}{'.unfinished' * unfinished}.json"


def model_path(folder: Path, name: str, row: str, seed: int) -> Path:
    """Return where the compact model of a run is."""
    plain = re.sub(r"[^A-Za-z0-9.+-]+", "_", row)
    return folder / "models" / name / f"{plain}.seed{seed}.safetensors"


def read_results(folder: Path, name: str, *, unfinished: bool = False) -> Results | None:
    """Return the results of an experiment, or None where there are none yet."""
    path = results_path(folder, name, unfinished=unfinished)
    if not path.is_file():
        return None
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        rows = [read_row(row) for row in table.pop("rows")]
        table.pop("format")
        return Results(rows=rows, **table)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} does not hold results of an experiment ({error}); move it away, or choose "
            "another folder with --out"
        ) from error


def join_results(folders: Sequence[Path], name: str) -> Results | None:
    """Return the results of an experiment that was made in parts, as one seed on each machine.

    Of a folder the complete results count, or where there are none the unfinished ones. The first
    folder says what all have in common.
    """
    parts = [
        read_results(path, name) or read_results(path, name, unfinished=True) for path in folders
    ]
    stored = [part for part in parts if part is not None]
    if not stored:
        return None
    rows = {row.key: row for part in stored for row in part.rows}
    return replace(
        stored[0],
        command=" && ".join(dict.fromkeys(part.command for part in stored)),
        date=max(part.date for part in stored),
        seeds=sorted({seed for part in stored for seed in part.seeds}),
        rows=list(rows.values()),
        seconds=round(sum(part.seconds for part in stored), 1),
    )


def write_results(folder: Path, results: Results) -> None:
    """Write the results, whole or not at all.

    Unfinished ones have a file of their own, beside earlier ones that are complete.
    """
    path = results_path(folder, results.experiment, unfinished=not results.complete)
    names = [item.name for item in fields(results) if item.name != "rows"]
    values = {name: getattr(results, name) for name in names}
    table = {"format": _FORMAT} | {n: values[n] for n in values if n != "out_of_reach" or values[n]}
    # One line for each entry and for each row, so that changes can be seen.
    lines = [f"{json.dumps(name)}: {_dump(value)}" for name, value in table.items()]
    rows = ",\n".join(_dump(row.to_json()) for row in results.rows)
    text = "{\n" + ",\n".join([*lines, f'"rows": [\n{rows}\n]']) + "\n}\n"
    write_atomically(path, text.encode())


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
