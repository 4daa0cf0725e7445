"""Bayesian optimisation of widths: finds, goes on, shares."""

import sys
from pathlib import Path

import pytest

import archlearn as al
from archlearn_paper.baselines.bayesian_search import (
    Search,
    Space,
    Training,
    best_so_far,
    measure_objective,
    trainings_to_reach,
)

pytestmark = pytest.mark.slow

pytest.importorskip("optuna")
LAST = Space(most={"fc1": 500}, fixed={"conv1": 20, "conv2": 50})
ALL = Space(most={"conv1": 20, "conv2": 50, "fc1": 500}, fixed={})


def bowl(widths: dict[str, int]) -> float:
    """Has its least value, 0, at 12-30-120."""
    return (
        ((widths["fc1"] - 120) / 500) ** 2
        + ((widths["conv1"] - 12) / 20) ** 2
        + ((widths["conv2"] - 30) / 50) ** 2
    )


def train(search: Search, count: int) -> None:
    for _ in range(count):
        proposal = search.propose()
        search.tell(proposal, bowl(proposal.widths), train_seconds=1.5)


def test_the_last_width_is_found() -> None:
    search = Search("a", LAST, seed=0)
    train(search, 14)
    best = min(search.history(), key=lambda training: training.objective)
    assert abs(best.widths["fc1"] - 120) <= 10
    assert best.widths["conv1"] == 20
    assert all(1 <= t.widths["fc1"] <= 500 for t in search.history())


def test_all_three_widths_are_searched() -> None:
    search = Search("b", ALL, seed=0)
    train(search, 12)
    for layer in ALL.most:
        assert len({training.widths[layer] for training in search.history()}) > 3


def test_a_study_goes_on_where_it_was(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'search.db'}"
    train(Search("a", LAST, seed=0, storage=storage), 3)
    again = Search("a", LAST, seed=0, storage=storage)
    assert len(again.history()) == 3
    train(again, 1)
    assert [t.number for t in again.history()] == [0, 1, 2, 3]
    assert all(t.train_seconds == 1.5 for t in again.history())
    assert all(t.search_seconds > 0 for t in again.history())
    assert len({t.widths["fc1"] for t in again.history()}) == 4
    assert Search("other", LAST, seed=0, storage=storage).history() == []


def test_a_proposal_follows_from_seed_and_history() -> None:
    first, second = Search("a", ALL, seed=3), Search("a", ALL, seed=3)
    train(first, 7)
    for training in first.history():
        second.add(training)
    assert [t.objective for t in second.history()] == [t.objective for t in first.history()]
    assert second.propose().widths == first.propose().widths


def test_workers_share_a_study(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'search.db'}"
    first = Search("a", LAST, seed=0, storage=storage)
    second = Search("a", LAST, seed=1, storage=storage)
    under_way, other = first.propose(), second.propose()
    assert other.number != under_way.number
    second.tell(other, bowl(other.widths), 1.0)
    first.tell(under_way, bowl(under_way.widths), 1.0)
    assert len(first.history()) == len(second.history()) == 2


def test_the_objective_by_hand() -> None:
    assert measure_objective(0.02, 570, 1e-5) == pytest.approx(0.0257)


def test_the_best_so_far_by_hand() -> None:
    trainings = [
        Training(number=n, widths={}, objective=value, search_seconds=0, train_seconds=0)
        for n, value in enumerate([3.0, 4.0, 2.0, 2.5, 1.0])
    ]
    assert best_so_far(trainings) == [3.0, 3.0, 2.0, 2.0, 1.0]
    assert trainings_to_reach(trainings, 2.0) == 3
    assert trainings_to_reach(trainings, 0.5) is None


def test_the_extra_is_named_where_optuna_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(al.InputError, match=r"archlearn\[bench\]"):
        Search("a", LAST, seed=0)
