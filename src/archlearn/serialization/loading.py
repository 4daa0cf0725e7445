"""`load`: build a model from its file, from allowed layers and calls alone."""

import dataclasses
import re
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import Any, cast
from warnings import catch_warnings

import safetensors
import torch
from torch import Tensor, fx, nn

from archlearn.analysis.original_channels import KEPT, read_kept
from archlearn.errors import FileError, check_kind
from archlearn.module_utils import find_module, find_part
from archlearn.op_table import ATTRIBUTES
from archlearn.serialization.file_format import (
    check_tensors,
    migrate,
    open_safetensors,
    read_tensor,
    restore_certificate_,
)
from archlearn.serialization.layer_registry import (
    CONTAINERS,
    build_layer,
    build_opaque,
    find_rotary_classes,
    is_opaque,
    merge_classes,
    parametrise_,
)
from archlearn.serialization.limits import (
    MAX_KEYWORDS,
    MAX_MODULE_DEPTH,
    MAX_MODULE_NAMES,
    MAX_RECURRENT_LAYERS,
)
from archlearn.serialization.schema import (
    Description,
    ModuleEntry,
    NodeEntry,
    TensorEntry,
    parse_json,
)
from archlearn.serialization.values import (
    MODEL_OUTPUTS,
    SAVED_METHODS,
    decode,
    find_operation,
    is_identifier,
    shorten,
)
from archlearn.tracing.generated_forward import generate_class

_PART = re.compile(r"(?!__.*__$)[A-Za-z0-9_-]+")


def build_modules(description: Description, modules: Mapping[str, type[Any]]) -> nn.Module:
    """Return every described module at its place, on the meta device."""
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
    for owner in {name.rpartition(".")[0] for name in description.shared_modules}:
        _sort_(built[owner])
    check_nesting(built[""])
    return built[""]


def _sort_(owner: nn.Module) -> None:
    """Put the parts of a list in order, of which those with a second name came last."""
    if isinstance(owner, nn.Sequential | nn.ModuleList) and all(map(str.isdigit, owner._modules)):
        owner._modules = dict(sorted(owner._modules.items(), key=lambda part: int(part[0])))


def check_order(
    root: nn.Module, shared_modules: Mapping[str, str], graphs: Sequence[fx.Graph]
) -> None:
    """Raise if a part is called as it is that has a second name where nothing tells its order."""
    nodes = [node for graph in graphs for node in graph.find_nodes(op="call_module")]
    called = {str(node.target) for node in nodes}
    for path, first in shared_modules.items():
        owner, _, name = path.rpartition(".")
        is_ordered = isinstance(find_part(root, owner), nn.Sequential | nn.ModuleDict)
        above = accumulate(owner.split("."), "{}.{}".format)
        if is_ordered and not name.isdigit() and not called.isdisjoint(above):
            raise FileError(
                f"the module {shorten(path)} is {shorten(first)} once more, inside a part that is "
                "called as it is, and a file does not tell its order; use a module of its own there"
            )


def check_containers(root: nn.Module, graphs: Sequence[fx.Graph]) -> None:
    """Raise if a container of torch's holds a tensor, which it never reads, nor does a call."""
    read: set[tuple[nn.Module | None, str]] = set()
    for node in [node for graph in graphs for node in graph.find_nodes(op="get_attr")]:
        owner, _, name = str(node.target).rpartition(".")
        read.add((find_part(root, owner), name))
    hidden = {part for m in root.modules() if is_opaque(m) for part in m.modules()}
    for path, module in root.named_modules():
        is_plain = type(module) not in CONTAINERS.values() or type(module) is nn.Module
        if is_plain or module in hidden:  # what reads those of a leaf is in no graph
            continue
        for name in [*module._parameters, *module._buffers]:
            if (module, name) not in read:
                label, kind = (f"{path}.{name}" if path else name), type(module).__name__
                raise FileError(
                    f"it holds the tensor {shorten(label)}, which neither the {kind} around it nor "
                    "a call reads"
                )


def check_nesting(root: nn.Module) -> None:
    """Count the names of all modules, shared ones under each, in time linear in the modules."""
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
    """Put every described tensor at its place, without its numbers."""
    entries = {entry.name: entry for entry in description.tensors}
    for entry in description.tensors:
        _add_tensor_(root, entry.name, entry)
    for name, first in description.shared_tensors.items():
        if first not in entries or name in entries:
            raise FileError(f"the tensor {shorten(name)} shares {shorten(first)}, found nowhere")
        _add_tensor_(root, name, entries[first])
    _refuse_missing(root, [*entries, *description.shared_tensors])


