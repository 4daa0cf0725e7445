"""Runs that shrink: the same numbers as without, resumed from any moment, told in the metrics."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from archlearn import RunInterruptedError
from archlearn.reporting import write_report
from archlearn.training import (
    Audience,
    RunSettings,
    learn,
    override,
    read_checkpoint,
    resume,
    trainer,
)
from tests.run_files import COMPACT, GATES, METRICS, read_lines
from tests.training.test_run import Impatient

ASKED = {
    "model": "mlp:40-30", "data": "digits", "epochs": 10, "batch_size": 60, "limit": 600,
    "accelerator": "cpu", "threads": 1, "report": False, "precision": "64-true",
    "checkpoint_seconds": 1e9, "budget": ("multiply_adds=30%",),
    "gate_schedule": ("patience=5",),
}  # fmt: skip


def run(folder: Path, **given: Any) -> dict[str, Any]:
    return dict(learn(override(RunSettings(), ASKED | given), folder))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "a"
    run(folder)
    return folder


def test_a_run_is_the_same_with_and_without_shrinking(whole: Path, tmp_path: Path) -> None:
    run(tmp_path / "b", shrink=False)
    rows, others = read_lines(whole / METRICS), read_lines(tmp_path / "b" / METRICS)
    for row, other in zip(rows, others, strict=True):
        assert row["widths"] == other["widths"]
        assert row["parameters"] == other["parameters"]
        assert row["validation_loss"] == pytest.approx(other["validation_loss"], rel=1e-6)
    trained = [row["trained"]["multiply_adds"] for row in rows]
    assert trained == sorted(trained, reverse=True)
    assert trained[-1] < 0.4 * trained[0]
    assert len(set(trained)) >= 3
    assert {other["trained"]["multiply_adds"] for other in others} == {trained[0]}
    first, last = (row["memory_bytes"] for row in (rows[1], rows[-1]))
    assert last < 0.5 * first == 0.5 * others[-1]["memory_bytes"]
    saved = json.loads((whole / "summary.json").read_text())["shrinking"]
    assert saved["times"] >= len(saved["epochs"]) >= 2
    assert saved["multiply_adds"] == pytest.approx(sum(trained[1:]) / 10 / trained[0], abs=0.15)
    assert saved["memory_bytes"] == [first, last]
    for first, second in zip(
        read_lines(whole / GATES), read_lines(tmp_path / "b" / GATES), strict=True
    ):
        for name, gate in first["width"].items():
            assert [g >= 0.5 for g in gate] == [g >= 0.5 for g in second["width"][name]]


def test_the_report_tells_when_channels_were_cut_out(whole: Path, tmp_path: Path) -> None:
    page = write_report([whole], tmp_path / "report.html").read_text()
    assert "Channels cut out" in page
    assert "multiply-adds in training" in page


@pytest.mark.parametrize("at_step", [20, 35, 50, 71, 99])
def test_resumed_before_between_and_after_cuts_it_ends_the_same(
    whole: Path, tmp_path: Path, at_step: int
) -> None:
    folder = tmp_path / "a"
    with pytest.raises(RunInterruptedError):
        learn(override(RunSettings(), ASKED), folder, Audience(observer=Impatient(at_step)))
    resume(folder)
    expected, ended = read_checkpoint(whole), read_checkpoint(folder)
    assert expected is not None
    assert ended is not None
    assert expected[1].keys() == ended[1].keys()
    for name, tensor in expected[1].items():
        assert tensor.numpy().tobytes() == ended[1][name].numpy().tobytes(), name
    assert (whole / COMPACT).read_bytes() == (folder / COMPACT).read_bytes()


def test_killed_in_the_middle_of_a_cut_it_goes_on_from_before(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint on the disk is that of a finished step, whatever the cut had done by then."""

    class Killed(BaseException):
        pass

    own = trainer.shrink_

    def die(*args: Any, **options: Any) -> None:
        own(*args, **options)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "shrink_", die)
        with pytest.raises(Killed):
            run(tmp_path / "a", checkpoint_seconds=0.0)
    resume(tmp_path / "a")
    expected, ended = read_checkpoint(whole), read_checkpoint(tmp_path / "a")
    assert expected is not None
    assert ended is not None
    assert all(torch.equal(tensor, ended[1][name]) for name, tensor in expected[1].items())
