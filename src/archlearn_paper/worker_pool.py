"""Processes that build networks on the CPU, so that a GPU need not wait."""

import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from archlearn.serialization import load, save
from archlearn_paper.baselines.budget import BudgetError

MOST_WORKERS = 14
_LEFT_ALONE = 2
"""Processors that are left to the process that asks."""

Item = TypeVar("Item")
Found = TypeVar("Found")
Make = Callable[[], nn.Module]
"""Makes a network; if workers are to do it, it and all it holds can be pickled."""


def count_workers() -> int:
    """Return how many processes are worth starting; 0 where there are hardly any processors."""
    n_workers = min(MOST_WORKERS, (os.cpu_count() or 1) - _LEFT_ALONE)
    return n_workers if n_workers > 1 else 0


def map_in_processes(
    function: Callable[[Item], Found], given: Sequence[Item], n_workers: int | None = None
) -> list[Found]:
    """Return what a function makes of each thing given, worked out side by side.

    Args:
        function: Of a module, so that workers find it.
        given: Plain data.
        n_workers: How many processes; None chooses, and 0 stays in this one.
    """
    n_workers = min(count_workers() if n_workers is None else n_workers, len(given))
    if n_workers < 2:
        return [function(each) for each in given]
    # Not forked: a copy of a process that uses a GPU, or has threads, may hang.
    with ProcessPoolExecutor(n_workers, get_context("spawn"), _use_one_cpu) as pool:
        return list(pool.map(function, given))


def make_networks(makes: Sequence[Make], n_workers: int | None = None) -> list[nn.Module | None]:
    """Return the network that each function makes, or None where a budget cannot be reached."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{place}.safetensors" for place in range(len(makes))]
        made = map_in_processes(_make_file, list(zip(makes, paths, strict=True)), n_workers)
        return [load(path) if there else None for path, there in zip(paths, made, strict=True)]


def _make_file(task: tuple[Make, Path]) -> bool:
    """Write the network that a function makes; return whether there is one."""
    make, path = task
    try:
        save(make(), path)
    except BudgetError:
        return False
    return True


def _use_one_cpu() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # Ctrl-C reaches workers, too; they leave without a word.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(1)
