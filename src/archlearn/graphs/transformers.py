"""Torch's own transformer blocks are made of layers, so that they are followed like a user's."""

from typing import Any

import torch.nn.functional as F
from torch import nn

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


def without_hint(m: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments with which a stack of layers takes its mask as it is given.

    Left alone, it compares the numbers of the mask with those of a causal one, to choose a faster
    kernel for the same function.
    """
    for kind, (name, place) in _HINTS.items():
        if isinstance(m, kind) and len(args) <= place and kwargs.get(name) is None:
            return {**kwargs, name: False}
    return kwargs


def describe_fix(m: nn.Module) -> str:
    """Return what makes a block followable that decides by the numbers of its padding mask."""
    is_nesting = isinstance(m, nn.TransformerEncoder) and m.use_nested_tensor
    return "; make it with enable_nested_tensor=False, and it is followed" if is_nesting else ""
