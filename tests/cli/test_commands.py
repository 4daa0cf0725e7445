"""The commands on a small run of real data, one after the other."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import archlearn as al
from tests.cli.commands import exit_code
from tests.run_files import COMPACT, METRICS, read_lines


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run, described by a file and an option."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "run.toml").write_text(
        'model = "mlp:40-30"\ndata = "digits"\nepochs = 3\n'
        '[hardware]\naccelerator = "cpu"\nthreads = 1\n[record]\nlogger = "csv"\n'
    )
    call(["learn", "--config", str(folder / "run.toml"), "--epochs", "30"], folder / "a")
    return folder / "a"


def call(arguments: list[str], out: Path | None = None) -> None:
    words = arguments if out is None else [*arguments, "--out", str(out)]
    assert exit_code(words) == 0


def test_a_run_leaves_everything_in_its_folder(run_folder: Path) -> None:
    names = {path.name for path in run_folder.iterdir()}
    assert names >= {
        "config.toml", "metrics.jsonl", "gates.jsonl", "checkpoint.safetensors",
        "compact.safetensors", "summary.json", "report.html", "csv",
    }  # fmt: skip
    assert "epochs = 30" in (run_folder / "config.toml").read_text()
    summary = json.loads((run_folder / "summary.json").read_text())
    assert summary["before"]["architecture"] == "40-30-10"
    for when in ("before", "after"):
        layers = summary[when]["layers"]
        assert sum(layer["multiply_adds"] for layer in layers) == summary[when]["multiply_adds"]
    assert summary["after"]["parameters"] < summary["before"]["parameters"]
    assert summary["test_accuracy"] > 0.9
    assert summary["certificate"]
    assert summary["steps"] == 300
    rows = read_lines(run_folder / METRICS)
    assert [row["epoch"] for row in rows] == list(range(31))
    assert rows[-1]["parameters"] == summary["after"]["parameters"]
    assert rows[-1]["train_loss"] < rows[1]["train_loss"]


def test_a_run_is_exported_with_its_size(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call(["export", str(run_folder), "--to", "torch-export"], tmp_path / "net.pt2")
    summary = json.loads((run_folder / "summary.json").read_text())
    found = re.search(r": (\S+) bytes, differs by", capsys.readouterr().out)
    assert found is not None
    n_bytes = int(found[1].replace(",", ""))
    assert n_bytes == (tmp_path / "net.pt2").stat().st_size > 4 * summary["after"]["parameters"]


def test_compact_model_computes_what_the_summary_says(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call(["evaluate", str(run_folder)])
    summary = json.loads((run_folder / "summary.json").read_text())
    assert f"{summary['test_accuracy']:.2%} right" in capsys.readouterr().out
    small = al.load(run_folder / "compact.safetensors")
    assert sum(p.numel() for p in small.parameters()) == summary["after"]["parameters"]
    call(["evaluate", str(run_folder / "compact.safetensors"), "--data", "digits"])
    assert f"{summary['test_accuracy']:.2%} right" in capsys.readouterr().out


def test_speed_is_measured_beside_the_first_network_and_shown_by_the_report(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call(["evaluate", str(run_folder)])
    said = capsys.readouterr().out
    summary = json.loads((run_folder / "summary.json").read_text())
    before, after = (summary[when]["multiply_adds"] for when in ("before", "after"))
    assert f"multiply-adds {before:,} -> {after:,} ({before / after:.2f}×), parameters" in said
    assert re.search(
        r"^cpu, batch 1: \S+ ms -> \S+ ms \(\S+×\), memory \S+ MB -> \S+ MB$", said, re.M
    )
    rows = json.loads((run_folder / "speed.json").read_text())["rows"]
    assert [row["batch_size"] for row in rows if row["device"] == "cpu"] == [1, 64]
    assert all(row["bytes"][0] > row["bytes"][1] > 0 for row in rows)
    assert "Time and memory of a forward pass" in (run_folder / "report.html").read_text()
    (run_folder / "speed.json").unlink()
    call(["evaluate", str(run_folder), "--no-speed"])
    assert "batch" not in capsys.readouterr().out
    assert not (run_folder / "speed.json").exists()


def test_times_that_cannot_be_kept_are_refused_before_they_are_measured(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_folder / "speed.json").unlink(missing_ok=True)
    (run_folder / "speed.json").mkdir()
    assert exit_code(["evaluate", str(run_folder)]) == 1
    (run_folder / "speed.json").rmdir()
    said = capsys.readouterr()
    assert "leave the times out: --no-speed" in said.err
    assert said.out == ""


@pytest.mark.slow
def test_before_is_measured_on_the_same_part_and_the_report_keeps_that_of_test_data(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"learn --data digits --start-from {run_folder / COMPACT} --epochs 1"
    call([*words.split(), "--accelerator", "cpu", "--threads", "1"], tmp_path / "b")
    call(["evaluate", str(tmp_path / "b")])
    kept = json.loads((tmp_path / "b" / "speed.json").read_text())["score_before"]
    n_examples: dict[str, list[str]] = {}
    for split in ("test", "validation"):
        capsys.readouterr()
        call(["evaluate", str(tmp_path / "b"), "--split", split])
        n_examples[split] = re.findall(r"on ([\d,]+) examples", capsys.readouterr().out)
    assert all(len(found) == 2 and found[0] == found[1] for found in n_examples.values())
    assert n_examples["test"] != n_examples["validation"]
    assert json.loads((tmp_path / "b" / "speed.json").read_text())["score_before"] == kept


def test_a_checkpoint_is_answered_with_the_run_to_measure(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        exit_code(["evaluate", str(run_folder / "checkpoint.safetensors"), "--data", "digits"]) == 1
    )
    assert f"to measure the run: archlearn evaluate {run_folder}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("compact RUN --out /proc/x.safetensors", "choose another file with --out"),
        ("compact RUN --out RUN", "it is a folder; choose another file with --out"),
        ("compact RUN --budget parameters=20%", "a file of its own: --out small.safetensors"),
        ("compact RUN --pay multiply_adds", "a file of its own: --out small.safetensors"),
        ("report RUN --out /proc/x.html", "choose another file with --out"),
        ("evaluate RUN --data diabetes", "does not take examples of shape (10,)"),
        ("evaluate HALF", "archlearn compact HALF"),
        ("export no/run --to onnx", "there is no no/run; give a run's folder"),
        ("evaluate no/run", "there is no no/run; give a run's folder"),
        ("inspect mlp --shape 64 --outputs -3", "Must be >= 1"),
    ],
)
def test_what_is_wrong_is_answered_with_what_to_do(
    words: str, answer: str, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half = tmp_path / "half"
    half.mkdir()
    (half / "config.toml").write_text('data = "digits"\n')
    names = {"RUN": str(run_folder), "HALF": str(half)}
    assert exit_code([names.get(word, word) for word in words.split()]) == 1
    assert answer.replace("HALF", str(half)) in capsys.readouterr().err


def test_a_refused_report_leaves_no_folder_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["report", str(tmp_path / "gone")]) == 1
    assert "there is no such folder; give a folder that" in capsys.readouterr().err
    assert not (tmp_path / "gone").exists()


def test_compacting_a_checkpoint_gives_the_model_of_the_run(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call(["compact", str(run_folder)], tmp_path / "again.safetensors")
    summary = json.loads((run_folder / "summary.json").read_text())
    before, after = (
        f"{costs['parameters']:,} parameters, {costs['multiply_adds']:,} multiply-adds"
        for costs in (summary["before"], summary["after"])
    )
    assert f"{before} -> {after}\n" in capsys.readouterr().out
    again = al.load(tmp_path / "again.safetensors")
    small = al.load(run_folder / "compact.safetensors")
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again(x), small(x))


def test_report_inspect_and_data_print_what_they_did(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call(["report", str(run_folder)], tmp_path / "page.html")
    assert str(tmp_path / "page.html") in capsys.readouterr().out
    assert "<html" in (tmp_path / "page.html").read_text()
    call(["inspect", "mlp:12-7", "--shape", "64"])
    shown = capsys.readouterr().out
    assert "layers.0" in shown
    assert "12" in shown
    before = json.loads((run_folder / "summary.json").read_text())["before"]["parameters"]
    call(["inspect", str(run_folder)])
    assert f"costs: {before:,} parameters" in capsys.readouterr().out
    call(["data", "diabetes"])
    assert "regression, 1 outputs, examples of 10" in capsys.readouterr().out
    call(["data"])
    assert "fashion-mnist" in capsys.readouterr().out


@pytest.mark.slow
def test_regression_beats_the_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "learn --model mlp:40-30 --data diabetes --epochs 40 --threads 1 --no-report"
    call(arguments.split(), tmp_path / "a")
    assert "mean squared error" in capsys.readouterr().out
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    spread = summary["normalisation"]["target_std"][0] ** 2
    assert summary["task"] == "regression"
    assert summary["test_accuracy"] is None
    assert summary["test_error"] < 0.8 * spread
    row = read_lines(tmp_path / "a" / METRICS)[-1]
    assert row["validation_error"] == pytest.approx(row["validation_loss"] * spread, rel=1e-3)


def test_a_folder_that_holds_a_run_is_not_overwritten(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["learn", "--data", "digits", "--model", "mlp", "--out", str(run_folder)]) == 1
    assert f"go on with it by --resume {run_folder}" in capsys.readouterr().err


def test_wrong_name_leaves_the_folder_free(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code(["learn", "--data", "digist", "--out", str(tmp_path / "a")])
    assert "did you mean 'digits'" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_baseline_learns_weights_only(tmp_path: Path) -> None:
    arguments = "learn --model mlp:20 --data digits --epochs 3 --learn nothing --threads 1"
    call(arguments.split(), tmp_path / "a")
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["after"]["parameters"] == summary["before"]["parameters"] == 1510
    assert (tmp_path / "a" / "report.html").exists()


@pytest.mark.slow
def test_terminal_shows_a_live_picture(tmp_path: Path) -> None:
    """Run on a pseudo-terminal: the picture names layers, costs and what they may be."""
    main_end, terminal = pty.openpty()
    command = (
        f"{sys.executable} -m archlearn_cli learn --model mlp:20 --data digits --epochs 3 "
        "--threads 1 --no-report --out a"
    )
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command.split(), cwd=tmp_path, stdout=terminal, stderr=terminal, env=environment
    ) as process:
        os.close(terminal)
        shown = b""
        while True:
            try:
                piece = os.read(main_end, 4096)
            except OSError:
                break
            if not piece:
                break
            shown += piece
        process.wait(timeout=60)
    os.close(main_end)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert process.returncode == 0, text
    assert "epoch 3/3" in text
    assert re.search(r"[\d.]+k?/[\d.]+k? multiply-adds", text)
    assert "layers.0" in text
    assert "left" in text
    assert b"\x1b[" in shown
