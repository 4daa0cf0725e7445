"""A number that Python draws while a model is traced would be the same number ever after."""

import random
import sys
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx.proxy import TraceError
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from archlearn.graphs.inputs import ExampleInputs

DRAWN = (
    "it draws random numbers that no tensor of the model has a part in, and a trace would keep "
    "them; draw them with torch.rand_like(x), or x.new_empty(...).bernoulli_(p)"
)


_DRAWN = threading.local()


class _Counting(TorchDispatchMode):
    """Counts the calls by which this thread draws from torch's own generators."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and given.get("generator") is None:
            _DRAWN.n = _n_drawn() + 1
        return func(*args, **given)


def counting_draws() -> AbstractContextManager[Any]:
    """Tell what this thread draws from what other ones do, if there are any."""
    return _Counting() if threading.active_count() > 1 else nullcontext()


@dataclass(frozen=True, slots=True)
class Stand:
    """Where the generators of torch (on the CPU), Python and numpy stand at one time."""

    torch: bytes
    others: tuple[Any, ...]
    n_drawn: int
    is_alone: bool

    @classmethod
    def now(cls) -> "Stand":
        """Return where they stand now, and what this thread has drawn so far."""
        others: tuple[Any, ...] = (random.getstate(),)
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None:
            _, keys, *places = numpy.random.get_state()
            others = (*others, keys.tobytes(), places)
        is_alone = threading.active_count() == 1
        return cls(torch.get_rng_state().numpy().tobytes(), others, _n_drawn(), is_alone)

    def has_moved(self) -> bool:
        """Return whether anything was drawn since, as far as is known by this thread."""
        now = Stand.now()
        if now.others != self.others or now.n_drawn != self.n_drawn:
            return True
        return now.torch != self.torch and now.is_alone and self.is_alone


def _n_drawn() -> int:
    return getattr(_DRAWN, "n", 0)


def check_draws(before: Stand) -> None:
    """Raise if anything was drawn since.

    Raises:
        TraceError: If so.
    """
    if before.has_moved():
        raise TraceError(DRAWN)


@contextmanager
def putting_back(inputs: ExampleInputs) -> Generator[list[int]]:
    """Put the generators of torch and Python back to where they stood.

    Yields:
        The CUDA devices that the inputs are on.
    """
    before, n_drawn = random.getstate(), _n_drawn()
    devices = cuda_devices(inputs)
    try:
        with torch.random.fork_rng(devices):
            yield devices
    finally:
        random.setstate(before)
        _DRAWN.n = n_drawn


def cuda_devices(inputs: ExampleInputs) -> list[int]:
    """Return the CUDA devices that inputs are on."""
    leaves = tree_leaves((inputs.args, inputs.kwargs))
    found = {leaf.get_device() for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_cuda}
    return sorted(found)
