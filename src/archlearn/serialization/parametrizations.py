"""A layer under `weight_norm` or `spectral_norm` is written as its plain class and the norm."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from archlearn.errors import FileError
from archlearn.serialization.values import is_identifier, shorten

# The class that computes each norm, by the name of the function that puts it there.
_NORMS = {"weight_norm": "_WeightNorm", "spectral_norm": "_SpectralNorm"}
_SETTINGS = {"weight_norm": ("dim",), "spectral_norm": ("n_power_iterations", "eps", "dim")}


def plain_class(module: nn.Module) -> type[nn.Module]:
    """Return the class that a layer had before its weights were parametrised."""
    kind = type(module)
    return kind.__bases__[0] if parametrize.is_parametrized(module) else kind


def read_parametrisations(name: str, module: nn.Module) -> dict[str, object]:
    """Return the norm of each tensor that has one, as JSON.

    Raises:
        FileError: If a tensor is parametrised in any other way.
    """
    if not parametrize.is_parametrized(module):
        return {}
    chains = cast(nn.ModuleDict, module.parametrizations)
    return {
        tensor: _read_norm(f"{name}.{tensor}", list(cast(nn.ModuleList, chain)))
        for tensor, chain in chains.items()
    }


def _read_norm(name: str, steps: list[nn.Module]) -> dict[str, object]:
    for norm, kind in _NORMS.items():
        if len(steps) == 1 and type(steps[0]).__name__ == kind:
            read = {setting: getattr(steps[0], setting, None) for setting in _SETTINGS[norm]}
            return {
                "norm": norm,
                **{key: value for key, value in read.items() if value is not None},
            }
    raise FileError(
        f"the tensor {name!r} is parametrised by {type(steps[0]).__name__}, which a file cannot "
        "hold; call torch.nn.utils.parametrize.remove_parametrizations first"
    )


def parametrise_(layer: nn.Module, norms: Mapping[str, object]) -> None:
    """Put the norms back on the tensors that had one.

    Raises:
        FileError: If the layer has no such tensor or the norm no such setting.
    """
    for tensor, described in norms.items():
        norm, settings = _check_norm(described)
        if not is_identifier(tensor) or layer._parameters.get(tensor) is None:
            raise FileError(f"it normalises {shorten(tensor)}, which the layer does not have")
        try:
            with torch.device("meta"):
                if norm == "spectral_norm":
                    _add_spectral_norm_(layer, tensor, **settings)
                else:
                    getattr(parametrizations, norm)(layer, tensor, **settings)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            raise FileError(f"it normalises {tensor!r} by {shorten(settings)}: {error}") from error


def _add_spectral_norm_(
    layer: nn.Module,
    tensor: str,
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int = 0,
) -> None:
    """Put a spectral norm on a tensor without its constructor's power iterations.

    Those take 40 ms a layer on the meta device, and as many of them as a file says.
    """
    weight = layer._parameters[tensor]
    if weight is None or not -weight.ndim <= dim < weight.ndim or n_power_iterations < 1:
        raise ValueError("it has no such dimension, or no iterations")
    norm_class: type[nn.Module] = parametrizations._SpectralNorm
    norm = norm_class.__new__(norm_class)
    nn.Module.__init__(norm)
    vars(norm).update(dim=dim % weight.ndim, eps=eps)
    if weight.ndim > 1:
        vars(norm)["n_power_iterations"] = n_power_iterations
        n_rows = weight.shape[dim]
        norm.register_buffer("_u", torch.empty(n_rows, dtype=weight.dtype))
        norm.register_buffer(
            "_v", torch.empty(weight.numel() // max(n_rows, 1), dtype=weight.dtype)
        )
    parametrize.register_parametrization(layer, tensor, norm, unsafe=True)


def _check_norm(described: object) -> tuple[str, dict[str, Any]]:
    settings = dict(cast(dict[str, Any], described)) if isinstance(described, dict) else {}
    norm = settings.pop("norm", None)
    numbers = all(isinstance(value, int | float) for value in settings.values())
    known = isinstance(norm, str) and norm in _NORMS
    if not known or not numbers or not set(settings) <= set(_SETTINGS[norm]):
        raise FileError(f"it normalises by {shorten(described)}, which is not a norm")
    return norm, settings
