"""Bayesian optimisation of widths: finds, and follows from its seed."""

import math
import sys

import pytest

import archlearn as al
from archlearn_paper.baselines.bayesian_search import (
    Space,
    Training,
    best_so_far,
    measure_objective,
    propose_widths,
    trainings_to_reach,
)

pytestmark = pytest.mark.slow

pytest.importorskip("optuna")
LAST = Space(most={"fc1": 500}, fixed={"conv1": 20, "conv2": 50})
ALL = Space(most={"conv1": 20, "conv2": 50, "fc1": 500}, fixed={})


def bowl(widths: dict[str, int]) -> float:
    """Has its least value, 0, at 12-30-120, and rises with the logarithms, as the search goes."""
    least = {"conv1": 12, "conv2": 30, "fc1": 120}
    return sum(math.log(widths[layer] / width) ** 2 for layer, width in least.items())


def train(space: Space, seed: int, count: int) -> list[Training]:
    made: list[Training] = []
    for _ in range(count):
        widths = propose_widths(space, made, seed=seed).widths
        made.append(Training(widths=widths, objective=bowl(widths)))
    return made


def test_the_last_width_is_found() -> None:
    made = train(LAST, 0, 14)
    best = min(made, key=lambda training: training.objective)
    assert abs(best.widths["fc1"] - 120) <= 10
    assert best.widths["conv1"] == 20
    assert all(1 <= training.widths["fc1"] <= 500 for training in made)


def test_all_three_widths_are_searched() -> None:
    made = train(ALL, 0, 12)
    for layer in ALL.most:
        assert len({training.widths[layer] for training in made}) > 3


def test_a_proposal_follows_from_seed_and_what_was_trained() -> None:
    made = train(ALL, 3, 8)
    assert propose_widths(ALL, made[:7], seed=3).widths == made[7].widths
    assert propose_widths(ALL, made[:2], seed=4).widths != made[2].widths


def test_the_objective_by_hand() -> None:
    assert measure_objective(0.02, 570, 1e-5) == pytest.approx(0.0257)


def test_the_best_so_far_by_hand() -> None:
    trainings = [Training(widths={}, objective=value) for value in (3.0, 4.0, 2.0, 2.5, 1.0)]
    assert best_so_far(trainings) == [3.0, 3.0, 2.0, 2.0, 1.0]
    assert trainings_to_reach(trainings, 2.0) == 3
    assert trainings_to_reach(trainings, 0.5) is None


def test_the_extra_is_named_where_optuna_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(al.InputError, match=r"archlearn\[bench\]"):
        propose_widths(LAST, [], seed=0)
