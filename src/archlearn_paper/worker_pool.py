"""Processes for work on the CPU, so that a GPU need not wait.

Helpers are started afresh, see no GPU and have one thread each. They are kept until the end, for
it takes seconds to start them.
"""

import functools
import logging
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from archlearn.serialization import load, save
from archlearn_paper.baselines.interface import BudgetError

logger = logging.getLogger(__name__)

MOST_HELPERS = 14
_LEFT_ALONE = 2
"""Processors that are left to the process that asks for help."""

Given = TypeVar("Given")
Found = TypeVar("Found")
Make = Callable[[], nn.Module]
"""Makes a network; if helpers are to do it, it and all it holds can be pickled."""


def count_helpers() -> int:
    """Return how many processes are worth starting; 0 where there are hardly any processors."""
    n_helpers = min(MOST_HELPERS, (os.cpu_count() or 1) - _LEFT_ALONE)
    return n_helpers if n_helpers > 1 else 0


def call_helpers(prepare: Callable[[], object] = os.getpid, n_helpers: int | None = None) -> None:
    """Start the helpers now, so that they are there when they are needed.

    Args:
        prepare: What each of them is to do first; nobody waits for it.
        n_helpers: How many processes; None chooses.
    """
    n_helpers = count_helpers() if n_helpers is None else n_helpers
    try:
        for _ in range(n_helpers):
            _helpers(n_helpers).submit(prepare)
    except BrokenProcessPool:
        _helpers.cache_clear()


def map_helped(
    function: Callable[[Given], Found], given: Sequence[Given], n_helpers: int | None = None
) -> list[Found]:
    """Return what a function makes of each thing given, worked out by helpers where there are any.

    Should they die, for want of memory or of what starts them, it is worked out here.

    Args:
        function: Of a module, so that helpers find it.
        given: Plain data.
        n_helpers: How many processes; None chooses, and 0 stays in this one.
    """
    n_helpers = count_helpers() if n_helpers is None else n_helpers
    if not n_helpers or len(given) < 2:
        return [function(each) for each in given]
    try:
        return list(_helpers(n_helpers).map(function, given))
    except BrokenProcessPool as error:
        logger.warning("helpers have died (%s), so their work takes longer", error)
        _helpers.cache_clear()
        return [function(each) for each in given]


def make_networks(makes: Sequence[Make], n_helpers: int | None = None) -> list[nn.Module | None]:
    """Return the network that each function makes, or None where a budget cannot be reached."""
    n_helpers = count_helpers() if n_helpers is None else n_helpers
    if not n_helpers:
        return [try_make(make) for make in makes]
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{place}.safetensors" for place in range(len(makes))]
        made = map_helped(_make_file, list(zip(makes, paths, strict=True)), n_helpers)
        return [load(path) if there else None for path, there in zip(paths, made, strict=True)]


def try_make(make: Make) -> nn.Module | None:
    """Return a network within its budget, or None where the method cannot reach it."""
    try:
        return make()
    except BudgetError:
        return None


def _make_file(task: tuple[Make, Path]) -> bool:
    """Write the network that a function makes; return whether there is one."""
    make, path = task
    network = try_make(make)
    if network is not None:
        save(network, path)
    return network is not None


@functools.cache
def _helpers(n_helpers: int) -> ProcessPoolExecutor:
    # Not forked: a copy of a process that uses a GPU, or has threads, may hang.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(
        n_helpers, mp_context=context, initializer=_begin, initargs=(os.getpid(),)
    )


def _begin(parent: int) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # Ctrl-C reaches helpers, too; they leave without a word, whatever they were at.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(1)
    threading.Thread(target=_leave_after, args=(parent,), daemon=True).start()


def _leave_after(parent: int) -> None:
    """End this process once the one that started it is gone: killed, it cannot say so."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
