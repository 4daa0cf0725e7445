"""The numbers of each epoch are written for other tools: CSV, TensorBoard, wandb."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import archlearn as al
import archlearn_cli as cli
from benchmarks.torchvision_import import import_models
from tests.cli.commands import exit_code
from tests.run_files import METRICS, read_lines


def learn(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Return the metrics of a short run with a logger."""
    words = ["learn", "--model", "mlp:8", "--data", "digits", "--limit", "200", "--epochs", "3",
             "--accelerator", "cpu", "--threads", "1", "--no-report"]  # fmt: skip
    assert exit_code([*words, "--logger", kind, "--out", str(folder)]) == 0
    return read_lines(folder / METRICS)


def read_csv(folder: Path) -> list[dict[str, str]]:
    with (folder / "csv" / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def go_on(kind: Any, folder: Path, rows: list[dict[str, Any]]) -> None:
    """Log what a run logs that was stopped in its third epoch and goes on."""
    logger = cli.training.EpochLogger(kind)
    kept, again = rows[:-1], rows[-1]
    (folder / METRICS).write_text("".join(f"{json.dumps(row)}\n" for row in kept))
    start = cli.training.RunStart(
        folder=folder, settings=cli.training.RunSettings(), network="", data_source="",
        architecture="", parameters=1, widths={}, n_steps=9, first_epoch=2, first_step=6,
    )  # fmt: skip
    logger.started(start)
    logger.epoch_ended(cli.training.EpochEnd(row=again, seconds_left=0.0))
    logger.finished({})


def test_a_table_of_the_epochs_is_written_and_goes_on(tmp_path: Path) -> None:
    rows = learn(tmp_path / "a", "csv")
    table = read_csv(tmp_path / "a")
    assert [int(row["step"]) for row in table] == [0, 1, 2, 3]
    assert [float(row["parameters"]) for row in table] == [row["parameters"] for row in rows]
    assert sum(name.startswith("width/") for name in table[0]) == 2
    go_on("csv", tmp_path / "a", rows)
    assert read_csv(tmp_path / "a") == table


def test_tensorboard_has_each_epoch_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = learn(tmp_path / "a", "tensorboard")
    go_on("tensorboard", tmp_path / "a", rows)
    events = EventAccumulator(str(tmp_path / "a" / "tensorboard"))
    events.Reload()
    points = events.Scalars("parameters")
    assert [(point.step, point.value) for point in points] == [
        (row["epoch"], row["parameters"]) for row in rows
    ]


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let wandb write its files and send nothing."""
    pytest.importorskip("wandb")
    import_models()  # which Lightning imports in its turn
    pytest.importorskip("lightning")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


@pytest.mark.usefixtures("offline")
@pytest.mark.filterwarnings("ignore")  # those of wandb and Lightning
def test_wandb_is_written_offline_and_goes_on_under_its_id(tmp_path: Path) -> None:
    rows = learn(tmp_path / "a", "wandb")
    (first,) = (tmp_path / "a" / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"validation_accuracy" in first.read_bytes()
    go_on("wandb", tmp_path / "a", rows)
    files = list((tmp_path / "a" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len({file.name for file in files}) == 1


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archlearn.errors.find_spec", lambda name: None)
    with pytest.raises(al.InputError, match=r"--logger wandb needs wandb, .*'archlearn\[wandb\]'"):
        cli.training.EpochLogger("wandb")