def _refuse_missing(root: nn.Module, described: Iterable[str]) -> None:
    """Raise unless every tensor of every module is described under one of its names."""
    held: set[tuple[nn.Module | None, str]] = set()
    for path in described:
        owner, _, name = path.rpartition(".")
        held.add((find_part(root, owner), name))
    for path, module in root.named_modules():
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None and (module, name) not in held:
                missing = f"{path}.{name}" if path else name
                raise FileError(f"it lacks the tensor {missing!r}, which its layer needs")


def _check_recurrent(description: Description, modules: Mapping[str, type[Any]]) -> None:
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


def _build(entry: ModuleEntry, modules: Mapping[str, type[Any]]) -> nn.Module:
    if entry.kind in CONTAINERS:
        odd = [*entry.arguments, *entry.parametrisations]
        if odd:
            raise FileError(
                f"in the layer {shorten(entry.name)}: a {entry.kind} takes no {shorten(odd[0])}"
            )
        return CONTAINERS[entry.kind]()
    try:
        if issubclass(modules.get(entry.kind, object), nn.Module):
            return build_opaque(modules[entry.kind], entry.arguments, modules)
        layer = build_layer(entry.kind, entry.arguments)
        parametrise_(layer, entry.parametrisations)
    except FileError as error:
        raise FileError(f"in the layer {shorten(entry.name)}: {error}") from error
    return layer


def takes_parts(module: nn.Module) -> bool:
    """Return whether a module holds what it is given, and not what its constructor made."""
    return type(module) in CONTAINERS.values() or is_opaque(module)


def _attach_(built: dict[str, nn.Module], path: str, module: nn.Module) -> None:
    owner, _, name = path.rpartition(".")
    if not _PART.fullmatch(name):
        raise FileError(f"a module is named {shorten(path)}, which is not a path of names")
    if owner not in built or not takes_parts(built[owner]):
        raise FileError(f"the module {shorten(path)} is inside {shorten(owner)}, which holds none")
    if hasattr(built[owner], name):
        raise FileError(f"a module is named {shorten(path)}, but that name is taken")
    built[owner].add_module(name, module)
    built[path] = module


def _add_tensor_(root: nn.Module, path: str, entry: TensorEntry) -> None:
    owner, _, name = path.rpartition(".")
    if entry.requires_grad and "float" not in entry.dtype and entry.dtype != "complex64":
        raise FileError(f"the tensor {shorten(path)} is {shorten(entry.dtype)} with a gradient")
    module = find_part(root, owner)
    if module is None or not _PART.fullmatch(name):
        raise FileError(f"a tensor is named {shorten(path)}, which is no place in the model")
    slots = {**module._parameters, **module._buffers}
    present = slots.get(name)
    if present is not None:
        _check_fit(path, entry, present)
    elif takes_parts(module) and not hasattr(module, name):
        empty = torch.empty(entry.shape, device="meta")
        if entry.role == "parameter":
            module.register_parameter(name, nn.Parameter(empty, requires_grad=False))
        else:
            module.register_buffer(name, empty, persistent=entry.role == "buffer")
    else:
        raise FileError(
            f"it holds the tensor {shorten(path)}, for which the layer has no place; a tensor of "
            "one's own belongs into a module of one's own, such as the one that calls the layer"
        )


def _check_fit(path: str, entry: TensorEntry, present: Tensor) -> None:
    if list(present.shape) != entry.shape:
        raise FileError(
            f"the tensor {path!r} has shape {shorten(entry.shape)}, but its layer takes "
            f"{list(present.shape)}"
        )
    if isinstance(present, nn.Parameter) != (entry.role == "parameter"):
        raise FileError(f"the tensor {path!r} is a {entry.role}, but its layer takes another kind")


_RESERVED = {"self", "torch", "device", "inf", "nan", "NoneType", "fx_pytree", "pytree"}


def rebuild_graph(root: nn.Module, entries: Sequence[NodeEntry]) -> fx.Graph:
    """Return the graph that a file describes, for the modules and tensors of `root`."""
    graph = fx.Graph()
    nodes: dict[str, fx.Node] = {}
    for entry in entries:
        _check_place(entry, nodes, last=entry is entries[-1])
        nodes[entry.name] = _add_node(graph, entry, nodes, root)
    if not entries or entries[-1].operation != "output":
        raise FileError("its graph has no output")
    return graph


