"""Whoever stops reading, as `head` does, ends a command quietly."""

import os
import subprocess
import sys
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


STOPPING = """
import sys
from archlearn.cli import application
from archlearn.training.errors import RunStoppedError

def stop(arguments):
    sys.stdout.write("not written yet")
    raise RunStoppedError("go on later")

application.app = stop
application.main([])
"""


def test_what_is_left_to_write_does_not_hide_why_a_run_stopped() -> None:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [sys.executable, "-c", STOPPING],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=buffered,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert said == "stopped: go on later\n"
    assert process.returncode == 3
