"""A comparison of some methods joins an earlier one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archlearn.errors import SettingsError
from archlearn_paper.comparison.methods import CONTENDERS
from archlearn_paper.comparison.ranking import LARGE
from archlearn_paper.joining import join, main
from archlearn_paper.method_comparison import make_experiment
from archlearn_paper.results import Results, read_results, write_results
from tests.paper.making import make_row

NAME = "compare-lenet-mnist"


def make_results(accuracies: dict[str, float], **given: Any) -> Results:
    """Return a comparison at 1,000 parameters, with one row for each method."""
    settings = {"model": "lenet", "data": "mnist"}
    rows = [
        make_row(row, settings=settings, test_accuracy=accuracy)
        for row, accuracy in {LARGE: 0.99, **accuracies}.items()
    ]
    methods = [each for each in CONTENDERS if f"{each.name} @ 1000" in accuracies]
    derived = make_experiment("lenet", "mnist", (1000,), methods).derive(rows)
    table: dict[str, Any] = {
        "experiment": NAME, "command": "one", "date": "", "hardware": {"gpu": "x"}, "versions": {},
        "seeds": [0], "quick": False, "scale": {"epochs": 3}, "seconds": 5.0,
    }  # fmt: skip
    return Results(rows=rows, derived=derived, **(table | given))


BEFORE = {"archlearn @ 1000": 0.98, "svd @ 1000": 0.9, "svd, not fine-tuned @ 1000": 0.5}
ADDED = {
    "svd @ 1000": 0.95,
    "l1 diagonal, strength 0.01": 0.9,
    "l1 diagonal @ 1000": 0.97,
}


def test_added_methods_are_new_or_take_the_place_of_earlier_ones(tmp_path: Path) -> None:
    folder, new = tmp_path / "results", tmp_path / "new"
    write_results(folder, make_results(BEFORE))
    write_results(new, make_results(ADDED, command="two", seconds=2.0))
    assert main([str(new), "--to", str(folder)]) == 0
    joined = read_results(folder, NAME)
    assert joined is not None
    found = {
        name: of["1000"]["accuracy"]["mean"] for name, of in joined.derived["results"].items() if of
    }
    assert found == pytest.approx(
        {"archlearn": 98, "svd": 95, "l1 diagonal": 97, "svd, not fine-tuned": 50}
    )
    assert joined.derived["ranks"]["1000"][0] == "archlearn"
    assert [row.row for row in joined.rows].count(LARGE) == 1
    assert (joined.command, joined.seconds) == ("one && two", 7.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("seeds", [1]), ("scale", {"epochs": 4}), ("hardware", {"gpu": "y"}), ("quick", True)],
)
def test_another_contest_is_refused(name: str, value: object) -> None:
    before = make_results(BEFORE)
    with pytest.raises(SettingsError, match=f"{name}: compare-lenet-mnist has"):
        join(before, replace(make_results(ADDED), **{name: value}))


def test_other_budgets_are_refused() -> None:
    added = make_results(ADDED)
    other = replace(added, derived={**added.derived, "ranks": {"2000": []}})
    with pytest.raises(SettingsError, match=r"budgets: .* has \['1000'\]"):
        join(make_results(BEFORE), other)


def test_nothing_to_join_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--to", str(tmp_path)]) == 1
    assert "holds no finished comparison" in capsys.readouterr().err
    write_results(tmp_path / "new", make_results(ADDED))
    assert main([str(tmp_path / "new"), "--to", str(tmp_path)]) == 1
    assert "is not there; there is nothing" in capsys.readouterr().err
