"""The comparison from its first run to its page, very small, and again from its results."""

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from archlearn import save
from archlearn_paper.baselines.budget import BudgetError, is_within
from archlearn_paper.comparison import find_comparisons, find_methods, make_experiment
from archlearn_paper.comparison.methods import (
    CALIBRATION_SEED,
    METHODS,
    OURS,
    SCRATCH,
    ComparisonSetup,
)
from archlearn_paper.comparison.ranking import UNTUNED, name_result
from archlearn_paper.comparison.stages import _reduce, make_networks
from archlearn_paper.experiment import Experiment, FinishedRun, Scale, group
from archlearn_paper.results import Results
from archlearn_paper.runner import RunRequest, run_stages
from archlearn_paper.tables import write_page
from tests.cli.commands import start_command
from tests.paper.making import Counter, make_row

pytestmark = pytest.mark.slow

pytest.importorskip("torch_pruning")
BUDGET = 10_000
TINY = Scale(
    name="quick", seeds=(0,), epochs=4, limit=600, validation=1 / 6, points=1, batch_size=50,
    data="digits:28",
)  # fmt: skip
NAMES = (
    OURS, "l0 gates", "l1 diagonal", "torch-pruning, sparse learning, iterative",
    "torch-pruning, iterative", "taylor", "svd", "fastfood", "even widths from scratch",
)  # fmt: skip


def carry_out(folder: Path) -> tuple[Results, int, str]:
    contenders = find_methods(";".join(NAMES))
    experiment = make_experiment("lenet", TINY.data, (BUDGET,), contenders)
    counter = Counter()
    order = RunRequest(experiment=experiment, scale=TINY, folder=folder, command="compare")
    results = run_stages(order, counter)
    return results, counter.n, show(experiment, results, folder)


def show(experiment: Experiment, results: Results, folder: Path) -> str:
    """Return the page without the line that tells when it was made."""
    lines = write_page(experiment, results, folder).read_text().splitlines()
    return "\n".join(line for line in lines if not line.startswith("Made by"))


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
    reached = [m for m in (*NAMES, SCRATCH, UNTUNED) if name_result(m, BUDGET) in groups]
    # Fastfood leaves the convolutions' 25,570 parameters alone
    assert set(NAMES) - set(reached) == {"fastfood"}
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
    for method in NAMES[:-2]:
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
    assert show(experiment, results, folder) == first[2]


SCALE = Scale(name="quick", seeds=(0,), epochs=2, limit=300, data="digits:28", batch_size=50)
CONTEST = ComparisonSetup(model="lenet", budgets=(10_000,), scale=SCALE)


def refuse(budget: int) -> nn.Module:
    raise BudgetError(f"{budget} cannot be reached")


def fail() -> nn.Module:
    raise RuntimeError("out of memory")


@torch.no_grad()
def who() -> nn.Module:
    """Return a network whose weights say where it was made."""
    layer, hidden = nn.Linear(3, 1).double(), os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    layer.weight.copy_(torch.tensor([[os.getpid(), torch.get_num_threads(), hidden]]))
    return layer


def test_workers_are_other_processes_without_a_gpu() -> None:
    for network in make_networks([who] * 4, 2):
        assert network is not None
        process, n_threads, hidden = network.get_parameter("weight").flatten().tolist()
        assert process != os.getpid()
        assert n_threads == hidden == 1
    for network in make_networks([who] * 2, 0):
        assert network is not None
        assert network.get_parameter("weight")[0, 0] == os.getpid()


def test_workers_make_the_same_networks(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    save(CONTEST.fresh_network(0), path)
    large = FinishedRun(row=make_row("large network", parameters=431_080), path=path)
    pruned = {each.name: each for each in METHODS if each.is_pruning}
    makes = [
        partial(_reduce, pruned["taylor"].reduce, CONTEST, large, 10_000),
        partial(refuse, 10),
        partial(_reduce, pruned["svd"].reduce, CONTEST, large, 10_000),
    ]
    alone, helped = make_networks(makes, 0), make_networks(makes, 2)
    assert alone[1] is None
    assert helped[1] is None
    for one, two in ((alone[0], helped[0]), (alone[2], helped[2])):
        assert one is not None
        assert two is not None
        torch.testing.assert_close(dict(two.named_parameters()), dict(one.named_parameters()))


WORK = """
import time
from pathlib import Path

def work(file):
    Path(file).touch()
    time.sleep(3600)
"""
WAIT_FOR_CTRL_C = """
from functools import partial
from own_work import work
from archlearn_paper.comparison.stages import make_networks
try:
    make_networks([partial(work, "one"), partial(work, "two")], 2)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals go to a group of processes")
def test_ctrl_c_ends_workers_at_once_and_in_silence(tmp_path: Path) -> None:
    (tmp_path / "own_work.py").write_text(WORK)
    with start_command([sys.executable, "-c", WAIT_FOR_CTRL_C], tmp_path) as asking:
        for _ in range(1200):
            if (tmp_path / "one").exists() and (tmp_path / "two").exists():
                break
            time.sleep(0.1)
        os.killpg(asking.pid, signal.SIGINT)
        try:
            assert asking.communicate(timeout=60)[0] == "interrupted\n"
        finally:
            asking.kill()


def test_what_goes_wrong_is_heard_of() -> None:
    with pytest.raises(RuntimeError, match="out of memory"):
        make_networks([fail, fail], 2)
