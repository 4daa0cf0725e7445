"""A run with `--validation 0` learns from all train data and is measured on the test part alone."""

import json
from pathlib import Path

import pytest

import archlearn_cli as cli
from archlearn import SettingsError
from tests.cli.commands import exit_code
from tests.run_files import METRICS, SUMMARY, read_lines

ASKED = {
    "model": "mlp:20",
    "data": "digits",
    "limit": 300,
    "epochs": 2,
    "batch_size": 60,
    "accelerator": "cpu",
    "validation": 0.0,
    "report": False,
}


def option(name: str, value: object) -> list[str]:
    words = name.replace("_", "-")
    return [f"--no-{words}"] if value is False else [f"--{words}", str(value)]


def call(*words: str) -> object:
    return exit_code(words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that set nothing apart."""
    folder = tmp_path_factory.mktemp("run") / "a"
    cli.training.learn(cli.training.override(cli.training.RunSettings(), ASKED), folder)
    return folder


def test_run_says_that_it_is_measured_at_the_end_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path
    words = [word for name, value in ASKED.items() for word in option(name, value)]
    assert call("learn", *words, "--out", str(folder / "a")) == 0
    output = capsys.readouterr().out
    assert "no validation part: measured once, on the test part, at the end" in output
    assert "not validated" in output
    assert "% right" in output
    rows = read_lines(folder / "a" / METRICS)
    assert [row["validation_loss"] for row in rows] == [None, None, None]
    assert [row["validation_accuracy"] for row in rows] == [None, None, None]
    summary = json.loads((folder / "a" / SUMMARY).read_text())
    assert summary["n_validation"] == 0
    assert summary["validation_accuracy"] is None
    assert 0 < summary["test_accuracy"] <= 1


def test_all_train_examples_are_learnt_from(tmp_path: Path) -> None:
    every = ASKED | {"limit": 5000, "epochs": 1, "batch_size": 1438}
    cli.training.learn(cli.training.override(cli.training.RunSettings(), every), tmp_path / "a")
    assert json.loads((tmp_path / "a" / SUMMARY).read_text())["steps"] == 1
    with pytest.raises(SettingsError, match=r"1437 \(train examples\)"):
        cli.training.learn(
            cli.training.override(cli.training.RunSettings(), every | {"validation": 0.001}),
            tmp_path / "b",
        )


def test_report_says_so_and_leaves_the_figure_out(folder: Path, tmp_path: Path) -> None:
    page = cli.reporting.write_report(folder, tmp_path / "page.html").read_text()
    assert "no validation part" in page
    assert "On validation data." not in page


def test_evaluate_refuses_a_part_that_is_not_there(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("evaluate", str(folder), "--split", "validation") == 1
    assert "no validation part apart (--validation 0)" in capsys.readouterr().err
    assert call("evaluate", str(folder), "--no-speed") == 0
    assert "% right" in capsys.readouterr().out
