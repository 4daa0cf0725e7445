"""Scales, sweeps and statistics of experiments, by hand."""

import math
from dataclasses import replace

import pytest

from archlearn_paper.experiment import FULL, QUICK
from archlearn_paper.experiments import TITLES, find_experiment
from archlearn_paper.statistics import (
    correct_by_holm,
    correlate_ranks,
    measure_spread,
    pair_by_seed,
    paired_p_value,
)


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


def test_spread_of_three_numbers() -> None:
    spread = measure_spread([1.0, 2.0, 6.0])
    assert spread["mean"] == 3
    assert spread["deviation"] == pytest.approx(math.sqrt((4 + 1 + 9) / 2))
    assert (spread["least"], spread["most"], spread["n"]) == (1, 6, 3)


def test_spread_of_one_number_has_no_deviation_and_its_error_is_unknown() -> None:
    assert measure_spread([4.0])["deviation"] == 0
    assert measure_spread([4.0])["error"] is None
    assert measure_spread([1.0, 2.0, 6.0])["error"] == pytest.approx(math.sqrt(7 / 3))


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        # t = 2.776 and 2.262: the tables' quantiles of 97.5 % at 4 and 9 degrees of freedom.
        ([2.776 / math.sqrt(5) + d for d in (-1.0, 1.0, -1.0, 1.0, 0.0)], 0.05),
        ([2.262 / math.sqrt(10) + d * math.sqrt(0.9) for d in (-1.0, 1.0) * 5], 0.05),
        ([1.0, -1.0], 1.0),
        ([0.3], 1.0),
        ([0.2, 0.2, 0.2], 0.0),
    ],
)
def test_paired_test_agrees_with_the_tables(differences: list[float], p: float) -> None:
    assert paired_p_value(differences) == pytest.approx(p, abs=2e-4)
    assert paired_p_value([-value for value in differences]) == pytest.approx(p, abs=2e-4)


def test_seeds_that_both_have_are_paired() -> None:
    assert pair_by_seed({0: 3.0, 1: 5.0, 2: 1.0}, {2: 4.0, 0: 1.0}) == [2.0, -3.0]


def test_several_tests_are_corrected_by_holm() -> None:
    # 4 x 0.01, 3 x 0.02, then 2 x 0.03 that may not fall below 0.06, and 1 x 0.9
    assert correct_by_holm([0.02, 0.9, 0.01, 0.03]) == pytest.approx([0.06, 0.9, 0.04, 0.06])


def test_rank_correlation_is_blind_to_the_shape_of_a_rise() -> None:
    assert correlate_ranks([1, 2, 3, 4], [1, 10, 100, 1000]) == pytest.approx(1)
    assert correlate_ranks([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)


def test_rank_correlation_of_five_pairs_with_a_swap() -> None:
    # Without ties it is 1 - 6 sum(d²) / (n (n² - 1)): here 1 - 6 * 2 / 120.
    assert correlate_ranks([1, 2, 3, 4, 5], [2, 1, 3, 4, 5]) == pytest.approx(0.9)


def test_rank_correlation_with_a_tie() -> None:
    # Ranks 1, 2, 3 against 1.5, 1.5, 3: products 1.5, squares 2 and 1.5.
    assert correlate_ranks([1, 2, 3], [7, 7, 9]) == pytest.approx(1.5 / math.sqrt(2 * 1.5))


def test_rank_correlation_with_what_never_varies_is_no_number() -> None:
    assert math.isnan(correlate_ranks([1, 2, 3], [4, 4, 4]))
