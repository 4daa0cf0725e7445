"""What `forward` runs under is no call, and no part of a trace: gradients, and mixed precision.

A part that switches gradients off, or asks for autocast, is called as it is.
"""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch

from archlearn.graphs.questions import Refusal
from archlearn.graphs.sources import is_ours

WITHOUT_GRADIENTS = (
    "calls are made without gradients (torch.no_grad), which a trace does not hold; call .detach() "
    "on what comes out instead"
)
_AUTOCAST = (
    "it asks for or sets autocast, which a trace does not hold; let the caller of the model set it"
)


@contextmanager
def plain_context() -> Generator[None]:
    """Trace with gradients and without autocast, and refuse whoever asks for or sets the latter."""
    homes: tuple[Any, ...] = (torch, torch.cuda.amp, torch.cpu.amp)
    asked: list[tuple[Any, str]] = [(torch, "is_autocast_enabled")]
    asked += [(home.autocast, "__enter__") for home in homes]
    own = [getattr(owner, name) for owner, name in asked]
    try:
        for (owner, name), function in zip(asked, own, strict=True):
            setattr(owner, name, _refusing(function))
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for (owner, name), function in zip(asked, own, strict=True):
            setattr(owner, name, function)


def check_gradients() -> None:
    """Refuse a call that is made without gradients.

    Raises:
        Refusal: If gradients are switched off.
    """
    if not torch.is_grad_enabled():
        raise Refusal(WITHOUT_GRADIENTS)


def _refusing(function: Callable[..., Any]) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_code
        if is_ours(caller.co_filename) and caller.co_name != "decorate_autocast":
            return function(*args, **kwargs)
        raise Refusal(_AUTOCAST)

    return refuse
