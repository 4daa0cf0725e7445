"""Random numbers drawn while tracing would become constants: detect and refuse them."""

import math
import operator
import random
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.proxy import TraceError
from torch.utils._python_dispatch import TorchDispatchMode

from archlearn.tracing.example_inputs import ExampleInputs
from archlearn.tracing.fx_utils import is_made_of

DRAWN = (
    "it draws random numbers that no tensor of the model has a part in, and a trace would keep "
    "them; draw them with torch.rand_like(x), or x.new_empty(...).bernoulli_(p)"
)
SKIPPED = (
    "it decides by a random number what it calls (LayerDrop), and a trace would decide once and "
    "for all; set the probability to 0 while gates learn (layerdrop=0.0 in the configuration), or "
    "multiply the branch by x.new_empty(...).bernoulli_(p), as stochastic depth does"
)
RECORDED = (torch.rand, torch.randn)  # as they are while no model is traced
_UNIFORM = RECORDED[0]
_COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge)
_SAME_NUMBER = ("item", "float", "double")
_DRAWN = threading.local()


class _Counting(TorchDispatchMode):
    """Counts the calls by which this thread draws from torch's own generators."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and keywords.get("generator") is None:
            _DRAWN.n = _n_drawn() + 1
        return func(*args, **keywords)


@dataclass(frozen=True, slots=True)
class RngState:
    """Where the generators of torch (on the CPU), Python and numpy stand at one time.

    Only within `watching_draws` is it known which thread drew.
    """

    torch: bytes
    others: tuple[Any, ...]
    n_drawn: int
    is_alone: bool

    @classmethod
    def now(cls) -> "RngState":
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
        now = RngState.now()
        if now.others != self.others or now.n_drawn != self.n_drawn:
            return True
        return now.torch != self.torch and now.is_alone and self.is_alone


@contextmanager
def watching_draws() -> Generator[RngState]:
    """Yield where the generators stand at the start: ask it `has_moved()` within the context.

    What this thread draws is told from what other ones do, if there are any.
    """
    with _Counting() if threading.active_count() > 1 else nullcontext():
        yield RngState.now()


def _n_drawn() -> int:
    return getattr(_DRAWN, "n", 0)


def check_draws(before: RngState) -> None:
    """Raise if anything was drawn since."""
    if before.has_moved():
        raise TraceError(DRAWN)


def is_drawn(value: Any) -> bool:
    """Return whether a traced value is made of random numbers alone."""
    return isinstance(value, fx.Node) and is_made_of(value, lambda n: n.target in RECORDED)


def find_sure_answer(node: fx.Node) -> bool | None:
    """Return what `torch.rand([]) < p` gives for all numbers from [0, 1), or None if not one thing.

    A probability of 0 is what most models with LayerDrop have.
    """
    compare: Any = node.target
    if compare not in _COMPARISONS or not _is_uniform(node.args[0]):
        return None
    limit = node.args[1]
    if not isinstance(limit, int | float):
        return None
    least, most = compare(0.0, limit), compare(math.nextafter(1.0, 0.0), limit)
    return least if least is most else None


def _is_uniform(value: Any) -> bool:
    """Return whether a traced value is one number from [0, 1), drawn by `torch.rand`."""
    while isinstance(value, fx.Node) and value.target in _SAME_NUMBER:
        value = value.args[0]
    return isinstance(value, fx.Node) and value.target is _UNIFORM


@contextmanager
def preserve_rng(inputs: ExampleInputs, seed: int | None = None) -> Generator[None]:
    """Put the generators of torch and Python back to where they stood; first give them a seed.

    Of GPUs, those that the inputs are on are meant.
    """
    before, n_drawn = random.getstate(), _n_drawn()
    devices = sorted({tensor.get_device() for tensor in inputs.tensors() if tensor.is_cuda})
    try:
        with torch.random.fork_rng(devices):
            if seed is not None:
                random.seed(seed)
                cuda_generators = [torch.cuda.default_generators[device] for device in devices]
                for generator in (torch.default_generator, *cuda_generators):
                    generator.manual_seed(seed)
            yield
    finally:
        random.setstate(before)
        _DRAWN.n = n_drawn
