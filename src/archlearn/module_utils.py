"""Modules and tensors are found by their names, often; torch's own search is slow."""

from collections import Counter

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import prune
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from archlearn.errors import InputError


def find_module(net: nn.Module, name: str) -> nn.Module:
    """Return the submodule of that name."""
    module: nn.Module | None = net
    for part in name.split(".") if name else ():
        module = None if module is None else module._modules.get(part)
    return net.get_submodule(name) if module is None else module


def has_hooks(module: nn.Module) -> bool:
    """Return whether something of the user's runs before or after the module's `forward`."""
    before = module._forward_pre_hooks
    return bool(module._forward_hooks or (before and not all(map(is_weight_hook, before.values()))))


def find_tensor(net: nn.Module, name: str) -> Tensor:
    """Return the parameter or buffer of that name (also one that is computed)."""
    owner, _, attribute = name.rpartition(".")
    return getattr(find_module(net, owner), attribute)


def find_reference(net: nn.Module) -> Tensor | None:
    """Return a parameter that says where a model is, and in which precision it computes.

    Complex parameters and integers say nothing about the latter.
    """
    found = list(net.parameters())
    return next((p for p in found if p.is_floating_point()), next(iter(found), None))


def first_names(net: nn.Module) -> dict[str, str]:
    """Return the first name of each parameter and buffer, by all its names."""
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for name, tensor in list_tensors(net):
        names[name] = first.setdefault(id(tensor), name)
    return names


def sharing_layers(net: nn.Module) -> frozenset[str]:
    """Return the names of modules with a parameter that another module holds, too."""
    holders = Counter(
        id(parameter)
        for module in net.modules()
        for parameter in module._parameters.values()
        if parameter is not None
    )
    shared = {key for key, n in holders.items() if n > 1}
    if not shared:
        return frozenset()
    named = net.named_modules(remove_duplicate=False)
    return frozenset(
        name for name, module in named if any(id(p) in shared for p in module.parameters())
    )


def check_made(net: nn.Module) -> None:
    """Refuse a model whose weights are made at its first call.

    Raises:
        InputError: If a parameter or buffer has no shape yet.
    """
    for name, tensor in list_tensors(net):
        if is_lazy(tensor):
            raise InputError(
                f"{name!r} has no shape yet, because its module is a lazy one; call the model once "
                "on the example inputs, which gives it its weights"
            )


def tensors_of(net: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the parameters and buffers of a model, each once, by its first name."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in list_tensors(net):
        found.setdefault(id(tensor), (name, tensor))
    return list(found.values())


def list_tensors(net: nn.Module) -> list[tuple[str, Tensor]]:
    """Return all parameters, then all buffers, each by all its names."""
    return [*_list_tensors(net, "_parameters", ""), *_list_tensors(net, "_buffers", "")]


def _list_tensors(module: nn.Module, kind: str, prefix: str) -> list[tuple[str, Tensor]]:
    """Return all parameters or buffers by all their names, in torch's own order."""
    own: dict[str, Tensor | None] = getattr(module, kind)
    found = [(f"{prefix}{key}", tensor) for key, tensor in own.items() if tensor is not None]
    for key, child in module._modules.items():
        if child is not None:
            found += _list_tensors(child, kind, f"{prefix}{key}.")
    return found


EXCHANGES_UNDER_WAY = [0]  # how many exchanges are under way


def is_exchanged() -> bool:
    """Return whether models run in another precision than their own now."""
    return EXCHANGES_UNDER_WAY[0] > 0


def is_weight_hook(hook: object) -> bool:
    """Return whether a forward pre-hook is one of torch's that compute a weight."""
    return isinstance(hook, WeightNorm | SpectralNorm | prune.BasePruningMethod)
