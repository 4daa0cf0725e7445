"""The comparison from its first run to its page, very small, and again from its results."""

from pathlib import Path

import pytest

from archlearn_paper.baselines.budget import is_within
from archlearn_paper.comparison import find_comparisons, find_methods, make_experiment
from archlearn_paper.comparison.methods import CALIBRATION_SEED, OURS, SCRATCH
from archlearn_paper.comparison.ranking import UNTUNED, name_result
from archlearn_paper.experiment import Scale, group
from archlearn_paper.results import Results
from archlearn_paper.runner import RunRequest, run_stages
from archlearn_paper.tables import describe_results
from tests.paper.making import Counter

pytestmark = pytest.mark.slow

pytest.importorskip("torch_pruning")
BUDGET = 10_000
TINY = Scale(
    name="quick", seeds=(0,), epochs=4, limit=600, validation=1 / 6, points=1, batch_size=50,
    data="digits:28",
)  # fmt: skip
METHODS = (
    OURS, "l0 gates", "l1 diagonal", "torch-pruning, sparse learning, iterative",
    "torch-pruning, iterative", "taylor", "svd", "fastfood", "even widths from scratch",
)  # fmt: skip


def carry_out(folder: Path) -> tuple[Results, int, str]:
    contenders = find_methods(";".join(METHODS))
    experiment = make_experiment("lenet", TINY.data, (BUDGET,), contenders)
    counter = Counter()
    order = RunRequest(experiment=experiment, scale=TINY, folder=folder, command="compare")
    results = run_stages(order, counter)
    return results, counter.n, describe_results(experiment, results)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def first(folder: Path) -> tuple[Results, int, str]:
    return carry_out(folder)


def test_every_method_is_at_its_budget_after_the_same_epochs(
    first: tuple[Results, int, str],
) -> None:
    groups = group([row for row in first[0].rows if row.seed != CALIBRATION_SEED])
    reached = [m for m in (*METHODS, SCRATCH, UNTUNED) if name_result(m, BUDGET) in groups]
    # Fastfood leaves the convolutions' 25,570 parameters alone
    assert set(METHODS) - set(reached) == {"fastfood"}
    for method in reached:
        (row,) = groups[name_result(method, BUDGET)]
        assert is_within(row.parameters, BUDGET), method
    epochs = {m: groups[name_result(m, BUDGET)][0].epochs for m in reached}
    assert epochs["taylor"] == epochs["l0 gates"] == epochs["l1 diagonal"] == epochs["svd"] == 2
    assert epochs[OURS] == epochs["even widths from scratch"] == epochs[SCRATCH] == 4
    # two epochs are enough for two of their four rounds
    for method in ("torch-pruning, iterative", "torch-pruning, sparse learning, iterative"):
        rounds = [rows[0] for name, rows in groups.items() if name.startswith(f"{method} @")]
        assert [row.epochs for row in rounds] == [1, 1]
        assert rounds[0].parameters > 2 * rounds[1].parameters
    (large,) = groups["large network"]
    assert large.epochs == 2
    assert large.parameters == 431_080


def test_strengths_were_tried_on_another_seed(first: tuple[Results, int, str]) -> None:
    search = first[0].derived["search"]
    assert {method for method, spent in search.items() if spent["runs"]} == {
        OURS, "l0 gates", "l1 diagonal", "torch-pruning, sparse learning, iterative", "svd",
    }  # fmt: skip


def test_the_table_names_all(first: tuple[Results, int, str]) -> None:
    for method in METHODS[:-2]:
        assert method in first[2]


def test_what_was_made_is_not_made_again(first: tuple[Results, int, str], folder: Path) -> None:
    assert first[1] > 15
    again, n_made, _ = carry_out(folder)
    assert n_made == 0
    assert again.derived == first[0].derived


def test_a_comparison_is_found_and_judged_by_its_file(
    first: tuple[Results, int, str], folder: Path
) -> None:
    ((experiment, results),) = find_comparisons(folder)
    assert experiment.name == first[0].experiment
    assert experiment.title.startswith("lenet on digits:28")
    # Fastfood reached no budget, and is asked about all the same
    assert describe_results(experiment, results) == first[2]
