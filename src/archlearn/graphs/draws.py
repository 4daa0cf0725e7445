"""A number that Python draws while a model is traced would be the same number ever after."""

import random
import sys
from typing import Any

import torch
from torch.fx.proxy import TraceError

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