def _check_place(entry: NodeEntry, nodes: dict[str, fx.Node], last: bool) -> None:
    if not is_identifier(entry.name) or entry.name in _RESERVED:
        raise FileError(f"a call is named {shorten(entry.name)}, which is not an identifier")
    if entry.name in nodes:
        raise FileError(f"two calls are named {entry.name!r}")
    if entry.operation == "output" and not last:
        raise FileError("its graph goes on after the output")
    # Inputs come first, so the last call tells whether there was any other.
    if (
        entry.operation == "placeholder"
        and nodes
        and next(reversed(nodes.values())).op != "placeholder"
    ):
        raise FileError(f"the input {entry.name!r} comes after the first call")
    bad = [key for key in entry.kwargs if not is_identifier(key)]
    if bad:
        raise FileError(f"a keyword is named {shorten(bad[0])}, which is not an identifier")


def _add_node(
    graph: fx.Graph, entry: NodeEntry, nodes: dict[str, fx.Node], root: nn.Module
) -> fx.Node:
    def find_node(name: str) -> fx.Node:
        if name not in nodes:
            raise FileError(f"the call {entry.name!r} uses {shorten(name)} before it is computed")
        return nodes[name]

    args = tuple(decode(value, find_node) for value in entry.args)
    kwargs = {key: decode(value, find_node) for key, value in entry.kwargs.items()}
    target = _check_target(entry, args, root)
    return graph.create_node(entry.operation, target, args, kwargs, name=entry.name)


def _check_target(entry: NodeEntry, args: tuple[Any, ...], root: nn.Module) -> Any:
    target = entry.target
    if entry.operation == "call_function":
        if isinstance(target, dict) and "model_output" in target and not args:
            return _find_model_output(cast(dict[str, object], target), entry.kwargs)
        return _check_function(target, args)
    if not isinstance(target, str):
        raise FileError(f"the call {entry.name!r} has the target {shorten(target)}")
    allowed = {
        "placeholder": lambda: (
            is_identifier(target.lstrip("*"))
            and not target.startswith("***")
            and (target == "device" or target.lstrip("*") not in _RESERVED)  # see compile_graph
            and not entry.kwargs
            and len(args) <= 1
        ),
        "output": lambda: target == "output" and len(args) == 1,
        "call_module": lambda: target != "" and _can_be_called(find_part(root, target)),
        "get_attr": lambda: _has_tensor(root, target),
        "call_method": lambda: target in SAVED_METHODS and _starts(args),
    }
    if not allowed[entry.operation]():
        raise FileError(
            f"the {entry.operation} {entry.name!r} has the target {shorten(target)}, which is "
            "not one that a file may name"
        )
    return target


def _can_be_called(part: nn.Module | None) -> bool:
    """Return whether a call may name a part: lists and dicts of layers have no `forward`."""
    return part is not None and type(part).forward is not nn.Module.forward


def _has_tensor(root: nn.Module, path: str) -> bool:
    owner, _, name = path.rpartition(".")
    module = find_part(root, owner)
    return module is not None and (
        module._parameters.get(name) is not None or module._buffers.get(name) is not None
    )


def _starts(args: tuple[Any, ...]) -> bool:
    return bool(args) and isinstance(args[0], fx.Node)


def _check_function(target: object, args: tuple[Any, ...]) -> Callable[..., Any]:
    if isinstance(target, dict):
        return _named_tuple(cast(dict[str, object], target))
    if target == "getattr":
        fits = len(args) == 2 and _starts(args) and isinstance(args[1], str)
        fits = fits and args[1] in ATTRIBUTES and ATTRIBUTES[args[1]].is_saved
        if not fits:
            raise FileError(f"it reads the attribute {shorten(args[1:])}, which is not allowed")
    return find_operation(target)


def _find_model_output(
    target: dict[str, object], parts: Mapping[str, object]
) -> Callable[..., Any]:
    """Return the class of transformers that an output had; where there is none such, a dict's."""
    try:
        outputs: Any = import_module(MODEL_OUTPUTS)
    except ImportError:
        return OrderedDict
    kind = vars(outputs).get(str(target["model_output"]))
    if not (isinstance(kind, type) and issubclass(kind, dict) and dataclasses.is_dataclass(kind)):
        return OrderedDict
    field_names = {field.name for field in dataclasses.fields(kind)}
    return kind if parts.keys() <= field_names else OrderedDict


def _named_tuple(target: dict[str, object]) -> Callable[..., Any]:
    if isinstance(fields := target.get("fields"), list):
        MAX_KEYWORDS.check(len(cast(list[object], fields)))
    match target:
        case {"namedtuple": str(name), "fields": list(fields)} if (
            len(target) == 2
            and is_identifier(name)
            and all(is_identifier(field) and not field.startswith("_") for field in fields)
            and len(set(fields)) == len(fields)
        ):
            return namedtuple(name, cast(list[str], fields))  # pyright: ignore[reportUntypedNamedTuple]
        case _:
            raise FileError(f"it returns the tuple {shorten(target)}, which is not one")


