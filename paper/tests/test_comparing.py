"""The comparison from its first run to its page, very small, and again from its results."""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import archlearn as al
from archlearn_paper import statistics
from archlearn_paper.baselines.parameter_budget import BudgetError, is_within
from archlearn_paper.comparison import find_comparisons, find_methods, make_experiment
from archlearn_paper.comparison.methods import (
    CALIBRATION_SEED,
    METHODS,
    OURS,
    SCRATCH,
    ComparisonSetup,
    Method,
)
from archlearn_paper.comparison.ranking import UNTUNED, name_result
from archlearn_paper.comparison.stages import ComparisonStages
from archlearn_paper.evaluation import measure_sizes
from archlearn_paper.experiment import Experiment, FinishedRun, Origin, Row, Scale
from archlearn_paper.initial_networks import make_networks
from archlearn_paper.recipes import reinitialise
from archlearn_paper.results import Results, model_path, write_results
from archlearn_paper.runner import RunRequest, run_stages
from archlearn_paper.tables import write_page
from paper.tests.making import Counter, make_row
from tests.cli.commands import start_command

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


class Names(Counter):
    """Notes the rows that were made, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []

    def finished(self, row: Row) -> None:
        super().finished(row)
        self.made.append(row.row if row.seed != CALIBRATION_SEED else f"{row.row}, chosen by")


def compare(folder: Path, methods: Sequence[Method], names: Names) -> tuple[Results, Experiment]:
    experiment = make_experiment("lenet", TINY.data, (BUDGET,), methods)
    order = RunRequest(experiment=experiment, scale=TINY, folder=folder, command="compare")
    results = run_stages(order, names)
    assert results is not None
    return results, experiment


def carry_out(folder: Path) -> tuple[Results, int, str]:
    names = Names()
    results, experiment = compare(folder, find_methods(";".join(NAMES)), names)
    return results, names.n, show(experiment, results, folder)


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
    groups = statistics.group([row for row in first[0].rows if row.seed != CALIBRATION_SEED])
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


def lose_models(folder: Path, to: Path, *rows: str) -> Path:
    """Return a folder with the results alone, and without some rows, as if they went on still."""
    (_, results), to = find_comparisons(folder)[0], to / "results"
    to.mkdir()
    kept = [row for row in results.rows if not row.row.startswith(rows)]
    write_results(to, replace(results, rows=kept, derived={} if rows else results.derived))
    assert not (to / "models").exists()
    return to


def test_a_comparison_without_its_models_is_there(
    first: tuple[Results, int, str], folder: Path, tmp_path: Path
) -> None:
    again, n_made, page = carry_out(lose_models(folder, tmp_path))
    assert n_made == 0
    assert again.rows == first[0].rows
    assert page == first[2]


def test_a_comparison_without_its_models_makes_only_what_is_missing(
    first: tuple[Results, int, str], folder: Path, tmp_path: Path
) -> None:
    names, missing = Names(), (name_result(SCRATCH, BUDGET), name_result("taylor", BUDGET))
    again, _ = compare(
        lose_models(folder, tmp_path, *missing), find_methods(";".join(NAMES)), names
    )
    # Taylor's network is made of the large one; for the other the row's widths are enough.
    assert names.made == ["large network", name_result("taylor", BUDGET), missing[0]]
    assert [row.row for row in again.rows] == [row.row for row in first[0].rows]
    before, after = ({row.row: row.architecture for row in r.rows} for r in (first[0], again))
    assert after == before
    assert len(again.out_of_reach) == 1


SCALE = Scale(name="quick", seeds=(0,), epochs=2, limit=300, data="digits:28", batch_size=50)
CONTEST = ComparisonSetup(model="lenet", budgets=(10_000,), scale=SCALE)


def finish(network: nn.Module, folder: Path) -> FinishedRun:
    """Return a finished run of ours that came to a network."""
    path = model_path(folder, "x", name_result(OURS, BUDGET), 0)
    path.parent.mkdir(parents=True)
    al.save(network, path)
    sizes = measure_sizes(network, CONTEST.example())
    return FinishedRun(row=make_row(name_result(OURS, BUDGET), **sizes), path=path)


def learn_by_hand(*, merge: bool) -> nn.Module:
    gated = al.add_gates(CONTEST.fresh_network(0).eval(), CONTEST.example())
    with torch.no_grad():
        for n_closed, gate in enumerate(al.width_gates(gated).values()):
            gate[3 + n_closed :: 2] = 0.0
        al.depth_gates(gated)["fc1"].fill_(float(merge))
    return al.compact(gated)


@pytest.mark.parametrize("merge", [False, True])
def test_an_architecture_from_scratch_needs_a_model_only_where_layers_merged(
    merge: bool, tmp_path: Path
) -> None:
    done = finish(learn_by_hand(merge=merge), tmp_path)
    stages = ComparisonStages("lenet", (BUDGET,), find_methods(OURS))
    (run,) = stages._from_scratch(SCALE, [done])
    assert run.origin is not None
    assert (run.origin.parent is done) == merge
    fresh = reinitialise(done.load_model(), 0)
    torch.testing.assert_close(
        dict(run.origin.make_network().named_parameters()),
        dict(fresh.named_parameters()),
        rtol=0,
        atol=0,
    )


def refuse(budget: int, model: nn.Module) -> nn.Module:
    raise BudgetError(f"{budget} cannot be reached")


def fail() -> nn.Module:
    raise RuntimeError("out of memory")


@torch.no_grad()
def who() -> nn.Module:
    """Return a network whose weights say where it was made."""
    layer, hidden = nn.Linear(3, 1).double(), os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    layer.weight.copy_(torch.tensor([[os.getpid(), torch.get_num_threads(), hidden]]))
    return layer


def helped(*makes: Callable[..., nn.Module], parent: FinishedRun | None = None) -> list[Origin]:
    return [Origin(make=make, parent=parent, in_worker=True) for make in makes]


def test_workers_are_other_processes_without_a_gpu() -> None:
    for network in make_networks(helped(who, who, who, who), 2).values():
        assert network is not None
        process, n_threads, hidden = network.get_parameter("weight").flatten().tolist()
        assert process != os.getpid()
        assert n_threads == hidden == 1
    here = Origin(make=who)
    alone = make_networks(helped(who, who), 0), make_networks([*helped(who, who), here], 2)
    for network in (*alone[0].values(), alone[1][here]):
        assert network is not None
        assert network.get_parameter("weight")[0, 0] == os.getpid()


def test_workers_make_the_same_networks(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    al.save(CONTEST.fresh_network(0), path)
    large = FinishedRun(row=make_row("large network", parameters=431_080), path=path)
    pruned = {each.name: each for each in METHODS if each.is_pruning}
    origins = helped(
        partial(pruned["taylor"].reduce, CONTEST, 10_000),
        partial(refuse, 10),
        partial(pruned["svd"].reduce, CONTEST, 10_000),
        parent=large,
    )
    alone, with_workers = make_networks(origins, 0), make_networks(origins, 2)
    taylor, refused, svd = origins
    assert alone[refused] is None
    assert with_workers[refused] is None
    for one, two in ((alone[each], with_workers[each]) for each in (taylor, svd)):
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
from archlearn_paper.experiment import Origin
from archlearn_paper.initial_networks import make_networks
makes = [partial(work, "one"), partial(work, "two")]
try:
    make_networks([Origin(make=make, in_worker=True) for make in makes], 2)
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
        make_networks(helped(fail, fail), 2)
