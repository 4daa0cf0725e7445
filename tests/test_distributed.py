"""Under DistributedDataParallel gates are parameters like all others: the same everywhere."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

WORKER = Path(__file__).with_name("distributed_worker.py")
N_PROCESSES = 2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("one_group_of_processes"),
    pytest.mark.skipif(
        not (distributed.is_available() and distributed.is_gloo_available()),
        reason="this torch has no gloo",
    ),
]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes ends up with."""
    folder = tmp_path_factory.mktemp("ranks")
    shared = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(N_PROCESSES),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, WORKER, folder]
    running = [
        subprocess.Popen(command, env=shared | {"RANK": str(rank)}, stderr=subprocess.PIPE)
        for rank in range(N_PROCESSES)
    ]
    try:
        errors = [process.communicate(timeout=120)[1].decode() for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], "\n".join(errors)
    return [torch.load(folder / f"{rank}.pt") for rank in range(N_PROCESSES)]


def test_each_process_saw_its_own_data(results: list[dict[str, Any]]) -> None:
    assert results[0]["seen"] != results[1]["seen"]


def test_gates_moved_and_are_the_same_everywhere(results: list[dict[str, Any]]) -> None:
    first, second = (result["gates"] for result in results)
    assert first.keys() == second.keys()
    for name, gate in first.items():
        assert torch.equal(gate, second[name]), name
    widths = torch.cat([first["0"], first["2"]])
    assert not torch.equal(widths, torch.full_like(widths, 0.55))


def test_every_process_compacts_to_the_same_model(results: list[dict[str, Any]]) -> None:
    first, second = results
    assert first["architecture"] == second["architecture"] != "12-8-3"
    assert torch.equal(first["output"], second["output"])
    torch.testing.assert_close(first["output"], first["gated"])


def test_a_budget_is_learnt_alike_everywhere_and_as_by_one_process(
    results: list[dict[str, Any]],
) -> None:
    first, second = (result["budget"] for result in results)
    alone = results[0]["alone"]
    assert first["parameters"] == second["parameters"] == alone["parameters"] <= 0.4 * 619
    for name, opened in first["opened"].items():
        assert torch.equal(opened, second["opened"][name])
        assert torch.equal(opened, alone["opened"][name])


def test_two_processes_that_shrink_equal_one(results: list[dict[str, Any]]) -> None:
    first, second = (result["shrunk"] for result in results)
    alone, whole = results[0]["shrunk_alone"], results[0]["alone"]
    assert first["parameters"] == second["parameters"] == alone["parameters"]
    assert alone["parameters"] == whole["parameters"]
    assert first["weights"]["0.weight"].shape[0] < whole["weights"]["0.weight"].shape[0]
    for name, weight in first["weights"].items():
        assert torch.equal(weight, second["weights"][name])
        torch.testing.assert_close(weight, alone["weights"][name], rtol=1e-9, atol=1e-12)
