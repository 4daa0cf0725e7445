"""Figure 4 on numbers chosen by hand."""

from pathlib import Path

import pytest

from archlearn_paper.experiment import FULL, FinishedRun, Row
from archlearn_paper.experiments.figure_4 import (
    BATCH_SIZE,
    EPOCHS,
    PANELS,
    PRICE,
    ask_next,
    check,
    derive,
    learn_rows,
    name_model,
    propose,
    read_trainings,
    tabulate,
)
from archlearn_paper.plots.paper_figures import draw_figure_4, read_progress
from tests.paper.making import make_row

pytest.importorskip("optuna")
LAST, ALL = PANELS


def rows_of(objectives: list[float], learnt: float, seed: int = 0) -> list[Row]:
    """Rows whose loss is the objective less the price of 9 neurons."""
    rows: list[Row] = []
    for panel in PANELS:
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
    curve = derive(rows_of([0.9, 0.5, 0.7, 0.2], learnt=0.5))["panels"]["a"]["curves"][0]
    assert curve["learnt"]["objective"] == pytest.approx(0.5)
    assert curve["best"] == pytest.approx([0.9, 0.5, 0.5, 0.2])
    assert curve["seconds"] == pytest.approx([3.5, 7.0, 10.5, 14.0])
    assert curve["search_seconds"] == pytest.approx(2.0)


def test_how_many_trainings_it_took() -> None:
    derived = derive(rows_of([0.9, 0.45, 0.2], learnt=0.5) + rows_of([0.9, 0.8], 0.5, seed=1))
    curves = derived["panels"]["b"]["curves"]
    assert [curve["trainings_to_match"] for curve in curves] == [2, None]
    assert curves[0]["seconds_to_match"] == pytest.approx(7.0)
    found = check(derived)
    assert [each.measured for each in found] == ["2, not in 2", "2, not in 2"]
    assert all(each.met for each in found)
    assert not check(derive(rows_of([0.4], learnt=0.5)))[0].met
    assert tabulate(derived)[0].rows[0][-1] == "2, not in 2"


def test_panels_search_what_they_say() -> None:
    assert LAST.space().most == {"fc1": 500}
    assert LAST.space().fixed == {"conv1": 20, "conv2": 50}
    assert ALL.space().fixed == {}
    assert name_model({"fc1": 3, "conv1": 1, "conv2": 2}) == "lenet:1-2-3"


def test_rows_become_trainings_of_their_own_panel() -> None:
    trainings = read_trainings(LAST, rows_of([0.9, 0.4], learnt=0.5))
    assert [training.number for training in trainings] == [0, 1]
    assert trainings[1].widths == {"conv1": 2, "conv2": 3, "fc1": 4}


def test_the_figure_goes_as_far_as_the_shortest_search() -> None:
    derived = derive(rows_of([0.9, 0.45, 0.2], learnt=0.5) + rows_of([0.7, 0.8], 0.6, seed=1))
    progress = read_progress(derived["panels"]["a"])
    assert progress.counts == (1, 2)
    assert progress.mean == pytest.approx((0.8, 0.575))
    assert progress.learnt == pytest.approx((0.5, 0.6))
    assert len(draw_figure_4(derived).axes) == 4


def test_both_ways_have_the_same_epochs_and_batches() -> None:
    done = [FinishedRun(row=row, path=Path("none")) for row in rows_of([0.9], learnt=0.5)]
    works = [*learn_rows(FULL, []), *propose(FULL, done, number=1)]
    assert len(works) == 4 * 3
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
