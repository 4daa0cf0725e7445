"""A quick version runs a part of the points, the ends among them."""

from dataclasses import replace

from archlearn_paper.experiment import FULL, QUICK
from archlearn_paper.experiment_registry import TITLES, find_experiment


def test_points_are_spread_over_a_sweep() -> None:
    assert FULL.pick(range(9)) == list(range(9))
    assert replace(QUICK, points=3).pick(range(9)) == [0, 4, 8]
    assert replace(QUICK, points=2).pick("abcde") == ["a", "e"]
    assert replace(QUICK, points=1).pick("abcde") == ["c"]
    assert replace(QUICK, points=5).pick("abc") == ["a", "b", "c"]


def test_every_experiment_is_there_under_its_name_and_title() -> None:
    for name, title in TITLES.items():
        experiment = find_experiment(name)
        assert (experiment.name, experiment.title) == (name, title)


def test_full_runs_have_five_seeds_and_all_points() -> None:
    assert len(FULL.seeds) == 5
    assert FULL.points is None
    assert FULL.limit is None
