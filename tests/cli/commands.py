"""Commands run as a user runs them: in a process of their own, or here where that is the same."""

import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from archlearn_cli import main
from tests.run_files import METRICS, read_lines

NETWORK = """
from torch import nn

def build(input_shape, n_outputs):
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 30),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(30, 20),
        nn.ReLU(),
        nn.Linear(20, n_outputs),
    )
"""
LEARN = [
    "learn",
    "--model",
    "own_net:build",
    "--data",
    "digits",
    "--limit",
    "600",
    "--batch-size",
    "60",
    "--epochs",
    "30",
    "--accelerator",
    "cpu",
    "--threads",
    "1",
    "--no-report",
    "--checkpoint-seconds",
    "0.02",
    "--seed",
    "3",
]


def write_network(folder: Path) -> None:
    """Put a user's own network with dropout into a folder."""
    (folder / "own_net.py").write_text(NETWORK)


def start(arguments: Sequence[str], folder: Path, **options: Any) -> subprocess.Popen[str]:
    """Start a command in a folder, as the leader of a process group of its own."""
    command = [sys.executable, "-m", "archlearn_cli", *arguments]
    return start_command(command, folder, **options)


def start_command(command: Sequence[str], folder: Path, **options: Any) -> subprocess.Popen[str]:
    """Start any program in a folder, its output to be read."""
    return subprocess.Popen(
        command,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=_environment(folder),
        **{"stderr": subprocess.STDOUT} | options,
    )


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of a command: one thread, and the folder's modules to import."""
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "COLUMNS": "200"}


def run(arguments: Sequence[str], folder: Path) -> tuple[int, str]:
    """Run a command to its end and return its exit code and what it said."""
    with start(arguments, folder) as process:
        output, _ = process.communicate(timeout=120)
    return process.returncode, output


def exit_code(arguments: Sequence[str]) -> object:
    """Run a command in this process, where it is, and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


def run_here(arguments: Sequence[str], folder: Path) -> tuple[int, str]:
    """Run a command in this process, which has imported torch already; return the same."""
    said = io.StringIO()
    words = ["archlearn", *arguments]
    with (
        chdir(folder),
        mock.patch.object(sys, "argv", words),
        mock.patch.object(sys, "path", [str(folder), *sys.path]),
        mock.patch.dict(os.environ, {"COLUMNS": "200"}),
        redirect_stdout(said),
        redirect_stderr(said),
    ):
        try:
            main(arguments)
        except SystemExit as exit_:
            return int(exit_.code or 0), said.getvalue()
        finally:
            own = [
                n for n, m in sys.modules.items() if str(folder) in str(getattr(m, "__file__", ""))
            ]
            for name in own:
                del sys.modules[name]
    return 0, said.getvalue()


def on_small_disk(size: str, mode: str, folder: Path) -> list[str]:
    """Return the words before a command that give it a file system of its own at a folder.

    Only the command sees it; it needs no rights but those to make a namespace.
    """
    folder.mkdir()
    mount = f'mount -t tmpfs -o {mode},size={size} none "$0" && exec "$@"'
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(folder)]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], check=False).returncode:
        pytest.skip("this machine lets nobody mount a file system of his own")
    return words


def assert_refused(arguments: str, answer: str, folder: Path) -> str:
    """Run a command that must be answered with what to do; return all that it said."""
    code, output = run_here(arguments.split(), folder)
    assert code == 1
    assert answer in output
    assert "Traceback" not in output
    return output


def wait_for_epoch(process: subprocess.Popen[str], run_folder: Path, epoch: int) -> None:
    """Wait until a run has written the metrics of an epoch."""
    for _ in range(6000):
        rows = read_lines(run_folder / METRICS)
        if rows and rows[-1]["epoch"] >= epoch:
            return
        if process.poll() is not None:
            output = process.stdout.read() if process.stdout else ""
            raise AssertionError(f"the run ended before epoch {epoch}: {output}")
        time.sleep(0.01)
    raise AssertionError(f"epoch {epoch} never came")


def kill_all(process: subprocess.Popen[str]) -> None:
    """Kill a process and all it started, giving them no chance to clean up."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout:
        process.stdout.close()


def without_times(rows: list[dict[str, Any]]) -> list[Mapping[str, Any]]:
    """Return metrics less the time they took."""
    return [{name: v for name, v in row.items() if name != "seconds"} for row in rows]
