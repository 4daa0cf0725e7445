"""Time the forward passes of two networks side by side."""

import copy
import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn

_TURNS = 9
_WARM_UP = 2
_BATCHES = {"cpu": 16, "cuda": 256}


def time_side_by_side(first: nn.Module, second: nn.Module, example: Tensor) -> dict[str, Any]:
    """Return the median time of a forward pass of both, in milliseconds, by device.

    Turns alternate, so that a busy moment of the machine meets both.
    """
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    return {name: _time_on(torch.device(name), first, second, example) for name in devices}


@torch.no_grad()
def _time_on(
    device: torch.device, first: nn.Module, second: nn.Module, example: Tensor
) -> dict[str, Any]:
    batch = _BATCHES[device.type]
    # Zeros would be multiplied faster than numbers are.
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, *example.shape[1:], generator=generator).to(device)
    networks = [copy.deepcopy(network).to(device).eval() for network in (first, second)]
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(_WARM_UP + _TURNS):
        for network, spent in zip(networks, times, strict=True):
            seconds = _time(network, x)
            if turn >= _WARM_UP:
                spent.append(1000 * seconds)
    medians = [statistics.median(spent) for spent in times]
    return {
        "batch": batch,
        "threads": torch.get_num_threads(),
        "reference_ms": round(medians[0], 3),
        "own_ms": round(medians[1], 3),
        "ratio": round(medians[1] / medians[0], 4),
    }


def _time(network: nn.Module, x: Tensor) -> float:
    _wait(x)
    started = time.perf_counter()
    network(x)
    _wait(x)
    return time.perf_counter() - started


def _wait(x: Tensor) -> None:
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)
