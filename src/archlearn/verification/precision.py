"""Run a model in double precision for a while, in place.

Only the numbers are exchanged: no module is copied, and whoever holds a parameter still does.
"""

from collections.abc import Container, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from archlearn.module_utils import EXCHANGES_UNDER_WAY, tensors_of


def to_float64(net: nn.Module, skipped: Container[Tensor] = ()) -> dict[Tensor, Tensor]:
    """Return the numbers of each real or complex tensor, not `known`, that is not double yet."""
    return {
        tensor: tensor.detach().to(widened(tensor.dtype))
        for _, tensor in tensors_of(net)
        if widened(tensor.dtype) is not tensor.dtype and tensor not in skipped
    }


def cast_(net: nn.Module, dtypes: dict[str, torch.dtype]) -> dict[Tensor, Tensor]:
    """Give a model its own precision back; return the numbers that it had in double."""
    default = next(dtype for dtype in dtypes.values() if dtype.is_floating_point)
    doubles: dict[Tensor, Tensor] = {}
    for name, tensor in tensors_of(net):
        dtype = dtypes.get(name, default if tensor.is_floating_point() else tensor.dtype)
        if tensor.dtype is not dtype:
            doubles[tensor] = tensor.data
            tensor.data = tensor.data.to(dtype)
    return doubles


def widened(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which such numbers are computed in double precision."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


_CASTS = {"float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16}


class _Widening(TorchFunctionMode):
    """Lets `x.float()` and `dtype=torch.float32` mean double, also in a model that is in double.

    Norms of transformers are written so: what they round is no difference between two models. And
    so does `torch.zeros(n)`, into which a graph's messages are added.
    """

    def __init__(self, dtypes: frozenset[torch.dtype]) -> None:
        super().__init__()
        self.dtypes = dtypes

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if args and _CASTS.get(getattr(func, "__name__", "")) in self.dtypes:
            return args[0].to(torch.float64)
        widened = [self._widen(value) for value in args]
        named = {key: self._widen(value) for key, value in (kwargs or {}).items()}
        out = func(*widened, **named)
        if isinstance(out, Tensor) and out.dtype in self.dtypes:
            is_new = not any(isinstance(leaf, Tensor) for leaf in tree_leaves((args, named)))
            return out.to(torch.float64) if is_new else out
        return out

    def _widen(self, value: Any) -> Any:
        is_own = isinstance(value, torch.dtype) and value in self.dtypes
        return widened(value) if is_own else value


@contextmanager
def holding(numbers: Mapping[Tensor, Tensor]) -> Generator[None]:
    """Let tensors hold other numbers for a while."""
    original_data = {tensor: tensor.data for tensor in numbers}
    try:
        for tensor, other in numbers.items():
            tensor.data = other
        yield
    finally:
        for tensor, data in original_data.items():
            tensor.data = data


@contextmanager
def exchanging(numbers: Mapping[Tensor, Tensor]) -> Generator[None]:
    """Let tensors hold other numbers for a while, and casts to their precision be none."""
    dtypes = frozenset(tensor.dtype for tensor in numbers)
    EXCHANGES_UNDER_WAY[0] += 1
    try:
        # a model in float64 may have parts in float32
        with holding(numbers), _Widening(dtypes | {torch.float32}):
            yield
    finally:
        EXCHANGES_UNDER_WAY[0] -= 1
