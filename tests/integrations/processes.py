"""Run a module as two processes of one group."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch


def run_two(module: str, folder: Path) -> list[dict[str, Any]]:
    """Return what each of the two processes wrote into `folder`."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    shared = os.environ | {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2",
        "NODE_RANK": "0", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    running = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(folder)],
            env=shared | {"LOCAL_RANK": str(rank), "RANK": str(rank)},
            cwd=Path(__file__).parents[2],
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=300)[1].decode() for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], "\n".join(errors)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def check_same(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
