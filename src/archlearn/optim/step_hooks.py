"""Call functions before and after each step of optimisers, in anybody's training loop.

torch calls the hooks of an optimiser wherever a loop steps it: in Lightning, transformers' Trainer,
Accelerate, or by hand. A closure runs the backward pass inside `step`, so that "before" is behind
the closure then.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from archlearn.errors import InputError

Act = Callable[[Optimizer], None]


def read_optimizers(argument: Any) -> tuple[Optimizer, ...]:
    """Return optimisers as a tuple; a wrapper of Accelerate or Lightning is looked into.

    Raises:
        InputError: If one is none, or evaluates its closure several times.
    """
    several = argument if isinstance(argument, Sequence) else (argument,)
    unwrapped = tuple(map(_unwrap, several))
    if not unwrapped:
        raise InputError("optimizer is empty; give the optimizers of the model's weights")
    for optimizer in unwrapped:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise InputError(
                "optimizer is LBFGS, which evaluates its closure several times a step, so that no "
                "step has one gradient; learn gates by another optimizer, and fine-tune the "
                "compact model by LBFGS"
            )
        if not hasattr(optimizer, "param_groups") or not hasattr(optimizer, "state"):
            raise InputError(
                f"optimizer is {optimizer!r}; give the torch optimizer of the model's weights, or "
                "a list of them"
            )
    return unwrapped


def _unwrap(optimizer: Any) -> Any:
    inner = getattr(optimizer, "optimizer", None)
    return _unwrap(inner) if isinstance(inner, Optimizer) else optimizer


class StepHooks:
    """Hooks on the steps of optimisers; one without hooks of its own is stepped by hand."""

    def __init__(self, optimizers: Sequence[Optimizer], before: Act, after: Act) -> None:
        self._before, self._after, self._handles = before, after, list[Any]()
        for optimizer in optimizers:
            if isinstance(optimizer, Optimizer):  # pyright: ignore[reportUnnecessaryIsInstance]
                self._handles.append(optimizer.register_step_pre_hook(self._call_before))
                self._handles.append(optimizer.register_step_post_hook(self._call_after))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is called: a copied optimiser has lost its hooks."""
        return {"_handles": []}

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()

    def _call_before(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if _is_capturing():
            return None
        # With the optimiser itself in front, as `step` is called.
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._before(optimizer)
            return None
        wrapped = self._wrap(optimizer, closure)
        if len(args) > 1:
            return (args[0], wrapped, *args[2:]), kwargs
        return args, {**kwargs, "closure": wrapped}

    def _wrap(self, optimizer: Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
        n_calls = 0

        def call() -> Any:
            nonlocal n_calls
            n_calls += 1
            if n_calls > 1:
                raise InputError(
                    f"{type(optimizer).__name__} evaluates its closure several times a step, so "
                    "that no step has one gradient; learn gates by another optimizer"
                )
            loss = closure()
            self._before(optimizer)
            return loss

        return call

    def _call_after(self, optimizer: Optimizer, *_: Any) -> None:
        if not _is_capturing():
            self._after(optimizer)


def _is_capturing() -> bool:
    """Return whether a CUDA graph is captured: what runs now is repeated without its hooks."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
