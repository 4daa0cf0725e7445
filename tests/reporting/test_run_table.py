"""`archlearn report A B C` shows several runs in a table."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.commands import run_here
from tests.reporting.run_folders import LENET, write_run


def test_several_runs_are_rows_of_a_table_the_best_on_validation_data_first(tmp_path: Path) -> None:
    """The second run is better on test data by chance alone."""
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", replace(LENET, name="lucky", score=0.98, test_score=0.999))
    write_run(tmp_path / "c", finished=False)
    code, said = run_here(["report", "b", "c", "a"], tmp_path)
    assert code == 0
    head, *rows = (" ".join(line.split()) for line in said.splitlines())
    assert head == "run validation test parameters multiply-adds time widths"
    assert rows[0] == "a 99.20 % 99.32 % 19,115 (22.6×) 402,130 (5.7×) 3 min 1 s 11-25-29-10"
    assert rows[1].startswith("lucky 97.88 % 99.90 %")
    assert rows[2].startswith("c 97.83 % – 49,158 (8.77×) 261,482 ")
    assert rows[2].endswith("(unfinished)")
    assert len(rows) == 3
    assert not list(tmp_path.rglob("*.html"))


def test_of_errors_the_smallest_is_first_and_names_are_no_markup(tmp_path: Path) -> None:
    story = replace(LENET, task="regression", data="diabetes")
    write_run(tmp_path / "a", replace(story, name="[red]a", score=2900.0))
    write_run(tmp_path / "b", replace(story, name="b", score=2800.0))
    code, said = run_here(["report", "a", "b"], tmp_path)
    assert code == 0
    assert [line.split()[0] for line in said.splitlines()] == ["run", "b", "[red]a"]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["report"], "a page is about one run, and 0 were named; give one run's folder"),
        (["report", "a", "b", "--out", "c.html"], "several without --out for a table of them"),
        (["report", "a", "nothing"], "cannot report on 'nothing': there is no such folder"),
    ],
)
def test_what_makes_no_report_is_refused(words: list[str], answer: str, tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b")
    code, said = run_here(words, tmp_path)
    assert code == 1
    assert answer in said
