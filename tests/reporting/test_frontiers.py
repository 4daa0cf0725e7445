"""The best runs are those that no other run beats in both size and score."""

from dataclasses import replace
from pathlib import Path

from archlearn.reporting.comparison import RunPoint, find_best, find_differences, read_frontiers
from archlearn.reporting.run_reader import read_run
from tests.reporting.run_folders import LENET, write_run


def points(*pairs: tuple[int, float]) -> list[RunPoint]:
    return [
        RunPoint(number=number, parameters=parameters, score=score)
        for number, (parameters, score) in enumerate(pairs, start=1)
    ]


def test_a_larger_run_must_be_better_to_be_among_the_best() -> None:
    runs = points((50, 0.99), (10, 0.95), (20, 0.97), (30, 0.96), (60, 0.99))
    assert [p.number for p in find_best(runs, lower_is_better=False)] == [2, 3, 1]


def test_for_an_error_lower_is_better() -> None:
    runs = points((50, 0.99), (10, 0.95), (5, 0.97))
    assert [p.number for p in find_best(runs, lower_is_better=True)] == [3, 2]


def test_of_two_runs_of_one_size_the_better_is_kept() -> None:
    assert [p.number for p in find_best(points((5, 0.9), (5, 0.8)), lower_is_better=False)] == [1]


def test_runs_on_other_data_stand_apart_and_keep_their_numbers(tmp_path: Path) -> None:
    stories = [
        LENET,
        replace(LENET, data="diabetes", task="regression", score=2900.0),
        replace(LENET, score=0.99, costs=((431080, 1), (5000, 1))),
    ]
    folders = [write_run(tmp_path / str(n), story) for n, story in enumerate(stories)]
    runs = [read_run(folder) for folder in folders]
    mnist, diabetes = read_frontiers(runs)
    assert [(p.number, p.parameters, p.score) for p in mnist.points] == [
        (1, 19115, runs[0].validation_score),
        (3, 5000, runs[2].validation_score),
    ]
    assert [p.number for p in mnist.best] == [3, 1]
    assert (diabetes.data, diabetes.lower_is_better) == ("diabetes", True)


def test_the_best_run_is_chosen_on_validation_data(tmp_path: Path) -> None:
    """The second run is better on test data by chance alone."""
    lucky = replace(LENET, score=0.98, test_score=0.999)
    folders = [write_run(tmp_path / "a"), write_run(tmp_path / "b", lucky)]
    (frontier,) = read_frontiers([read_run(folder) for folder in folders])
    assert [p.number for p in frontier.best] == [1]


def test_only_settings_that_differ_are_compared(tmp_path: Path) -> None:
    first = read_run(write_run(tmp_path / "a"))
    second = read_run(write_run(tmp_path / "b", replace(LENET, name="b", seed=3, width_cost=1e-3)))
    assert find_differences([first, second]) == {
        "seed": (0, 3),
        "strengths.width_cost": (3e-4, 1e-3),
    }
