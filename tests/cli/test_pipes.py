"""Whoever stops reading, as `head` does, ends a command quietly."""

import subprocess
from pathlib import Path

import pytest

from tests.cli.commands import LEARN, run, start, wait_for_epoch, write_network


@pytest.mark.parametrize(
    "command", ["paper", "data", "learn --help", "inspect lenet", "data digits"]
)
def test_a_command_whose_output_nobody_reads_ends_quietly(command: str, tmp_path: Path) -> None:
    with start(command.split(), tmp_path, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        said = process.stderr.read()
        process.wait(timeout=60)
    assert said == ""
    # Help is written by rich, which has a code of its own for this.
    assert process.returncode == (1 if "--help" in command else 141)


def test_a_run_whose_output_nobody_reads_says_how_to_go_on(tmp_path: Path) -> None:
    write_network(tmp_path)
    with start([*LEARN, "--out", "a"], tmp_path, stderr=subprocess.PIPE) as process:
        wait_for_epoch(process, tmp_path / "a", 2)
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        said = process.stderr.read()
        process.wait(timeout=60)
    assert "Traceback" not in said
    assert "archlearn learn --resume a" in said
    assert process.returncode == 3
    code, output = run(["learn", "--resume", "a"], tmp_path)
    assert code == 0, output
