"""Trace through torch's own transformer layers."""

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

Call = tuple[tuple[Any, ...], dict[str, Any]]
BLOCKS = (
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoder,
    nn.TransformerDecoderLayer,
)
ASKS_FOR_TENSOR: Any = F._none_or_dtype.__code__  # what they ask of a mask
_HINTS: dict[type[nn.Module], tuple[str, int]] = {
    nn.TransformerEncoder: ("is_causal", 3),
    nn.TransformerDecoder: ("tgt_is_causal", 6),
}


def without_hint(m: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> Call:
    """Return the arguments with which a stack of layers takes its mask as it is given.

    Left alone, it compares the numbers of the mask with those of a causal one, to choose a faster
    kernel for the same function.
    """
    for kind, (name, place) in _HINTS.items():
        if not isinstance(m, kind) or type(m).forward is not kind.forward:
            continue
        if len(args) <= place and kwargs.get(name) is None:
            kwargs = {**kwargs, name: False}
        elif len(args) > place and args[place] is None:
            args = (*args[:place], False, *args[place + 1 :])
    return tuple(args), kwargs


def describe_fix(m: nn.Module) -> str:
    """Return what makes a block followable that decides by the numbers of its padding mask."""
    if not isinstance(m, nn.TransformerEncoder) or not m.use_nested_tensor:
        return ""
    return "; with a padding mask, only one made with enable_nested_tensor=False is followed"


def has_blocks(net: nn.Module) -> bool:
    """Return whether some part of a model is a block."""
    return any(isinstance(module, BLOCKS) for module in net.modules())


def count_flops() -> Any:
    """Return a counter of operations, attention on a CPU among them, as a context to run in."""
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return FlopCounterMode(display=False, custom_mapping={attend: _count_attention})


def _count_attention(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    """Count both products; each head of a query has one of keys and values."""
    *batch, n_queries, size = q
    return 2 * math.prod(batch) * n_queries * k[-2] * (size + v[-1])


@contextmanager
def unfused() -> Generator[None]:
    """Let attention run step by step: nobody can count what a fused kernel does."""
    was_fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_fused)
