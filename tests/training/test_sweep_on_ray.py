"""The runs of a sweep on a Ray cluster: a worker that is killed loses nothing."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archlearn.errors import InputError, RunStoppedError
from archlearn_cli.training import RunSettings
from archlearn_cli.training.settings import override
from archlearn_cli.training.sweep import SweepRun, list_runs, read_summary, run_sweep
from tests.cli.commands import exit_code, without_times
from tests.run_files import LATEST, METRICS, read_lines

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own warnings

GIVEN = {
    "model": "mlp:24-16", "data": "digits", "limit": 600, "epochs": 16, "accelerator": "cpu",
    "threads": 1, "report": False, "checkpoint_seconds": 0.02,
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of two workers on this machine."""
    ray: Any = pytest.importorskip("ray", reason="archlearn[ray] is not installed")
    # Ray's workers are the last to get a busy machine's time, unless they are told otherwise.
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        _system_config={"worker_niceness": 0},
    )
    yield ray
    ray.shutdown()


def sweep(folder: Path, budgets: list[str]) -> list[SweepRun]:
    return list_runs(folder, override(RunSettings(), GIVEN), budgets, [0], with_plain=False)


def kill_worker(run: SweepRun, killed: list[int]) -> None:
    """Kill the worker of a run once it has a checkpoint and is in the middle."""
    while read_summary(run.folder) is None:
        rows = read_lines(run.folder / METRICS)
        lock = run.folder / "run.lock"
        if rows and rows[-1]["epoch"] >= 3 and (run.folder / LATEST).exists() and lock.exists():
            killed.append(int(lock.read_text().split()[1]))  # "process 123 on ..."
            os.kill(killed[0], signal.SIGKILL)
            return
        time.sleep(0.01)


@pytest.mark.slow
def test_a_killed_worker_loses_nothing(cluster: Any, tmp_path: Path) -> None:
    runs = sweep(tmp_path / "s", ["multiply_adds=60%", "multiply_adds=40%"])
    killed: list[int] = []
    killer = threading.Thread(target=kill_worker, args=(runs[0], killed))
    killer.start()
    ended: list[SweepRun] = []
    run_sweep(runs, 2, ended.append, on_ray=True)
    killer.join()
    assert killed
    assert set(ended) == set(runs)
    summary = read_summary(runs[0].folder)
    assert summary is not None
    assert summary["resumed"] == 1
    (alone,) = sweep(tmp_path / "alone", ["multiply_adds=60%"])
    run_sweep([alone], 1, lambda run: None)
    rows, undisturbed = (read_lines(each.folder / METRICS) for each in (runs[0], alone))
    assert [row["epoch"] for row in rows] == list(range(17))
    assert without_times(rows) == without_times(undisturbed)


@pytest.mark.slow
def test_the_command_hands_its_runs_to_ray(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "sweep --model mlp:24-16 --data digits --limit 600 --epochs 2 --accelerator cpu"
    assert exit_code([*words.split(), "--budget", "parameters=60%", "--ray", "--out", "s"]) == 0
    summary = read_summary(tmp_path / "s" / "parameters-60-seed-0")
    assert summary is not None
    assert summary["command"].startswith("archlearn learn --config")
    assert (tmp_path / "s" / "parameters-60-seed-0" / "report.html").is_file()


@pytest.mark.slow
def test_what_fails_on_a_worker_is_told(cluster: Any, tmp_path: Path) -> None:
    runs = sweep(tmp_path / "s", ["parameters=1"])
    with pytest.raises(RunStoppedError, match=r"parameters-1-seed-0 failed: error: .*parameters"):
        run_sweep(runs, 2, lambda run: None, on_ray=True)


def test_what_to_install_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'archlearn\[ray\]'"):
        run_sweep(sweep(tmp_path / "s", ["parameters=50%"]), 1, lambda run: None, on_ray=True)
