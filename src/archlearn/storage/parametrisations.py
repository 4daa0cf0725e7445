"""A layer under `weight_norm` is written as its plain class and the dimension of the norm."""

from collections.abc import Mapping
from typing import cast

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from archlearn.errors import FileError
from archlearn.storage.values import is_identifier, shorten


def plain_class(module: nn.Module) -> type[nn.Module]:
    """Return the class that a layer had before its weights were parametrised."""
    kind = type(module)
    return kind.__bases__[0] if parametrize.is_parametrized(module) else kind


def read_parametrisations(name: str, module: nn.Module) -> dict[str, object]:
    """Return the dimension of the weight norm of each tensor that has one.

    Raises:
        FileError: If a tensor is parametrised in any other way.
    """
    if not parametrize.is_parametrized(module):
        return {}
    found: dict[str, object] = {}
    for tensor, chain in cast(nn.ModuleDict, module.parametrizations).items():
        steps = list(cast(nn.ModuleList, chain))
        if len(steps) != 1 or type(steps[0]).__name__ != "_WeightNorm":
            raise FileError(
                f"the tensor '{name}.{tensor}' is parametrised by {type(steps[0]).__name__}, which "
                "a file cannot hold; call torch.nn.utils.parametrize.remove_parametrizations first"
            )
        found[tensor] = cast(int, steps[0].dim)
    return found


def parametrise_(layer: nn.Module, dims: Mapping[str, object]) -> None:
    """Put the weight norm back on the tensors that had one.

    Raises:
        FileError: If the layer has no such tensor or the tensor no such dimension.
    """
    for tensor, dim in dims.items():
        known = is_identifier(tensor) and isinstance(layer._parameters.get(tensor), nn.Parameter)
        if not known or not (dim is None or isinstance(dim, int)):
            raise FileError(
                f"it normalises {shorten({tensor: dim})}, which the layer does not have"
            )
        try:
            with torch.device("meta"):
                parametrizations.weight_norm(layer, tensor, cast(int, dim))
        except (RuntimeError, IndexError) as error:
            raise FileError(f"it normalises {tensor!r} along {shorten(dim)}: {error}") from error
