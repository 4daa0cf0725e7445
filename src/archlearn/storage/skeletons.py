"""A skeleton has a model's modules and the shapes of its tensors, on the meta device."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from archlearn.errors import FileError
from archlearn.storage.descriptions import Description, ModuleEntry, TensorEntry
from archlearn.storage.layers import CONTAINERS, LayerClass, build_layer
from archlearn.storage.opaque import build_opaque, is_opaque
from archlearn.storage.parametrisations import parametrise_
from archlearn.storage.values import shorten

_PART = re.compile(r"(?!__.*__$)[A-Za-z0-9_-]+")


def build_modules(description: Description, modules: Mapping[str, LayerClass]) -> nn.Module:
    """Return every described module at its place, on the meta device.

    Raises:
        FileError: If a name or a layer is not allowed, or a place is taken.
    """
    built = {"": CONTAINERS[description.kind]()}
    for entry in description.modules:
        _attach_(built, entry.name, _build(entry, len(description.tensors), modules))
    for name, first in description.shared_modules.items():
        if not first or first not in built or name.startswith(first + "."):
            raise FileError(f"the module {shorten(name)} shares {shorten(first)}, found nowhere")
        _attach_(built, name, built[first])
    return built[""]


def add_tensors_(root: nn.Module, description: Description) -> None:
    """Put every described tensor at its place, without its numbers.

    Raises:
        FileError: If a tensor is missing, superfluous or does not fit its layer.
    """
    modules = dict(root.named_modules(remove_duplicate=False))
    entries = {entry.name: entry for entry in description.tensors}
    for entry in description.tensors:
        _add_tensor_(modules, entry.name, entry)
    for name, first in description.shared_tensors.items():
        if first not in entries or name in entries:
            raise FileError(f"the tensor {shorten(name)} shares {shorten(first)}, found nowhere")
        _add_tensor_(modules, name, entries[first])
    named = [*root.named_parameters(remove_duplicate=False)]
    wanted = {name for name, _ in [*named, *root.named_buffers(remove_duplicate=False)]}
    missing = sorted(wanted - entries.keys() - description.shared_tensors.keys())
    if missing:
        raise FileError(f"it lacks the tensor {missing[0]!r}, which its layer needs")


def _build(entry: ModuleEntry, n_tensors: int, modules: Mapping[str, LayerClass]) -> nn.Module:
    if entry.kind in CONTAINERS:
        return CONTAINERS[entry.kind]()
    layers = entry.arguments.get("num_layers", 0)
    if isinstance(layers, int) and layers > n_tensors:
        raise FileError(
            f"in the layer {shorten(entry.name)}: argument 'num_layers' is {shorten(layers)}, but "
            f"the file has {n_tensors} tensors"
        )
    try:
        if entry.kind in modules:
            return build_opaque(modules[entry.kind], entry.arguments)
        layer = build_layer(entry.kind, entry.arguments)
        parametrise_(layer, entry.parametrisations)
    except FileError as error:
        raise FileError(f"in the layer {shorten(entry.name)}: {error}") from error
    return layer


def _is_open(module: nn.Module) -> bool:
    """Return whether a module holds what it is given, and not what its constructor made."""
    return type(module) in CONTAINERS.values() or is_opaque(module)


def _attach_(built: dict[str, nn.Module], path: str, module: nn.Module) -> None:
    owner, _, name = path.rpartition(".")
    if not _PART.fullmatch(name):
        raise FileError(f"a module is named {shorten(path)}, which is not a path of names")
    if owner not in built or not _is_open(built[owner]):
        raise FileError(f"the module {shorten(path)} is inside {shorten(owner)}, which holds none")
    if hasattr(built[owner], name):
        raise FileError(f"a module is named {shorten(path)}, but that name is taken")
    built[owner].add_module(name, module)
    built[path] = module


def _add_tensor_(modules: Mapping[str, nn.Module], path: str, entry: TensorEntry) -> None:
    owner, _, name = path.rpartition(".")
    if entry.requires_grad and "float" not in entry.dtype and entry.dtype != "complex64":
        raise FileError(f"the tensor {shorten(path)} is {shorten(entry.dtype)} with a gradient")
    if owner not in modules or not _PART.fullmatch(name):
        raise FileError(f"a tensor is named {shorten(path)}, which is no place in the model")
    module = modules[owner]
    slots = {**module._parameters, **module._buffers}
    present = slots.get(name)
    if present is not None:
        _check_fit(path, entry, present)
    elif _is_open(module) and not hasattr(module, name):
        _register_(module, name, entry)
    else:
        raise FileError(f"it holds the tensor {shorten(path)}, for which the layer has no place")


def _check_fit(path: str, entry: TensorEntry, present: Tensor) -> None:
    if list(present.shape) != entry.shape:
        raise FileError(
            f"the tensor {path!r} has shape {shorten(entry.shape)}, but its layer takes "
            f"{list(present.shape)}"
        )
    if isinstance(present, nn.Parameter) != (entry.role == "parameter"):
        raise FileError(f"the tensor {path!r} is a {entry.role}, but its layer takes another kind")


def _register_(module: nn.Module, name: str, entry: TensorEntry) -> None:
    empty = torch.empty(entry.shape, device="meta")
    if entry.role == "parameter":
        module.register_parameter(name, nn.Parameter(empty, requires_grad=False))
    else:
        module.register_buffer(name, empty, persistent=entry.role == "buffer")