def rebuild(description: Description, modules: Mapping[str, type[Any]]) -> nn.Module:
    """Return the described model on the meta device, where its numbers take no memory."""
    root = build_modules(description, modules)
    add_tensors_(root, description)
    described = [description.evaluation, description.training_graph]
    graphs = [rebuild_graph(root, graph) for graph in described if graph is not None]
    check_order(root, description.shared_modules, graphs)
    check_containers(root, graphs)
    if _is_chain(description):
        return root
    name = description.class_name
    if not is_identifier(name):
        raise FileError(f"its class is named {shorten(name)}, which is not an identifier")
    try:
        with catch_warnings(action="error", category=SyntaxWarning):
            root.__class__ = generate_class(nn.Module, name, graphs, __module__=__name__)
    except Exception as error:
        raise FileError(f"its calls make no function ({shorten(error)})") from error
    return root


def fill_(model: nn.Module, description: Description, tensors: Mapping[str, Tensor]) -> None:
    """Give a rebuilt model its numbers, and every module its mode."""
    values: dict[str, Tensor] = {}
    for entry in description.tensors:
        tensor = tensors[entry.name].requires_grad_(entry.requires_grad)
        is_parameter = entry.role == "parameter"
        values[entry.name] = nn.Parameter(tensor, entry.requires_grad) if is_parameter else tensor
    for name, first in [*((name, name) for name in values), *description.shared_tensors.items()]:
        path, _, attribute = name.rpartition(".")
        owner = find_module(model, path)
        if name == first:
            owner._parameters.pop(attribute, None)  # so that parameters keep their order
        setattr(owner, attribute, values[first])
    model.training = description.training
    for entry in description.modules:
        module = find_module(model, entry.name)
        if takes_parts(module):  # what is inside has an entry of its own
            module.training = entry.training
        else:
            module.train(entry.training)


def _is_chain(description: Description) -> bool:
    """Return whether the model is a `Sequential` of layers, which needs no other forward.

    Where a module has two names, its calls alone tell the order.
    """
    plain = CONTAINERS.keys() - {"torch.nn.Sequential"}
    kinds = [description.kind, *(entry.kind for entry in description.modules)]
    return plain.isdisjoint(kinds) and not description.shared_modules


@torch.inference_mode(False)
def load(path: str | PathLike[str], *, modules: Mapping[str, type[Any]] | None = None) -> nn.Module:
    """Return the model that `save` wrote, on the CPU, as a plain `nn.Module`.

    Parameters have the names, the dtype and the `requires_grad` that they had; tied ones are
    tied again. Nothing in the file is executed: it can only name operations and layers that
    this package lists, and those given here.

    Args:
        path: The file.
        modules: Your own leaf classes, under the names that were given to `save`.

    Raises:
        FileError: If the file is truncated, foreign, of a later version, not allowed, or beyond
            one of the limits in `archlearn.serialization.limits`.
    """
    check_kind("path", path, (str, PathLike), "give the name of a file")
    path = Path(path)
    if not path.is_file():
        problem = "it is a folder" if path.is_dir() else "there is no such file"
        raise FileError(f"cannot load {str(path)!r}: {problem}; give a path that save wrote")
    try:
        return _load(path, merge_classes(modules))
    except FileError as error:
        raise FileError(f"cannot load {str(path)!r}: {error}") from error
    except RecursionError:
        raise FileError(f"cannot load {str(path)!r}: its description is nested too deep") from None
    except OSError as error:
        raise FileError(f"cannot load {str(path)!r}: {error.strerror}") from error
    except safetensors.SafetensorError as error:
        raise FileError(
            f"cannot load {str(path)!r}: it is truncated, or not a safetensors file ({error}); "
            "copy it again, or save the model again with archlearn.save"
        ) from error


def _load(path: Path, modules: Mapping[str, type[Any]]) -> nn.Module:
    with open_safetensors(path) as handle:
        metadata = migrate(handle.metadata() or {})
        description = Description.from_json(metadata.get("description", ""))
        check_tensors(handle, description.tensors)
        model = rebuild(description, {**find_rotary_classes(description.modules), **modules})
        names = [entry.name for entry in description.tensors]
        fill_(model, description, {name: read_tensor(handle, name) for name in names})
    restore_certificate_(model, metadata.get("certificate"))
    if "kept_channels" in metadata:
        vars(model)[KEPT] = read_kept(parse_json(metadata["kept_channels"]), model)
    return model
