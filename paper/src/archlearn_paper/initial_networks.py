"""Make the networks that runs start from, in worker processes where processors can be spared."""

import os
import signal
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import nn

from archlearn.serialization import load, save
from archlearn_paper.baselines.parameter_budget import BudgetError
from archlearn_paper.experiment import MissingModelError, Origin, Run

MOST_WORKERS, LEFT_ALONE = 14, 2
"""Processes that make networks, and processors that are left to the one that asks."""


def start_runs(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with their networks; one that cannot reach its budget is left out.

    Before any is made, `MissingModelError` names all runs whose models are needed and gone.
    """
    origins = list(dict.fromkeys(run.origin for run in runs if run.origin is not None))
    parents = [origin.parent for origin in origins if origin.parent is not None]
    lost = {parent.row.key for parent in parents if not parent.path.is_file()}
    if lost:
        raise MissingModelError(*lost)
    networks = make_networks(origins)
    started = [replace(run, network=networks[run.origin]) if run.origin else run for run in runs]
    return [run for run in started if run.origin is None or run.network is not None]


def make_networks(
    origins: Sequence[Origin], n_workers: int | None = None
) -> dict[Origin, nn.Module | None]:
    """Return the network of each origin, or None where a budget cannot be reached.

    Workers make them on the CPU, so that a GPU need not wait for long; fewer than 2 are not begun.
    """
    helped = [origin for origin in origins if origin.in_worker]
    spare = (os.cpu_count() or 1) - LEFT_ALONE if n_workers is None else n_workers
    n_workers = min(MOST_WORKERS, spare, len(helped))
    if n_workers < 2:
        return {origin: _make(origin) for origin in origins}
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{index}.safetensors") for index in range(len(helped))]
        # Not forked: a copy of a process that uses a GPU, or has threads, may hang.
        with ProcessPoolExecutor(n_workers, get_context("spawn"), _use_one_cpu) as pool:
            list(pool.map(_make_file, helped, paths))
        pairs = zip(helped, paths, strict=True)
        networks = {origin: load(path) if path.is_file() else None for origin, path in pairs}
    return networks | {origin: _make(origin) for origin in origins if not origin.in_worker}


def _make(origin: Origin) -> nn.Module | None:
    try:
        return origin.make_network()
    except BudgetError:
        return None


def _make_file(origin: Origin, path: Path) -> None:
    network = _make(origin)
    if network is not None:
        save(network, path)


def _use_one_cpu() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # Ctrl-C reaches workers, too; they leave without a word.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(1)
