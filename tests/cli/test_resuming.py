"""A run that is stopped at any moment and resumed ends, bit for bit, as if never stopped."""

import json
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file

import archlearn_cli as cli
from tests.cli.commands import (
    LEARN,
    kill_all,
    run,
    run_here,
    start,
    wait_for_epoch,
    without_times,
    write_network,
)
from tests.run_files import COMPACT, GATES, LATEST, METRICS, PREVIOUS, SUMMARY, read_lines

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    write_network(folder)
    code, output = run_here([*LEARN, "--out", "a"], folder)
    assert code == 0, output
    (folder / "a" / "said.txt").write_text(output)
    return folder / "a"


def assert_identical(first: Path, second: Path) -> None:
    """Compare weights, gates, optimiser, random states, metrics and compact models."""
    one, two = cli.training.read_checkpoint(first), cli.training.read_checkpoint(second)
    assert one is not None
    assert two is not None
    assert one[1].keys() == two[1].keys()
    assert any(name.startswith("optimiser/") for name in one[1])
    assert any("width" in name for name in one[1])
    assert any(name.startswith("random/0/") for name in one[1])
    for name, tensor in one[1].items():
        assert tensor.numpy().tobytes() == two[1][name].numpy().tobytes(), name
    assert without_times(read_lines(first / METRICS)) == without_times(read_lines(second / METRICS))
    assert read_lines(first / GATES) == read_lines(second / GATES)
    small, other = load_file(first / COMPACT), load_file(second / COMPACT)
    assert small.keys() == other.keys()
    for name, tensor in small.items():
        assert tensor.numpy().tobytes() == other[name].numpy().tobytes(), name


def test_killed_twice_and_resumed_is_identical(whole: Path, tmp_path: Path) -> None:
    write_network(tmp_path)
    with start([*LEARN, "--out", "a"], tmp_path) as process:
        wait_for_epoch(process, tmp_path / "a", 4)
        kill_all(process)
    with start(["learn", "--resume", "a"], tmp_path) as process:
        wait_for_epoch(process, tmp_path / "a", 17)
        kill_all(process)
    assert not (tmp_path / "a" / SUMMARY).exists()
    code, output = run_here(["learn", "--resume", "a"], tmp_path)
    assert code == 0, output
    assert "resumed at step" in output
    assert_identical(whole, tmp_path / "a")
    summary = json.loads((tmp_path / "a" / SUMMARY).read_text())
    assert summary["resumed"] >= 1
    assert summary["command"].startswith("archlearn learn --model own_net:build")


def test_interrupted_inside_an_epoch_and_resumed_is_identical(whole: Path, tmp_path: Path) -> None:
    write_network(tmp_path)
    with start([*LEARN, "--out", "a"], tmp_path) as process:
        wait_for_epoch(process, tmp_path / "a", 9)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "stopped: interrupted at step" in output
    assert "archlearn learn --resume a" in output
    found = cli.training.read_checkpoint(tmp_path / "a")
    assert found is not None
    assert 90 <= found[0].step < 300
    code, again = run_here(["learn", "--resume", "a"], tmp_path)
    assert code == 0, again
    assert_identical(whole, tmp_path / "a")
    lines = again.splitlines()
    said = (whole / "said.txt").read_text().splitlines()
    assert lines[:2] == said[:2]  # the network at the start, and not half-way with its parameters
    where = f"resumed at step {found[0].step} of 300, after epoch {found[0].epoch} of 30"
    assert lines[2] == where


def test_killed_before_the_first_checkpoint_starts_again(whole: Path, tmp_path: Path) -> None:
    write_network(tmp_path)
    (tmp_path / "a").mkdir()
    config = (whole / "config.toml").read_text()
    (tmp_path / "a" / "config.toml").write_text(config)
    (tmp_path / "a" / METRICS).write_text('{"epoch": 0, "torn')
    code, output = run_here(["learn", "--resume", "a"], tmp_path)
    assert code == 0, output
    assert_identical(whole, tmp_path / "a")


def test_torn_checkpoint_is_passed_over_and_the_end_is_the_same(
    whole: Path, tmp_path: Path
) -> None:
    write_network(tmp_path)
    with start([*LEARN, "--out", "a"], tmp_path) as process:
        wait_for_epoch(process, tmp_path / "a", 9)
        kill_all(process)
    files = [tmp_path / "a" / name for name in (LATEST, PREVIOUS)]
    content = next(file for file in files if file.exists()).read_bytes()  # killed between both
    (tmp_path / "a" / LATEST).write_bytes(content[: len(content) // 2])
    assert (tmp_path / "a" / PREVIOUS).exists()
    code, output = run(["learn", "--resume", "a"], tmp_path)
    assert code == 0, output
    assert "is torn" in output
    assert_identical(whole, tmp_path / "a")


def test_another_seed_is_not_identical(whole: Path, tmp_path: Path) -> None:
    """The control: the comparison can fail."""
    write_network(tmp_path)
    code, output = run_here([*LEARN[:-1], "4", "--out", "a"], tmp_path)
    assert code == 0, output
    with pytest.raises(AssertionError):
        assert_identical(whole, tmp_path / "a")
