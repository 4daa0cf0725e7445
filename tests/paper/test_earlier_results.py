"""Results are never replaced by lesser ones, whichever way an experiment is started."""

import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from archlearn_paper import __main__ as experiments
from archlearn_paper import method_comparison
from archlearn_paper.experiment import FULL
from archlearn_paper.results import Results, results_path, write_results
from tests.paper.making import make_row

COMPARISON = "compare-lenet-digits-28"
ROWS = (
    "archlearn, strength 0.1 on neurons", "archlearn @ 5000", "svd @ 5000", "svd @ 10000",
    "svd, not fine-tuned @ 5000", "its architecture from scratch @ 5000",
    "torch-pruning, iterative @ 5000, round 1",
)  # fmt: skip
ALL = "archlearn; svd; torch-pruning, iterative"


def write_earlier(folder: Path, name: str) -> str:
    """Write results of two seeds and return the file's text."""
    scale = replace(FULL, seeds=(0, 1), data="digits:28", epochs=30)
    results = Results(
        experiment=name, command="", date="", hardware={}, versions={}, seeds=scale.seeds,
        quick=False, scale=asdict(scale),
        rows=[make_row(row, settings={"model": "lenet"}) for row in ROWS],
    )  # fmt: skip
    write_results(folder, results)
    return results_path(folder, name).read_text()


@pytest.mark.parametrize(
    ("main", "words", "answer"),
    [
        (experiments.main, "table-3 --seeds 0", "would be lost; say --seeds 0,1, or"),
        (experiments.main, "table-3 --seeds 0,1 --quick", "results of the full version"),
        (method_comparison.main, "--seeds 0", "would be lost; say --seeds 0,1, or"),
        (
            method_comparison.main,
            "--epochs 5",
            "of 30 epochs, and those of 5 would take their place",
        ),
        (
            method_comparison.main,
            "--methods archlearn",
            f"of svd; torch-pruning, iterative besides.*{ALL}",
        ),
        (method_comparison.main, "--budget 5000", "of 10000 besides.*--budget '5000,10000'"),
    ],
)
def test_what_would_replace_results_is_refused_before_anything_is_trained(
    main: Callable[[list[str]], int],
    words: str,
    answer: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = COMPARISON if main is method_comparison.main else "table-3"
    before = write_earlier(tmp_path, name)
    given = ["--data", "digits:28", "--out", str(tmp_path), *words.split()]
    if main is method_comparison.main:
        given = ["--seeds", "0,1", "--methods", ALL, "--budget", "5000,10000", *given]
    assert main(given) == 1
    printed = capsys.readouterr()
    assert "to make" not in printed.out
    assert re.search(answer, printed.err), printed.err
    assert results_path(tmp_path, name).read_text() == before
