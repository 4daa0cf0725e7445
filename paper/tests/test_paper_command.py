"""`archlearn paper` lists the experiments, runs one, and draws it anew."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.commands import assert_refused, run_here, start

QUICK = ["paper", "table-3", "--quick", "--seeds", "0", "--data", "digits:28", "--out", "r"]


def test_experiments_are_listed_with_a_line_each(tmp_path: Path) -> None:
    code, output = run_here(["paper"], tmp_path)
    assert code == 0
    lines = dict(line.split(maxsplit=1) for line in output.splitlines())
    assert {"table-1", "table-2", "table-3", "figure-3a", "figure-3b"} <= set(lines)
    assert {"properties", "ablation"} <= set(lines)
    assert lines["table-3"].startswith("20-50-(75 x n)-10: the depth that is learnt from 6 to 15")
    assert all(" min on an H200)" in line for line in lines.values())


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ("paper tabel-1", "did you mean 'table-1'?"),
        ("paper table-1 --seeds 1,x", "write different numbers with commas"),
        ("paper table-1 --draw --out nowhere", "run: archlearn paper table-1"),
        ("paper --all --draw --out nowhere", "there are no finished results in nowhere to draw"),
        ("paper table-1 --quik", "did you mean --quick?"),
        ("paper table-3 --quick --data digits:28 --out /proc/a", "cannot write /proc/a"),
        ("paper table-3 --quick --side-by-side 0", "Must be >= 1"),
        ("compare --quick --side-by-side -4", "Must be >= 1"),
        ("paper --docs", "go to the root of the repository"),
    ],
)
def test_what_is_wrong_is_answered_with_what_to_do(
    arguments: str, answer: str, tmp_path: Path
) -> None:
    assert_refused(arguments, answer, tmp_path)


@pytest.mark.slow
def test_an_experiment_is_run_shown_written_and_not_run_again(tmp_path: Path) -> None:
    code, output = run_here(QUICK, tmp_path)
    assert code == 0, output
    assert "18-31-32-24-10" in output
    assert "dead networks" in output
    assert "This is the quick version" in output
    results = json.loads((tmp_path / "r" / "table-3.json").read_text())
    assert results["quick"] is True
    assert [row["row"] for row in results["rows"]] == ["depth 6"]
    page = (tmp_path / "r" / "table-3.md").read_text()
    assert "](table-3.svg)" in page
    assert "| 6 | 5 | 18-31-32-24-10 | 1.02 |" in page
    assert "archlearn paper table-3 --quick" in page
    assert (tmp_path / "r" / "table-3.svg").read_text().startswith("<?xml")
    assert (tmp_path / "r" / "table-3.png").stat().st_size > 10_000

    code, output = run_here(QUICK, tmp_path)
    assert code == 0
    assert "0 runs to make, 1 are there already" in output

    (tmp_path / "r" / "table-3.svg").unlink()
    code, output = run_here(["paper", "table-3", "--draw", "--out", "r"], tmp_path)
    assert code == 0
    assert "to make" not in output
    assert (tmp_path / "r" / "table-3.svg").is_file()


@pytest.mark.parametrize(
    ("changes", "arguments", "answer"),
    [
        ({"quick": False}, "--quick", "choose another folder with --out, or replace them"),
        ({"data": "mnist"}, "--quick", "data mnist"),
    ],
)
def test_results_are_never_replaced_by_lesser_ones(
    changes: dict[str, Any], arguments: str, answer: str, tmp_path: Path
) -> None:
    there = {
        "format": 1, "experiment": "table-3", "command": "", "date": "", "hardware": {},
        "versions": {}, "seeds": changes.get("seeds", [0]), "quick": changes.get("quick", True),
        "scale": {"data": changes.get("data", "digits:28"), "epochs": 6}, "seconds": 1.0,
        "derived": {}, "rows": [],
    }  # fmt: skip
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "table-3.json").write_text(json.dumps(there))
    words = f"paper table-3 --data digits:28 --out r {arguments}"
    code, output = run_here(words.split(), tmp_path)
    assert code == 1, output
    assert answer in output
    assert json.loads((tmp_path / "r" / "table-3.json").read_text()) == there


def test_all_pages_are_drawn_from_what_is_there_without_runs(tmp_path: Path) -> None:
    results = Path(__file__).parents[2] / "results"
    (tmp_path / "r").mkdir()
    for name in ("figure-3a", "compare-lenet-mnist"):
        shutil.copyfile(results / f"{name}.json", tmp_path / "r" / f"{name}.json")
    begun = json.loads((results / "figure-3a.json").read_text()) | {"derived": {}}
    (tmp_path / "r" / "figure-3a.unfinished.json").write_text(json.dumps(begun))
    code, output = run_here(["paper", "--all", "--draw", "--out", "r"], tmp_path)
    assert code == 0, output
    assert json.loads((tmp_path / "r" / "figure-3a.unfinished.json").read_text()) == begun
    assert "page 1 of 2: figure-3a" in output
    assert "page 2 of 2: compare-lenet-mnist" in output
    assert "to make" not in output
    page = (tmp_path / "r" / "figure-3a.md").read_text()
    assert "commit not recorded" in page


def test_a_page_that_cannot_be_made_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    words = ["paper", "--all", "--quick", "--data", "diabetes", "--out", "r"]
    code, output = run_here(words, tmp_path)
    assert code == 1
    assert "page 10 of 11: ablation" in output
    assert "table-4 was left out: it needs --images" in output
    assert "ablation, compare-lenet-diabetes could not be made" in output


@pytest.mark.parametrize(("quick", "n_threads"), [(True, 1), (False, 2)])
def test_a_quick_version_has_one_thread(tmp_path: Path, *, quick: bool, n_threads: int) -> None:
    words = [*QUICK, "--within", "1e-9"]
    torch.set_num_threads(2)
    try:
        code, output = run_here(words if quick else [w for w in words if w != "--quick"], tmp_path)
        assert torch.get_num_threads() == n_threads
    finally:
        torch.set_num_threads(1)
    assert code == 0
    assert "runs of table-3 are left for another time" in output


@pytest.mark.slow
def test_ctrl_c_says_that_the_same_command_goes_on(tmp_path: Path) -> None:
    with start([*QUICK[:-1], "s"], tmp_path) as process:
        assert process.stdout is not None
        assert "1 runs to make" in process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "stopped: interrupted; every run that had ended is in s" in output
    assert "Traceback" not in output
