"""A skeleton has a model's modules and the shapes of its tensors, on the meta device."""

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from archlearn.errors import FileError
from archlearn.serialization.composite_layers import build_opaque, is_opaque
from archlearn.serialization.layer_registry import CONTAINERS, LayerClass, build_layer
from archlearn.serialization.limits import MAX_MODULE_DEPTH, MAX_MODULE_NAMES, MAX_RECURRENT_LAYERS
from archlearn.serialization.parametrizations import parametrise_
from archlearn.serialization.schema import Description, ModuleEntry, TensorEntry
from archlearn.serialization.values import shorten

_PART = re.compile(r"(?!__.*__$)[A-Za-z0-9_-]+")


def build_modules(description: Description, modules: Mapping[str, LayerClass]) -> nn.Module:
    """Return every described module at its place, on the meta device.

    Raises:
        FileError: If a name or a layer is not allowed, or a place is taken.
    """
    _check_recurrent(description, modules)
    built = {"": CONTAINERS[description.kind]()}
    n_described = len(description.tensors) + len(description.shared_tensors)
    n_needed = 0
    for entry in description.modules:
        layer = _build(entry, modules)
        n_needed += sum(1 for _ in layer.parameters())
        if n_needed > n_described:  # before thousands more are built in vain
            raise FileError(
                f"its layers up to {shorten(entry.name)} need {n_needed} tensors, but it "
                f"describes {n_described}"
            )
        _attach_(built, entry.name, layer)
    for name, first in description.shared_modules.items():
        if not first or first not in built or name.startswith(first + "."):
            raise FileError(f"the module {shorten(name)} shares {shorten(first)}, found nowhere")
        _attach_(built, name, built[first])
    check_nesting(built[""])
    return built[""]


def check_nesting(root: nn.Module) -> None:
    """Count the names of all modules, shared ones under each, in time linear in the modules.

    Raises:
        FileError: If there are too many, or modules are nested too deep or inside themselves.
    """
    n_names, depth = _measure(root, {}, [])
    MAX_MODULE_NAMES.check(n_names)
    MAX_MODULE_DEPTH.check(depth)


def _measure(
    module: nn.Module, measured: dict[int, tuple[int, int]], above: list[int]
) -> tuple[int, int]:
    """Return the number of names in a module, its own included, and the depth of its tree."""
    if id(module) in above:
        raise FileError("a module is inside itself")
    MAX_MODULE_DEPTH.check(len(above))
    if id(module) not in measured:
        inner = [child for child in module._modules.values() if child is not None]
        parts = [_measure(child, measured, [*above, id(module)]) for child in inner]
        depth = max((depth for _, depth in parts), default=0)
        measured[id(module)] = 1 + sum(names for names, _ in parts), 1 + depth
    return measured[id(module)]


def add_tensors_(root: nn.Module, description: Description) -> None:
    """Put every described tensor at its place, without its numbers.

    Raises:
        FileError: If a tensor is missing, superfluous or does not fit its layer.
    """
    entries = {entry.name: entry for entry in description.tensors}
    for entry in description.tensors:
        _add_tensor_(root, entry.name, entry)
    for name, first in description.shared_tensors.items():
        if first not in entries or name in entries:
            raise FileError(f"the tensor {shorten(name)} shares {shorten(first)}, found nowhere")
        _add_tensor_(root, name, entries[first])
    _refuse_missing(root, [*entries, *description.shared_tensors])


def find_module(root: nn.Module, path: str) -> nn.Module | None:
    """Return the submodule of a path such as "body.0", or None; no property is evaluated."""
    found: nn.Module | None = root
    for name in path.split(".") if path else ():
        if found is None:
            return None
        found = found._modules.get(name)
    return found


def _refuse_missing(root: nn.Module, described: Iterable[str]) -> None:
    """Raise unless every tensor of every module is described under one of its names."""
    held: set[tuple[nn.Module | None, str]] = set()
    for path in described:
        owner, _, name = path.rpartition(".")
        held.add((find_module(root, owner), name))
    for path, module in root.named_modules():
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None and (module, name) not in held:
                missing = f"{path}.{name}" if path else name
                raise FileError(f"it lacks the tensor {missing!r}, which its layer needs")


def _check_recurrent(description: Description, modules: Mapping[str, LayerClass]) -> None:
    """Refuse more recurrent layers than there are tensors, for a constructor makes them all."""
    n_tensors = len(description.tensors) + len(description.shared_tensors)
    n_layers = 0
    for entry in description.modules:
        layers = entry.arguments.get("num_layers", 0)
        if isinstance(layers, int) and entry.kind not in modules:
            n_layers += max(layers, 0)
            if n_layers > n_tensors:
                raise FileError(
                    f"in the layer {shorten(entry.name)}: argument 'num_layers' is "
                    f"{shorten(layers)}, but the file has {n_tensors} tensors"
                )
            MAX_RECURRENT_LAYERS.check(layers)


def _build(entry: ModuleEntry, modules: Mapping[str, LayerClass]) -> nn.Module:
    if entry.kind in CONTAINERS:
        return CONTAINERS[entry.kind]()
    try:
        if entry.kind in modules:
            return build_opaque(modules[entry.kind], entry.arguments)
        layer = build_layer(entry.kind, entry.arguments)
        parametrise_(layer, entry.parametrisations)
    except FileError as error:
        raise FileError(f"in the layer {shorten(entry.name)}: {error}") from error
    return layer


def is_open(module: nn.Module) -> bool:
    """Return whether a module holds what it is given, and not what its constructor made."""
    return type(module) in CONTAINERS.values() or is_opaque(module)


def _attach_(built: dict[str, nn.Module], path: str, module: nn.Module) -> None:
    owner, _, name = path.rpartition(".")
    if not _PART.fullmatch(name):
        raise FileError(f"a module is named {shorten(path)}, which is not a path of names")
    if owner not in built or not is_open(built[owner]):
        raise FileError(f"the module {shorten(path)} is inside {shorten(owner)}, which holds none")
    if hasattr(built[owner], name):
        raise FileError(f"a module is named {shorten(path)}, but that name is taken")
    built[owner].add_module(name, module)
    built[path] = module


def _add_tensor_(root: nn.Module, path: str, entry: TensorEntry) -> None:
    owner, _, name = path.rpartition(".")
    if entry.requires_grad and "float" not in entry.dtype and entry.dtype != "complex64":
        raise FileError(f"the tensor {shorten(path)} is {shorten(entry.dtype)} with a gradient")
    module = find_module(root, owner)
    if module is None or not _PART.fullmatch(name):
        raise FileError(f"a tensor is named {shorten(path)}, which is no place in the model")
    slots = {**module._parameters, **module._buffers}
    present = slots.get(name)
    if present is not None:
        _check_fit(path, entry, present)
    elif is_open(module) and not hasattr(module, name):
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
