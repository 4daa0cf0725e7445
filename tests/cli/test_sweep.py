"""A sweep learns to several budgets, goes on where it was stopped, and hands back a network."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

import archlearn as al
from archlearn.errors import SettingsError
from archlearn_cli.training import RunSettings, sweep
from archlearn_cli.training.sweep import PLAIN, Point, SweepRun, choose_cheapest, list_runs
from tests.cli.commands import exit_code

WORDS = [
    "sweep", "--model", "mlp:24-16", "--data", "digits", "--limit", "600", "--epochs", "6",
    "--accelerator", "cpu", "--threads", "1", "--no-report",
]  # fmt: skip


def call(*words: str) -> object:
    return exit_code([*WORDS, *words])


@pytest.mark.slow
def test_a_sweep_is_made_once_and_taken_up_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--budget", "multiply_adds=30%", "--lose", "100", "--jobs", "2",
             "--out", str(tmp_path / "s")]  # fmt: skip
    assert call(*words) == 0
    said = capsys.readouterr().out
    assert "2 of 2" in said
    assert "within 100 points of plain: multiply_adds=30%" in said
    costs = {
        path.parent.name: json.loads(path.read_text())["after"]["multiply_adds"]
        for path in (tmp_path / "s").glob("*/summary.json")
    }
    plain = costs["plain-seed-0"]
    assert costs["multiply_adds-30-seed-0"] <= 0.3 * plain
    small = al.load(tmp_path / "s" / "compact.safetensors")
    chosen = al.load(tmp_path / "s" / "multiply_adds-30-seed-0" / "compact.safetensors")
    assert small.state_dict().keys() == chosen.state_dict().keys()
    assert (tmp_path / "s" / "report.html").is_file()
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").glob("*/summary.json")}
    (tmp_path / "s" / "multiply_adds-30-seed-0" / "summary.json").unlink()
    assert call(*words) == 0
    again = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").glob("*/summary.json")}
    changed = [path.parent.name for path, at in again.items() if times[path] != at]
    assert changed == ["multiply_adds-30-seed-0"]


def test_what_is_wrong_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "s")]
    assert call(*out) == 1
    assert "--budget multiply_adds=75%,50%" in capsys.readouterr().err
    assert call("--budget", "multiply_adds", *out) == 1
    assert "write it as --budget" in capsys.readouterr().err
    assert call("--budget", "multiply_adds=50%,half", *out) == 1
    assert "budget for multiply_adds is 'half'; give a number" in capsys.readouterr().err
    assert call("--budget", "parameters=50%", "--seeds", "a", *out) == 1
    assert "write 0,1,2" in capsys.readouterr().err
    assert call("--budget", "parameters=50%", "--seed", "3", *out) == 1
    assert "--seeds 3" in capsys.readouterr().err
    assert call("--budget", "parameters=50%", "--validation", "0", *out) == 1
    assert "runs are compared by validation data" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_a_sweep_in_a_folder_that_cannot_be_made_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s").write_text("a file")
    assert call("--budget", "parameters=50%", "--out", str(tmp_path / "s")) == 1
    assert "s cannot be written (File exists); choose another --out" in capsys.readouterr().err


def test_a_sweep_in_the_folder_of_a_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.toml").touch()
    assert call("--budget", "parameters=50%", "--out", str(tmp_path)) == 1
    assert "is the folder of a run; choose another --out" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


def test_a_regression_is_refused_after_its_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def finish(run: SweepRun) -> list[str]:
        made.append(run.folder.name)
        run.folder.mkdir(parents=True)
        (run.folder / "summary.json").write_text('{"validation_error": 0.5}')
        return ["--version"]

    monkeypatch.setattr(sweep, "_command", finish)
    runs = list_runs(tmp_path / "s", RunSettings(), ["parameters=50%"], [0, 1], with_plain=False)
    with pytest.raises(SettingsError, match="no accuracy on validation data"):
        sweep.run_sweep(runs, 1, lambda run: None)
    assert made == ["parameters-50-seed-0"]


def test_what_is_asked_for_twice_is_made_once(tmp_path: Path) -> None:
    budgets = ["parameters=50%", "parameters=50%"]
    runs = list_runs(tmp_path, RunSettings(), budgets, [1, 0, 1], with_plain=False)
    assert [run.settings.seed for run in runs] == [1, 0]


@pytest.mark.slow
def test_a_run_that_fails_is_told_and_can_be_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--budget", "parameters=1", "--out", str(tmp_path / "s")) == 3
    said = capsys.readouterr().err
    assert "parameters-1-seed-0 failed" in said
    assert "finished runs are kept: correct this, and give the command again" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_answered_with_how_to_go_on(
    number: signal.Signals,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(run: SweepRun) -> None:
        assert signal.getsignal(number) is signal.default_int_handler
        signal.raise_signal(number)

    monkeypatch.setattr(sweep, "_command", interrupt)
    assert call("--budget", "parameters=50%", "--out", str(tmp_path / "s")) == 130
    assert "give the same command again" in capsys.readouterr().err


def test_values_and_seeds_are_runs_of_their_own(tmp_path: Path) -> None:
    budgets = ["multiply_adds=60%", "parameters=900"]
    runs = list_runs(tmp_path, RunSettings(), budgets, [0, 3], with_plain=True)
    assert [run.folder.name for run in runs] == [
        "plain-seed-0", "plain-seed-3", "multiply_adds-60-seed-0", "multiply_adds-60-seed-3",
        "parameters-900-seed-0", "parameters-900-seed-3",
    ]  # fmt: skip
    assert [(run.settings.gates.learn, run.settings.gates.budget) for run in runs[1::2]] == [
        ("nothing", None), ("all", ("multiply_adds=60%",)), ("all", ("parameters=900",)),
    ]  # fmt: skip
    assert [run.settings.seed for run in runs] == [0, 3, 0, 3, 0, 3]


def test_a_run_that_was_asked_for_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep into the folder of another one would show the other one's numbers as its own."""
    started: list[SweepRun] = []
    monkeypatch.setattr(sweep, "_run_here", lambda waiting, *_: started.extend(waiting))

    def make(settings: RunSettings, budget: str) -> None:
        runs = list_runs(tmp_path, settings, [budget], [0, 1], with_plain=False)
        sweep.run_sweep(runs, 1, started.append)

    make(RunSettings(), "parameters=12.5%")
    configs = [sweep._command(run)[2] for run in started]  # pyright: ignore[reportPrivateUsage]
    assert len(set(configs)) == 2, "runs that begin together would learn with one of both seeds"
    for run in started:
        run.folder.mkdir()
    make(
        replace(RunSettings(), hardware=replace(RunSettings().hardware, threads=2)),
        "parameters=12.5%",
    )
    with pytest.raises(
        al.ArchlearnError, match=r"12.5-seed-0 was learnt with other settings.*--out"
    ):
        make(replace(RunSettings(), model="mlp"), "parameters=12.5%")
    with pytest.raises(al.ArchlearnError, match="was learnt with other settings"):
        make(RunSettings(), "parameters=12.5")


def test_the_cheapest_within_the_loss_is_chosen() -> None:
    run = SweepRun(PLAIN, Path("a"), RunSettings())
    rows = [(PLAIN, 0.92, 100.0), ("a", 0.918, 50.0), ("b", 0.914, 25.0), ("c", 0.90, 10.0)]
    points = [Point(name, accuracy, 1.0, macs, run) for name, accuracy, macs in rows]
    assert choose_cheapest(points, 0.5).budget == "a"
    assert choose_cheapest(points, 1.0).budget == "b"
    assert choose_cheapest(points, 0.0).budget == PLAIN
