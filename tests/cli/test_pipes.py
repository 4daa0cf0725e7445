"""Whoever stops reading, as `head` does, ends a command quietly."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import LEARN, run_here, start, start_command, wait_for_epoch, write_network

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("command", ["paper", "data", "learn --help", "data digits"])
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
    code, output = run_here(["learn", "--resume", "a"], tmp_path)
    assert code == 0, output


STOPPING = """
import sys
from archlearn_cli.commands import app as application
from archlearn.errors import RunStoppedError

@application.app.command
def stop():
    sys.stdout.write("not written yet")
    raise RunStoppedError("go on later")

application.run_app(["stop"])
"""


def test_what_is_left_to_write_does_not_hide_why_a_run_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    command = [sys.executable, "-c", STOPPING]
    with start_command(command, tmp_path, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        said = process.stderr.read()
    assert said == "stopped: go on later\n"
    assert process.returncode == 3
