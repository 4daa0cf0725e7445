"""Figure 4 on numbers chosen by hand."""

import math
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import archlearn as al
from archlearn_paper.experiment import FULL, FinishedRun, Row
from archlearn_paper.experiments.figure_4 import (
    EXPERIMENT,
    PANELS,
    Panel,
    propose,
    propose_widths,
)
from archlearn_paper.plots import draw_figure_4
from paper.tests import making
from paper.tests.making import make_row

pytest.importorskip("optuna")
LAST, ALL, *_ = PANELS
PRICE = LAST.price


def rows_of(objectives: list[float], learnt: float, seed: int = 0) -> list[Row]:
    """Rows whose loss is the objective less the price of 9 neurons."""
    rows: list[Row] = []
    for panel in (LAST, ALL):
        rows.append(make_row(panel.row(), seed, train_loss=learnt - 9 * PRICE, seconds=5.0))
        rows += [
            make_row(
                panel.row(number),
                seed,
                train_loss=value - 9 * PRICE,
                seconds=3.0,
                measured={"search_seconds": 0.5},
            )
            for number, value in enumerate(objectives)
        ]
    return rows


def test_objectives_and_times_by_hand() -> None:
    curve = EXPERIMENT.derive(rows_of([0.9, 0.5, 0.7, 0.2], learnt=0.5))["panels"][LAST.key][
        "curves"
    ][0]
    assert curve["learnt"]["objective"] == pytest.approx(0.5)
    assert curve["best"] == pytest.approx([0.9, 0.5, 0.5, 0.2])
    assert curve["seconds"] == pytest.approx([3.5, 7.0, 10.5, 14.0])


def test_how_many_trainings_it_took() -> None:
    derived = EXPERIMENT.derive(
        rows_of([0.9, 0.45, 0.2], learnt=0.5) + rows_of([0.9, 0.8], 0.5, seed=1)
    )
    curves = derived["panels"][ALL.key]["curves"]
    assert [curve["trainings_to_match"] for curve in curves] == [2, None]
    assert curves[0]["seconds_to_match"] == pytest.approx(7.0)
    found = EXPERIMENT.check(derived)
    assert [each.measured for each in found] == ["2, not in 2", "2, not in 2"]
    assert not any(each.met for each in found)
    late = EXPERIMENT.derive(
        rows_of([0.9] * 19 + [0.4], learnt=0.5) + rows_of([0.9] * 20, 0.5, seed=1)
    )
    assert all(each.met for each in EXPERIMENT.check(late))
    assert not EXPERIMENT.check(EXPERIMENT.derive(rows_of([0.9] * 18 + [0.4, 0.4], learnt=0.5)))[
        0
    ].met
    # a search that was cut short shows nothing
    assert not EXPERIMENT.check(EXPERIMENT.derive(rows_of([0.9] * 19, learnt=0.5)))[0].met
    assert making.rows_of(EXPERIMENT.tabulate(derived)[0])[0][-1] == "2, not in 2"


def test_rows_become_trainings_of_their_own_panel() -> None:
    trainings = LAST.find_trainings(rows_of([0.9, 0.4], learnt=0.5), 0)
    assert [round(LAST.objective(row), 1) for row in trainings] == [0.9, 0.4]
    assert LAST.find_trainings(rows_of([0.9, 0.4], learnt=0.5), 1) == []


def test_every_search_is_drawn_by_itself_beside_its_run() -> None:
    derived = EXPERIMENT.derive(
        rows_of([0.9, 0.45, 0.2], learnt=0.5) + rows_of([0.7, 0.8], 0.6, seed=1)
    )
    first, second = draw_figure_4(derived).axes
    assert [list(line.get_ydata()) for line in first.get_lines()] == [
        pytest.approx([0.9, 0.45, 0.2]), pytest.approx([0.5, 0.5]),
        pytest.approx([0.7, 0.7]), pytest.approx([0.6, 0.6]),
    ]  # fmt: skip
    assert second.get_title(loc="left") == "(b) λ = 1e-05"


def test_searches_are_in_the_logarithm_of_the_widths() -> None:
    first = [propose_widths(LAST.searched, [], seed=seed)["fc1"] for seed in range(12)]
    # a half of 500 is 9 doublings' last one: in widths, half of all proposals would lie there
    assert sum(width > 250 for width in first) <= 4
    assert min(first) < 20


def test_both_ways_have_the_same_epochs_and_batches() -> None:
    done = [FinishedRun(row=row, path=Path("none")) for row in rows_of([0.9], learnt=0.5)]
    works = [*EXPERIMENT.stages[0](FULL, []), *propose(FULL, done, number=1)]
    assert len(works) == 2 * 2 * 3 * 3
    for work in works:
        assert (work.settings.epochs, work.settings.batch_size) == (20, 500)
        assert work.settings.validation == 0.0
        assert work.settings.optimizer == works[0].settings.optimizer
    assert works[-1].settings.model.startswith("lenet:")
    assert works[-1].measured["search_seconds"] > 0


def bowl(widths: Mapping[str, int]) -> float:
    """Has its least value, 0, at 12-30-120, and rises with the logarithms, as the search goes."""
    least = {"conv1": 12, "conv2": 30, "fc1": 120}
    return sum(math.log(widths[layer] / width) ** 2 for layer, width in least.items())


def search(panel: Panel, seed: int, count: int) -> list[tuple[dict[str, int], float]]:
    trained: list[tuple[dict[str, int], float]] = []
    for _ in range(count):
        widths = propose_widths(panel.searched, trained, seed=seed)
        trained.append((widths, bowl(widths)))
    return trained


@pytest.mark.slow
def test_the_last_width_is_found() -> None:
    trained = search(LAST, 0, 14)
    best, _ = min(trained, key=lambda each: each[1])
    assert abs(best["fc1"] - 120) <= 10
    assert best["conv1"] == 20
    assert all(1 <= widths["fc1"] <= 500 for widths, _ in trained)


@pytest.mark.slow
def test_all_three_widths_are_searched_and_a_proposal_follows_from_what_was_trained() -> None:
    trained = search(ALL, 3, 12)
    for layer in ALL.searched:
        assert len({widths[layer] for widths, _ in trained}) > 3
    assert propose_widths(ALL.searched, trained[:7], seed=3) == trained[7][0]
    assert propose_widths(ALL.searched, trained[:2], seed=4) != trained[2][0]


def test_the_objective_by_hand() -> None:
    row = make_row("AL (a)", train_loss=0.02, widths={"conv1": 20, "conv2": 50, "fc1": 500, "o": 9})
    assert LAST.objective(row) == pytest.approx(0.0257)


def test_the_extra_is_named_where_optuna_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(al.InputError, match=r"archlearn\[bench\]"):
        propose_widths(["fc1"], [], seed=0)
