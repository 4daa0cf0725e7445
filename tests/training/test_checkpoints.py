"""A checkpoint is whole or it is not loaded."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from archlearn import CheckpointError
from archlearn_cli.training import read_checkpoint
from archlearn_cli.training.checkpoint import (
    Position,
    capture_random_states,
    order_of_epoch,
    restore_random,
    restore_random_states,
    restore_tensors_,
    seed_everything,
    write_checkpoint,
)
from archlearn_cli.training.train_step import Optimizers
from benchmarks.hostile_files import build_checkpoint, nest
from tests.run_files import CONFIG, LATEST, PREVIOUS


def write_two(folder: Path) -> None:
    for number in (1, 2):
        tensors = {"model/a": torch.full((3, 4), float(number)), "model/empty": torch.empty(0)}
        write_checkpoint(folder, Position(epoch=number, loss_sum=0.1 + 0.2), tensors)


def test_newest_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path) is None
    write_two(tmp_path)
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert found[0] == Position(epoch=2, loss_sum=0.1 + 0.2)
    assert torch.equal(found[1]["model/a"], torch.full((3, 4), 2.0))
    assert {file.name for file in tmp_path.iterdir()} == {LATEST, PREVIOUS}


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_truncated_checkpoint_is_passed_over(
    tmp_path: Path, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    write_two(tmp_path)
    content = (tmp_path / LATEST).read_bytes()
    (tmp_path / LATEST).write_bytes(content[: int(len(content) * share)])
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert found[0].epoch == 1
    assert "is torn" in caplog.text


def test_single_flipped_bit_anywhere_is_found(tmp_path: Path) -> None:
    write_two(tmp_path)
    content = (tmp_path / LATEST).read_bytes()
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        (tmp_path / LATEST).write_bytes(flipped)
        found = read_checkpoint(tmp_path)
        assert found is not None
        assert found[0].epoch == 1, place


def test_digit_that_is_too_far_back_to_change_a_number_is_found_too(tmp_path: Path) -> None:
    write_two(tmp_path)
    content = (tmp_path / LATEST).read_bytes()
    assert b"0.30000000000000004" in content
    changed = content.replace(b"0.30000000000000004", b"0.30000000000000005")
    (tmp_path / LATEST).write_bytes(changed)
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert found[0].epoch == 1


def test_nothing_is_loaded_when_all_are_torn(tmp_path: Path) -> None:
    write_two(tmp_path)
    for name in (LATEST, PREVIOUS):
        (tmp_path / name).write_bytes(b"rubbish")
    with pytest.raises(CheckpointError, match="start the run anew"):
        read_checkpoint(tmp_path)


_WRITER = """
import sys, torch
from pathlib import Path
from archlearn_cli.training.checkpoint import Position, write_checkpoint
for number in range(1, 10**9):
    tensor = torch.full((200_000,), float(number))
    write_checkpoint(Path(sys.argv[1]), Position(epoch=number), {"model/a": tensor})
    if number == 1:
        print("first", flush=True)
"""


@pytest.mark.slow
def test_a_writer_killed_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    draw = random.Random(3)
    for attempt in range(4):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        command = [sys.executable, "-c", _WRITER, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"first\n"
            time.sleep(draw.random() * 0.1)
            writer.kill()
        found = read_checkpoint(folder)
        assert found is not None
        assert torch.equal(found[1]["model/a"], torch.full((200_000,), float(found[0].epoch)))


def test_random_states_go_on_where_they_were() -> None:
    random.gauss(0, 1)
    np.random.randn()
    states = capture_random_states()

    def draw() -> tuple[float, float, float, float]:
        return torch.rand(1).item(), np.random.randn(), random.gauss(0, 1), random.random()

    first = [draw() for _ in range(3)]
    restore_random_states(states)
    assert [draw() for _ in range(3)] == first


def test_each_process_draws_numbers_of_its_own() -> None:
    def draw(seed: int, rank: int) -> tuple[float, float, float]:
        seed_everything(seed, rank)
        return torch.rand(1).item(), np.random.rand(), random.random()

    drawn = [draw(seed, rank) for seed in (0, 1) for rank in (0, 1)]
    assert drawn == [draw(seed, rank) for seed in (0, 1) for rank in (0, 1)]
    assert [len(set(numbers)) for numbers in zip(*drawn, strict=True)] == [4, 4, 4]


def test_order_follows_from_seed_and_epoch_alone() -> None:
    torch.manual_seed(0)
    first = order_of_epoch(100, seed=1, epoch=2)
    torch.rand(5)
    assert torch.equal(first, order_of_epoch(100, seed=1, epoch=2))
    assert not torch.equal(first, order_of_epoch(100, seed=1, epoch=3))
    assert not torch.equal(first, order_of_epoch(100, seed=2, epoch=2))
    assert first.sort().values.tolist() == list(range(100))


@pytest.mark.slow
def test_full_disk_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    write_two(tmp_path)
    (tmp_path / CONFIG).touch()  # as every run that has begun has
    script = (
        "import resource, sys, torch\n"
        "from pathlib import Path\n"
        "from archlearn_cli.training.checkpoint import Position, write_checkpoint\n"
        "from archlearn_cli.training.run_directory import explaining_full_disks\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "folder = Path(sys.argv[1])\n"
        "with explaining_full_disks(folder):\n"
        "    write_checkpoint(folder, Position(epoch=3), {'model/a': torch.zeros(9999)})\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "the disk is full" in ended.stderr
    assert f"--resume {tmp_path}" in ended.stderr
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert found[0].epoch == 2
    assert {file.name for file in tmp_path.iterdir()} == {LATEST, PREVIOUS, CONFIG}
    assert os.listdir(tmp_path)


@pytest.mark.parametrize(
    "position",
    [
        nest(100_000),
        '{"a":' * 100_000 + "1" + "}" * 100_000,
        "[1]",
        json.dumps({"epoch": "1"}),
        json.dumps({"epoch": -1}),
        json.dumps({"epoch": True}),
        json.dumps({"step": 2**70}),
        json.dumps({"epoch": 1, "more": 1}),
        json.dumps({"command": "a" * 2**22}),
    ],
    ids=lambda text: text[:20],
)
def test_a_hostile_position_whose_digest_fits_is_refused(tmp_path: Path, position: str) -> None:
    (tmp_path / LATEST).write_bytes(build_checkpoint(position).content)
    with pytest.raises(CheckpointError, match=r"is torn \(it has no position\)"):
        read_checkpoint(tmp_path)


def test_a_checkpoint_with_an_impossible_shape_is_refused(tmp_path: Path) -> None:
    (tmp_path / LATEST).write_bytes(build_checkpoint("{}", (0, 2**62, 2**62)).content)
    with pytest.raises(CheckpointError, match=r"is torn .*MAX_ELEMENTS"):
        read_checkpoint(tmp_path)


def test_states_that_fit_no_generator_or_optimizer_are_refused() -> None:
    tensors = {"random/0/torch": torch.zeros(3)}
    with pytest.raises(CheckpointError, match="random states cannot be restored"):
        restore_random(tensors, 0)
    model = torch.nn.Linear(2, 1, bias=False)
    optimizers: Optimizers = (torch.optim.SGD(model.parameters(), momentum=0.9),)
    tensors = {
        "model/weight": torch.zeros(1, 2),
        "optimiser/weight/momentum_buffer": torch.zeros(5),
    }
    with pytest.raises(CheckpointError, match=r"momentum_buffer' of shape \(5,\) .*\(1, 2\)"):
        restore_tensors_(tensors, model, optimizers)
