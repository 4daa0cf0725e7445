"""Experiments run without the command line's parts: by `python -m`, in plain lines."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from archlearn_paper import __main__ as experiments
from archlearn_paper import method_comparison
from archlearn_paper.registry import TITLES

QUICK = ["--quick", "--seeds", "0", "--data", "digits:28"]


def test_experiments_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert experiments.main([]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(TITLES)


def test_an_experiment_is_made_shown_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert experiments.main(["table-3", *QUICK, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "1 runs to make" in said
    assert said.splitlines()[-1] == str(tmp_path / "table-3.md")
    results = json.loads((tmp_path / "table-3.json").read_text())
    assert results["command"].startswith("python -m archlearn_paper table-3 --quick")


@pytest.mark.parametrize(
    ("main", "words", "answer"),
    [
        (experiments.main, ["tabel-1"], "did you mean 'table-1'?"),
        (experiments.main, ["table-1", "--seeds", "1,1"], "write different numbers with commas"),
        (method_comparison.main, ["--budget", "many"], "write different numbers of parameters"),
        (method_comparison.main, ["--methods", "svd;magic"], "magic"),
        (
            method_comparison.main,
            ["--quick", "--data", "digits:28", "--budget", "10"],
            "lenet has 431,080 parameters, and 89 with one channel",
        ),
    ],
)
def test_what_is_wrong_is_answered_before_anything_is_trained(
    main: Callable[[list[str]], int],
    words: list[str],
    answer: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*words, "--out", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert answer in printed.err
    assert "to make" not in printed.out
    assert list(tmp_path.iterdir()) == []
