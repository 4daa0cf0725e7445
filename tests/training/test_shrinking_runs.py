"""Runs that shrink: the same numbers as without, resumed from any moment, told in the metrics."""

import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import archlearn_cli as cli
from archlearn import RunInterruptedError
from tests.run_files import COMPACT, GATES, METRICS, read_lines
from tests.training.test_run import Impatient

ASKED = {
    "model": "mlp:40-30", "data": "digits", "epochs": 10, "batch_size": 60, "limit": 600,
    "accelerator": "cpu", "learn": "width", "threads": 1, "report": False, "precision": "64-true",
    "checkpoint_seconds": 1e9, "budget": ("multiply_adds=30%",),
    "gate_schedule": ("patience=5",),
}  # fmt: skip


def run(folder: Path, **given: Any) -> dict[str, Any]:
    return dict(
        cli.training.learn(cli.training.override(cli.training.RunSettings(), ASKED | given), folder)
    )


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
    page = cli.reporting.write_report(whole, tmp_path / "report.html").read_text()
    assert "Channels cut out" in page
    assert "multiply-adds in training" in page


def assert_same_end(whole: Path, folder: Path) -> None:
    """Compare weights, gates, optimisers, random states, gates over time and the compact model."""
    expected, ended = cli.training.read_checkpoint(whole), cli.training.read_checkpoint(folder)
    assert expected is not None
    assert ended is not None
    assert expected[1].keys() == ended[1].keys()
    for name, tensor in expected[1].items():
        assert tensor.numpy().tobytes() == ended[1][name].numpy().tobytes(), name
    assert read_lines(whole / GATES) == read_lines(folder / GATES)
    assert (whole / COMPACT).read_bytes() == (folder / COMPACT).read_bytes()


@pytest.mark.parametrize("at_step", [35, 71])
def test_resumed_before_between_and_after_cuts_it_ends_the_same(
    whole: Path, tmp_path: Path, at_step: int
) -> None:
    folder = tmp_path / "a"
    with pytest.raises(RunInterruptedError):
        cli.training.learn(
            cli.training.override(cli.training.RunSettings(), ASKED),
            folder,
            cli.training.Audience(observer=Impatient(at_step)),
        )
    cli.training.resume(folder)
    assert_same_end(whole, folder)


def die_in_run(folder: Path, function: str, times: int) -> None:
    """Learn, saving after each step, and be killed when a function is called for the n-th time."""
    calls: list[FrameType] = []

    def watch(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_qualname == function:
            calls.append(frame)
            if len(calls) == times:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)
    run(folder, checkpoint_seconds=0.0)


@pytest.mark.parametrize(
    ("function", "times"),
    [pytest.param("_prepare", 1, marks=pytest.mark.slow),
     pytest.param("_set_numbers_", 4, marks=pytest.mark.slow),
     pytest.param("GateOptimizer.follow_model", 2, marks=pytest.mark.slow), ("_transplant_", 3),
     pytest.param("TrainingLoop._end_epoch", 10, marks=pytest.mark.slow)],
    ids=["in front of the first cut", "with some of its weights cut", "at the end of a cut",
         "in the third cut", "behind the last cut"],
)  # fmt: skip
def test_killed_during_a_cut_and_resumed_it_ends_the_same(
    whole: Path, tmp_path: Path, function: str, times: int
) -> None:
    """By `kill -9`: the checkpoint is of a finished step, whatever the cut had done by then."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # torch is imported once for all of them
    process = context.Process(target=die_in_run, args=(tmp_path / "a", function, times))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    cli.training.resume(tmp_path / "a")
    assert_same_end(whole, tmp_path / "a")
