"""Workers on a study, as they are started: they share it, are stopped, and go on."""

import signal
import sys
from pathlib import Path

import pytest

from archlearn_paper.baselines.bayesian_search import Space
from archlearn_paper.experiments.search_worker import choose_space, main
from tests.cli.commands import start_command

pytest.importorskip("optuna")
WORDS = ["--data", "digits:28", "--limit", "600", "--epochs", "1"]


def work(folder: Path, *words: str) -> int:
    return main(["--file", str(folder / "study.db"), *WORDS, *words])


def test_a_study_is_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert work(tmp_path, "--trainings", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[:2]] == ["training 1", "training 2"]
    assert lines[2].startswith("2 trainings here, 2 in all; best: 20-50-")
    assert work(tmp_path, "--trainings", "3") == 0
    assert "1 trainings here, 3 in all" in capsys.readouterr().out


def test_trainings_of_other_lengths_are_no_part_of_a_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert work(tmp_path, "--trainings", "1") == 0
    assert work(tmp_path, "--trainings", "1", "--epochs", "2") == 0
    assert capsys.readouterr().out.count("1 trainings here, 1 in all") == 2


def test_caffenet_is_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "caffenet:0.125", "--data", "digits:67", "--panel", "b"]
    assert work(tmp_path, *words, "--trainings", "1") == 0
    assert "1 trainings here, 1 in all; best: " in capsys.readouterr().out


def test_an_interrupted_worker_says_so_and_the_next_makes_what_it_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = [
        sys.executable,
        "-m",
        "archlearn_paper.experiments.search_worker",
        "--file",
        "study.db",
    ]
    many = ["--trainings", "500"]
    with start_command([*module, *WORDS, *many], tmp_path) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline().startswith("training 1: ")
        worker.send_signal(signal.SIGINT)
        output = worker.stdout.read()
    assert worker.returncode == 130
    assert output.endswith("stopped: interrupted; the same command goes on from there\n")
    assert "Traceback" not in output
    assert work(tmp_path, "--trainings", str(output.count("training ") + 3)) == 0
    assert f"{output.count('training ') + 3} in all" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--trainings", "0"], ["--epochs", "-1"], ["--limit", "x"]])
def test_numbers_that_cannot_be_are_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        work(tmp_path, *words)
    assert "is no whole number from 1 on" in capsys.readouterr().err


def test_the_last_width_or_all_of_them() -> None:
    widths = {"a": 3, "b": 4, "c": 5}
    assert choose_space(widths, "a") == Space(most={"c": 5}, fixed={"a": 3, "b": 4})
    assert choose_space(widths, "b") == Space(most=widths, fixed={})
