"""Workers make what one process would make."""

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
from archlearn_paper.baselines.budget import BudgetError
from archlearn_paper.comparison.methods import METHODS, ComparisonSetup, PruningMethod
from archlearn_paper.comparison.stages import _reduce, make_networks
from archlearn_paper.experiment import FinishedRun, Scale
from tests.cli.commands import start_command
from tests.paper.making import make_row

pytestmark = pytest.mark.slow

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
    pruned = {each.name: each for each in METHODS if isinstance(each, PruningMethod)}
    makes = [
        partial(_reduce, "taylor", pruned["taylor"].reduce, CONTEST, large, 10_000),
        partial(refuse, 10),
        partial(_reduce, "svd", pruned["svd"].reduce, CONTEST, large, 10_000),
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
