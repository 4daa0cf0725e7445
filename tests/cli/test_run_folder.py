"""A run's folder: nothing is left of a refused run, and one process at a time learns in it."""

import fcntl
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TextIO

import pytest

from archlearn.errors import SettingsError
from archlearn_cli.training.run_directory import lock_folder
from tests.cli.commands import (
    LEARN,
    exit_code,
    kill_all,
    on_small_disk,
    run_here,
    start,
    start_command,
    wait_for_epoch,
    write_network,
)
from tests.run_files import LOCK, SUMMARY

pytestmark = pytest.mark.slow

LEARN_BRIEFLY = ["learn", "--model", "mlp:8", "--epochs", "1", "--no-report", "--threads", "1"]
DATA = """
import torch
def build(x=0.0, y=0):
    inputs, targets = torch.rand(60, 4), torch.arange(60) % 3
    inputs[7, 2] += x
    targets[9] += y
    return (inputs, targets), (inputs, targets)
def with_nan():
    return build(x=float("nan"))
def with_negative_class():
    return build(y=-5)
"""


def code_of(arguments: list[str]) -> object:
    return exit_code(arguments)


@pytest.mark.parametrize(
    ("wrong", "answer"),
    [
        ("folder:nosuch", "nosuch is not a folder"),
        ("folder_data:with_nan", "no finite number, first in example 7"),
        ("folder_data:with_negative_class", "classes are counted from 0"),
    ],
)
def test_a_refused_run_leaves_nothing_in_the_way_of_the_corrected_one(
    wrong: str,
    answer: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "folder_data.py").write_text(DATA)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "folder_data", raising=False)
    out = tmp_path / "new" / "a"
    assert code_of([*LEARN_BRIEFLY, "--data", wrong, "--out", str(out)]) == 1
    assert answer in capsys.readouterr().err
    assert not out.parent.exists()
    assert code_of([*LEARN_BRIEFLY, "--data", "folder_data:build", "--out", str(out)]) == 0
    assert (out / SUMMARY).exists()
    assert not (out / LOCK).exists()


def test_what_lay_in_the_folder_of_a_refused_run_stays(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert code_of([*LEARN_BRIEFLY, "--data", "folder:nosuch", "--out", str(tmp_path)]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_second_process_is_refused_while_the_first_learns(tmp_path: Path) -> None:
    write_network(tmp_path)
    forever = [word if word != "30" else "100000" for word in LEARN]
    with start([*forever, "--out", "a"], tmp_path) as first:
        wait_for_epoch(first, tmp_path / "a", 2)
        for words in (["learn", "--resume", "a"], [*LEARN, "--out", "a"]):
            code, output = run_here(words, tmp_path)
            assert code == 1, output
            named = f"by process {first.pid} on {socket.gethostname()}"
            assert f"a is being learnt already, {named}" in output
        assert first.poll() is None
        kill_all(first)
    with (tmp_path / "a" / LOCK).open() as left:
        fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the lock has ended with its process


def test_interrupting_before_the_first_step_ends_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    data = (
        "import pathlib, time\ndef build():\n    pathlib.Path('here').touch()\n    time.sleep(99)"
    )
    (tmp_path / "slow_data.py").write_text(data)
    with start([*LEARN_BRIEFLY, "--data", "slow_data:build", "--out", "a"], tmp_path) as process:
        while not (tmp_path / "here").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 130, output
    assert "interrupted" in output
    assert "Traceback" not in output
    assert not (tmp_path / "a").exists()


def test_a_read_only_file_system_is_named(tmp_path: Path) -> None:
    prefix = on_small_disk("1m", "ro", tmp_path / "disk")
    command = [*prefix, sys.executable, "-m", "archlearn_cli", *LEARN_BRIEFLY, "--data", "digits"]
    with start_command([*command, "--out", "disk/a"], tmp_path) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    assert "disk/a cannot be written (Read-only file system); choose another --out" in output
    assert "Traceback" not in output


def test_a_disk_that_is_full_from_the_start_lets_the_same_command_be_given_again(
    tmp_path: Path,
) -> None:
    prefix = on_small_disk("4k", "rw", tmp_path / "disk")
    command = [*prefix, sys.executable, "-m", "archlearn_cli", *LEARN_BRIEFLY, "--data", "digits"]
    with start_command([*command, "--out", "disk/a"], tmp_path) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode in (1, 3), output
    assert "No space left on device" in output
    assert "--resume" not in output
    assert "Traceback" not in output


def test_a_lock_that_was_deleted_since_it_was_opened_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run ends in between: a third would lock the file that it makes anew."""
    flock = fcntl.flock

    def delete_first(file: TextIO, how: int) -> None:
        (tmp_path / LOCK).unlink()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", delete_first)
    with pytest.raises(SettingsError, match="being learnt already"), lock_folder(tmp_path):
        pass
