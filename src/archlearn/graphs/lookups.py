"""Modules and tensors are found by their names, often; torch's own search is slow."""

from collections import Counter

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from archlearn.errors import InputError
from archlearn.graphs.computed_weights import is_weight_hook
from archlearn.precision import list_tensors


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
