"""Two processes learn what one learns by the same command, also where a batch is odd."""

import socket
import sys
from pathlib import Path

import pytest

import archlearn_cli as cli
from tests.cli.commands import kill_all, run_here, start_command, wait_for_epoch, without_times
from tests.run_files import METRICS, SUMMARY, read_lines

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_group_of_processes")]

LEARN = [
    "learn",
    "--model",
    "mlp:30-20",
    "--data",
    "digits",
    "--limit",
    "610",
    "--epochs",
    "12",
    "--accelerator",
    "cpu",
    "--threads",
    "1",
    "--no-report",
    "--checkpoint-seconds",
    "0.02",
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def torchrun(n_processes: int, *more: str, port: int | None = None) -> list[str]:
    return [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(n_processes),
        "--master-addr", "127.0.0.1", "--master-port", str(port or free_port()), *more,
        "-m", "archlearn_cli",
    ]  # fmt: skip


def test_two_processes_learn_what_one_learns_and_resume(tmp_path: Path) -> None:
    code, output = run_here([*LEARN, "--out", "one"], tmp_path)
    assert code == 0, output
    with start_command([*torchrun(2), *LEARN, "--out", "two"], tmp_path) as process:
        wait_for_epoch(process, tmp_path / "two", 5)
        kill_all(process)
    assert not (tmp_path / "two" / SUMMARY).exists()
    with start_command([*torchrun(2), "learn", "--resume", "two"], tmp_path) as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    ones, twos = (without_times(read_lines(tmp_path / n / METRICS)) for n in ("one", "two"))
    assert len(ones) == len(twos) == 13
    for one, two in zip(ones[1:], twos[1:], strict=True):
        assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-3)
        assert two["penalty"] == pytest.approx(one["penalty"], rel=1e-3)
    assert twos[-1]["widths"] == ones[-1]["widths"]
    assert ones[-1]["widths"] != ones[0]["widths"]
    found = cli.training.read_checkpoint(tmp_path / "two")
    assert found is not None
    assert any(name.startswith("random/1/") for name in found[1])


def test_two_processes_go_by_one_table_of_latencies(tmp_path: Path) -> None:
    """Were their tables two, their networks would shrink apart."""
    words = ["mlp:900-900" if word == "mlp:30-20" else word for word in LEARN]
    words += ["--budget", "latency=60%", "--out", "two"]
    with start_command([*torchrun(2), *words], tmp_path) as process:
        output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert "were moved" not in output
    row = read_lines(tmp_path / "two" / METRICS)[-1]
    assert row["latency"] <= row["budget_path"]["latency"]
    assert (tmp_path / "two" / "speed.json").is_file()


def test_two_machines_learn_what_one_learns(tmp_path: Path) -> None:
    """Two agents of torchrun, as on two machines that share a folder."""
    arguments = ["4" if word == "12" else word for word in LEARN]
    code, output = run_here([*arguments, "--out", "one"], tmp_path)
    assert code == 0, output
    port = free_port()
    nodes = [torchrun(1, "--nnodes", "2", "--node-rank", str(rank), port=port) for rank in range(2)]
    with (
        start_command([*nodes[0], *arguments, "--out", "two"], tmp_path) as first,
        start_command([*nodes[1], *arguments, "--out", "two"], tmp_path) as second,
    ):
        texts = [process.communicate(timeout=200)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), texts
    ones, twos = (without_times(read_lines(tmp_path / n / METRICS)) for n in ("one", "two"))
    assert len(ones) == len(twos) == 5
    for one, two in zip(ones[1:], twos[1:], strict=True):
        assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-3)
    assert twos[-1]["widths"] == ones[-1]["widths"]
