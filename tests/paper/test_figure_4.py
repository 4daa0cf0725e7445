"""Figure 4 on numbers chosen by hand."""

from pathlib import Path

import pytest

from archlearn_paper.experiment import FULL, FinishedRun, Row
from archlearn_paper.experiments.figure_4 import (
    BATCH_SIZE,
    EPOCHS,
    PANELS,
    ask_next,
    check,
    derive,
    learn_rows,
    name_model,
    propose,
    read_trainings,
    tabulate,
)
from archlearn_paper.plots import draw_figure_4
from tests.paper.making import make_row

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
    curve = derive(rows_of([0.9, 0.5, 0.7, 0.2], learnt=0.5))["panels"][LAST.key]["curves"][0]
    assert curve["learnt"]["objective"] == pytest.approx(0.5)
    assert curve["best"] == pytest.approx([0.9, 0.5, 0.5, 0.2])
    assert curve["seconds"] == pytest.approx([3.5, 7.0, 10.5, 14.0])


def test_how_many_trainings_it_took() -> None:
    derived = derive(rows_of([0.9, 0.45, 0.2], learnt=0.5) + rows_of([0.9, 0.8], 0.5, seed=1))
    curves = derived["panels"][ALL.key]["curves"]
    assert [curve["trainings_to_match"] for curve in curves] == [2, None]
    assert curves[0]["seconds_to_match"] == pytest.approx(7.0)
    found = check(derived)
    assert [each.measured for each in found] == ["2, not in 2", "2, not in 2"]
    assert not any(each.met for each in found)
    late = derive(rows_of([0.9] * 19 + [0.4], learnt=0.5) + rows_of([0.9] * 20, 0.5, seed=1))
    assert all(each.met for each in check(late))
    assert not check(derive(rows_of([0.9] * 18 + [0.4, 0.4], learnt=0.5)))[0].met
    # a search that was cut short shows nothing
    assert not check(derive(rows_of([0.9] * 19, learnt=0.5)))[0].met
    assert tabulate(derived)[0].rows[0][-1] == "2, not in 2"


def test_panels_search_what_they_say() -> None:
    assert LAST.space().most == {"fc1": 500}
    assert LAST.space().fixed == {"conv1": 20, "conv2": 50}
    assert ALL.space().fixed == {}
    assert name_model({"fc1": 3, "conv1": 1, "conv2": 2}) == "lenet:1-2-3"


def test_rows_become_trainings_of_their_own_panel() -> None:
    trainings = read_trainings(LAST, rows_of([0.9, 0.4], learnt=0.5))
    assert [round(training.objective, 1) for training in trainings] == [0.9, 0.4]
    assert trainings[1].widths == {"conv1": 2, "conv2": 3, "fc1": 4}


def test_every_search_is_drawn_by_itself_beside_its_run() -> None:
    derived = derive(rows_of([0.9, 0.45, 0.2], learnt=0.5) + rows_of([0.7, 0.8], 0.6, seed=1))
    first, second = draw_figure_4(derived).axes
    assert [list(line.get_ydata()) for line in first.get_lines()] == [
        pytest.approx([0.9, 0.45, 0.2]), pytest.approx([0.5, 0.5]),
        pytest.approx([0.7, 0.7]), pytest.approx([0.6, 0.6]),
    ]  # fmt: skip
    assert second.get_title(loc="left") == "(b) λ = 1e-05"


def test_searches_are_in_the_logarithm_of_the_widths() -> None:
    first = [ask_next((LAST, seed, [])).widths["fc1"] for seed in range(12)]
    # a half of 500 is 9 doublings' last one: in widths, half of all proposals would lie there
    assert sum(width > 250 for width in first) <= 4
    assert min(first) < 20


def test_both_ways_have_the_same_epochs_and_batches() -> None:
    done = [FinishedRun(row=row, path=Path("none")) for row in rows_of([0.9], learnt=0.5)]
    works = [*learn_rows(FULL, []), *propose(FULL, done, number=1)]
    assert len(works) == 2 * 2 * 3 * 3
    for work in works:
        assert (work.settings.epochs, work.settings.batch_size) == (EPOCHS, BATCH_SIZE)
        assert work.settings.validation == 0.0
        assert work.settings.optimiser == works[0].settings.optimiser


def test_what_is_proposed_follows_from_what_is_known() -> None:
    trainings = read_trainings(ALL, rows_of([0.9, 0.45, 0.2], learnt=0.5))
    first, again = ask_next((ALL, 0, trainings)), ask_next((ALL, 0, trainings))
    assert first.widths == again.widths
    assert ask_next((ALL, 1, trainings)).widths != first.widths
    assert ask_next((ALL, 0, trainings[:2])).widths != first.widths
