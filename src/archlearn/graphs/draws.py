"""A number that Python draws while a model is traced would be the same number ever after."""

import random
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx.proxy import TraceError
from torch.utils._pytree import tree_leaves

from archlearn.graphs.inputs import ExampleInputs

DRAWN = (
    "it draws random numbers that no tensor of the model has a part in, and a trace would keep "
    "them; draw them with torch.rand_like(x), or x.new_empty(...).bernoulli_(p)"
)


def random_states() -> tuple[Any, ...]:
    """Return where the generators of torch (on the CPU), Python and numpy stand now."""
    states: tuple[Any, ...] = (torch.get_rng_state().numpy().tobytes(), random.getstate())
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return states
    _, keys, *places = numpy.random.get_state()
    return (*states, keys.tobytes(), places)


def check_draws(before: tuple[Any, ...]) -> None:
    """Raise if anything was drawn since.

    Raises:
        TraceError: If a generator is not where it was.
    """
    if random_states() != before:
        raise TraceError(DRAWN)


@contextmanager
def putting_back(inputs: ExampleInputs) -> Generator[list[int]]:
    """Put the generators of torch and Python back to where they stood.

    Yields:
        The CUDA devices that the inputs are on.
    """
    before = random.getstate()
    devices = cuda_devices(inputs)
    try:
        with torch.random.fork_rng(devices):
            yield devices
    finally:
        random.setstate(before)


def cuda_devices(inputs: ExampleInputs) -> list[int]:
    """Return the CUDA devices that inputs are on."""
    leaves = tree_leaves((inputs.args, inputs.kwargs))
    found = {leaf.get_device() for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_cuda}
    return sorted(found)
