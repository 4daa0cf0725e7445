"""`compare_speed`: time and peak memory of a forward pass, of two models in turns."""

import copy
import functools
import statistics
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from archlearn.module_utils import evaluating
from archlearn.tracing.example_inputs import ExampleInputs
from archlearn.tracing.shape_guards import with_rows
from archlearn.verification.conditions import Conditions, Mode

ROUNDS, SECONDS = 7, 0.05
"""How often each model has its turn, and how long a turn lasts at least."""


@dataclass(frozen=True, slots=True)
class Speed:
    """A forward pass of the original and of the compact model, side by side.

    Attributes:
        device: "cpu" or the name of a GPU.
        batch_size: The examples of a pass.
        seconds: The median time of a pass, before and after.
        bytes: The most memory that a pass takes beside the weights, before and after.
    """

    device: str
    batch_size: int
    seconds: tuple[float, float]
    bytes: tuple[int, int]

    def __str__(self) -> str:
        times = " -> ".join(f"{1000 * seconds:.3g} ms" for seconds in self.seconds)
        memory = " -> ".join(f"{n_bytes / 1e6:.3g} MB" for n_bytes in self.bytes)
        return (
            f"{self.device}, batch {self.batch_size}: {times} ({self.ratio:.2f}×), memory {memory}"
        )

    @property
    def ratio(self) -> float:
        """How many times faster the compact model is."""
        return self.seconds[0] / self.seconds[1]


def compare_speed(
    original: nn.Module,
    compact: nn.Module,
    example: object,
    batch_sizes: Sequence[int] = (1, 64),
    device: str | torch.device = "cpu",
    *,
    dtype: str | torch.dtype | None = None,
    memory_format: str | torch.memory_format | None = None,
    mode: Mode = "eager",
) -> list[Speed]:
    """Return how fast two models are, and how much memory they take, for each size of batches.

    They take turns, so that whatever else the machine does concerns both; times are medians. Both
    models are left untouched: copies are brought to the device.

    Args:
        original: The model to compare with.
        compact: The other one.
        example: A tensor, a tuple of arguments or a dict of keyword arguments, as one call takes
            them; rows are repeated to fill a batch.
        batch_sizes: How many examples a pass has.
        device: Where to run.
        dtype: The precision of weights and inputs; left out, the models' own.
        memory_format: Of tensors of four dimensions; left out, that of the original.
        mode: "eager", "graph" (a replayed CUDA graph) or "compile".
    """
    conditions = Conditions.of(original, device, dtype, memory_format, mode)
    hardware = torch.device(conditions.device)
    pair = (copy.deepcopy(original), copy.deepcopy(compact))
    for model in pair:
        conditions.place_(model)
    name = torch.cuda.get_device_name(hardware) if hardware.type == "cuda" else hardware.type
    inputs, speeds = ExampleInputs.of(example), list[Speed]()
    with torch.no_grad(), evaluating(*pair):
        for size in batch_sizes:
            filled = conditions.place_inputs(with_rows(inputs, size))
            calls = [functools.partial(model, *filled.args, **filled.kwargs) for model in pair]
            memory = _memory(calls[0], hardware), _memory(calls[1], hardware)
            timed = [conditions.prepare(call) for call in calls]
            before, after = map(statistics.median, time_in_turns(timed, hardware))
            speeds.append(Speed(name, size, (before, after), memory))
    return speeds


def time_in_turns(
    calls: Sequence[Callable[[], object]],
    device: torch.device,
    n_rounds: int = ROUNDS,
    seconds: float = SECONDS,
) -> list[list[float]]:
    """Return the seconds of each call in each round; in a round each has a turn."""
    once = [_time(call, device) for call in calls]  # the first passes warm up
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(n_rounds):
        for call, expected, measured in zip(calls, once, times, strict=True):
            measured.append(_time(call, device, max(1, round(seconds / expected))))
    return times


def _time(call: Callable[[], object], device: torch.device, n_passes: int = 1) -> float:
    """Return the mean seconds of a call."""
    wait_for(device)
    start = time.perf_counter()
    for _ in range(n_passes):
        call()
    wait_for(device)
    return (time.perf_counter() - start) / n_passes


def wait_for(device: torch.device) -> None:
    """Wait until a device has done all that it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _memory(call: Callable[[], object], device: torch.device) -> int:
    """Return the most bytes that a pass has allocated at one time."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    with _LiveTensors() as seen:
        call()
    return seen.most


class _LiveTensors(TorchDispatchMode):
    """Follows how many bytes the results of operations take at one time."""

    def __init__(self) -> None:
        super().__init__()
        self._known: set[int] = set()
        self._held: dict[int, int] = {}
        self.most = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Carry out an operation and count what it has made."""
        read = {storage.data_ptr() for storage in _storages((args, kwargs))}
        self._known |= read - self._held.keys()  # inputs and weights
        out = func(*args, **(kwargs or {}))
        for storage in _storages(out):
            address = storage.data_ptr()
            if address not in self._known and address not in self._held:
                self._held[address] = storage.nbytes()
                self.most = max(self.most, sum(self._held.values()))
                weakref.finalize(storage, self._held.pop, address)
        return out


def _storages(values: object) -> list[torch.UntypedStorage]:
    return [x.untyped_storage() for x in tree_leaves(values) if isinstance(x, Tensor)]
