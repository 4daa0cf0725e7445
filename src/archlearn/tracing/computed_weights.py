"""Weights that are computed before each call: by parametrisations, or by torch's older hooks.

`torch.nn.utils.weight_norm`, `spectral_norm` and `prune` compute a weight in a forward pre-hook and
leave it on the layer as a plain attribute. Between two calls that may be out of date.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from archlearn.module_utils import evaluating, is_weight_hook


def computes_weights(module: nn.Module) -> bool:
    """Return whether a module holds a weight that is computed from others."""
    hooks = module._forward_pre_hooks.values()
    return "parametrizations" in module._modules or any(map(is_weight_hook, hooks))


def computed_names(module: Any) -> list[str]:
    """Return the attributes of a module that are computed."""
    names = list(module.parametrizations) if parametrize.is_parametrized(module) else []
    return names + [_name_of(hook) for hook in _weight_hooks(module)]


@torch.no_grad()
def compute_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return computed weights as they are now, by attribute."""
    # Some are computed otherwise in training mode, and move buffers then.
    with evaluating(module):
        found = {name: getattr(module, name) for name in computed_names(module)}
        return found | {_name_of(hook): _compute(hook, module) for hook in _weight_hooks(module)}


def weight_sources(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that a module's weights are computed from, by name."""
    known = ("parametrizations.",)
    ends = ("_g", "_v", "_orig")
    hooked = {f"{_name_of(hook)}{end}" for hook in _weight_hooks(module) for end in ends}
    return {
        name: parameter
        for name, parameter in module.named_parameters()
        if name.startswith(known) or name in hooked
    }


def make_plain_(module: Any) -> None:
    """Replace weights that are computed by their values.

    Torch's own `remove_parametrizations` changes the class that copies of the module share.
    """
    computed = compute_weights(module)
    learns = any(parameter.requires_grad for parameter in weight_sources(module).values())
    for hook in _weight_hooks(module):
        name = _name_of(hook)
        if isinstance(hook, prune.BasePruningMethod):
            prune.remove(module, name)
        else:
            remove = remove_weight_norm if isinstance(hook, WeightNorm) else remove_spectral_norm
            remove(module, name)
    if parametrize.is_parametrized(module):
        del module.parametrizations
        module.__class__ = type(module).__bases__[0]
    for name, value in computed.items():
        setattr(module, name, nn.Parameter(value.clone(), learns))


def _weight_hooks(module: nn.Module) -> list[Any]:
    return [hook for hook in module._forward_pre_hooks.values() if is_weight_hook(hook)]


def _name_of(hook: Any) -> str:
    return hook._tensor_name if isinstance(hook, prune.BasePruningMethod) else hook.name


def _compute(hook: Any, module: nn.Module) -> Tensor:
    if isinstance(hook, prune.BasePruningMethod):
        return hook.apply_mask(module)
    if isinstance(hook, SpectralNorm):
        return hook.compute_weight(module, do_power_iteration=False)
    return hook.compute_weight(module)
