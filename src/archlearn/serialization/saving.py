"""`save`: encode a model as JSON and tensors, without code."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from inspect import Parameter, signature
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from archlearn.analysis.original_channels import write_kept
from archlearn.errors import FileError, check_kind
from archlearn.gating.gate_container import CONTAINER, GateContainer
from archlearn.module_utils import find_tensor
from archlearn.nn.tristate_activation import TriState
from archlearn.op_table import ATTRIBUTES
from archlearn.serialization.file_format import DTYPES, FORMAT, VERSION, write, write_certificate
from archlearn.serialization.layer_registry import (
    CONTAINERS,
    LayerClass,
    merge_classes,
    name_classes,
    name_module,
    plain_class,
    read_arguments,
    read_attributes,
    read_parametrisations,
    rotary_classes_in,
)
from archlearn.serialization.loading import check_nesting, rebuild
from archlearn.serialization.schema import Description, ModuleEntry, NodeEntry, TensorEntry
from archlearn.serialization.values import (
    MODEL_OUTPUTS,
    NOT_NAMED,
    SAVED_METHODS,
    encode,
    name_operation,
)
from archlearn.tracing.block_hooks import find_hooked, list_hooks
from archlearn.tracing.generated_forward import (
    check_forwards,
    forward_graphs,
    generated_graphs,
    unwrap,
)
from archlearn.tracing.output_types import is_construction
from archlearn.tracing.symbolic_trace import ExampleInputs, Traces, trace
from archlearn.tracing.transformer_blocks import BLOCKS

NamedTensors = dict[str, Tensor]


def describe(
    model: nn.Module, traces: Traces, modules: Mapping[str, type[Any]]
) -> tuple[Description, NamedTensors]:
    """Return a model's description and its tensors by name."""
    check_nesting(model)
    hooked = find_hooked(model, forward_graphs(model))
    if hooked is not None:
        _refuse_hooks(f"the module {hooked!r}" if hooked else "the model")
    nodes = [node for graph in traces.graphs for node in graph.nodes if node.op == "call_module"]
    called = {id(model.get_submodule(str(node.target))) for node in nodes}
    entries, shared_modules = _describe_modules(model, called, modules)
    tensors, shared_tensors = _collect_tensors(model, traces.graphs)
    graphs = [_describe_graph(graph) for graph in traces.graphs]
    description = Description(
        class_name=type(model).__name__,
        kind="torch.nn.Sequential" if type(model) is nn.Sequential else "container",
        training=model.training,
        modules=entries,
        shared_modules=shared_modules,
        tensors=[_describe_tensor(model, name, tensor) for name, tensor in tensors.items()],
        shared_tensors=shared_tensors,
        evaluation=graphs[0],
        training_graph=graphs[1] if graphs[1:] else None,
    )
    return description, tensors


def _describe_modules(
    model: nn.Module, called: set[int], modules: Mapping[str, type[Any]]
) -> tuple[list[ModuleEntry], dict[str, str]]:
    entries: list[ModuleEntry] = []
    first_names: dict[int, str] = {}
    shared: dict[str, str] = {}
    done: tuple[str, ...] = ()  # layers make their own submodules, shared modules have theirs
    opaque: tuple[str, ...] = ()  # what is in there is called, though no graph shows it
    for name, module in model.named_modules(remove_duplicate=False):
        if not name or name.startswith(done):
            continue
        if id(module) in first_names:
            shared[name] = first_names[id(module)]
            done = (*done, name + ".")
            continue
        first_names[id(module)] = name
        is_called = id(module) in called or name.startswith(opaque)
        entry = _describe_module(name, module, is_called, modules)
        entries.append(entry)
        if entry.kind in modules:
            opaque = (*opaque, name + ".")
        elif entry.kind not in CONTAINERS:
            done = (*done, name + ".")
    return entries, shared


def _describe_module(
    name: str, module: nn.Module, called: bool, modules: Mapping[str, type[Any]]
) -> ModuleEntry:
    kind = name_module(plain_class(module), modules)
    if kind is None and called:
        argument = ", ".join(f"'{label}': {label}" for label in name_classes(module))
        raise FileError(
            f"cannot describe the layer {name!r} of class {type(module).__name__}: its forward "
            f"cannot be followed and its class is not one that a file may name; pass "
            f"modules={{{argument}}} to save and to load"
        )
    if isinstance(module, (nn.MultiheadAttention, nn.RNNCellBase, *BLOCKS)) and not called:
        kind = None  # what it computes is written out: it could not hold fewer heads, or no state
    if kind is None or kind in CONTAINERS:
        return ModuleEntry(name, kind or "container", {}, {}, module.training)
    if called and list_hooks(module):
        _refuse_hooks(f"the layer {name!r}")
    if kind in modules:
        return ModuleEntry(name, kind, read_attributes(name, module, modules), {}, module.training)
    arguments = read_arguments(name, module, plain_class(module))
    return ModuleEntry(name, kind, arguments, read_parametrisations(name, module), module.training)


def _refuse_hooks(who: str) -> NoReturn:
    raise FileError(
        f"{who} has forward hooks, which are code and cannot be written into a file; remove them "
        "first (an old-style weight_norm or spectral_norm: use the one in "
        "torch.nn.utils.parametrizations)"
    )


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield each module's own parameters and buffers under every name they have."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        tensors = [*module._parameters.items(), *module._buffers.items()]
        for name, tensor in tensors:
            if tensor is not None:
                yield (f"{prefix}.{name}" if prefix else name), tensor


def _collect_tensors(
    model: nn.Module, graphs: Sequence[fx.Graph]
) -> tuple[NamedTensors, dict[str, str]]:
    first_names: dict[int, str] = {}
    tensors: NamedTensors = {}
    shared: dict[str, str] = {}
    for name, tensor in [*_named_tensors(model), *_constants(model, graphs)]:
        if name in tensors or name in shared:
            continue
        if id(tensor) in first_names:
            shared[name] = first_names[id(tensor)]
        else:
            first_names[id(tensor)] = name
            tensors[name] = tensor
    return tensors, shared


def _constants(model: nn.Module, graphs: Sequence[fx.Graph]) -> Iterator[tuple[str, Tensor]]:
    for graph in graphs:
        for node in graph.nodes:
            if node.op == "get_attr":
                value: Any = find_tensor(model, str(node.target))
                if not isinstance(value, Tensor):
                    raise FileError(
                        f"forward reads the attribute {node.target!r}, which is a "
                        f"{type(value).__name__} and not a tensor; register it as a buffer"
                    )
                yield str(node.target), value


def _describe_tensor(model: nn.Module, name: str, tensor: Tensor) -> TensorEntry:
    owner, _, attribute = name.rpartition(".")
    module = model.get_submodule(owner)
    stored = attribute in module._buffers and attribute not in module._non_persistent_buffers_set
    role = "parameter" if isinstance(tensor, nn.Parameter) else "buffer" if stored else "constant"
    if tensor.is_meta or tensor.layout is not torch.strided or tensor.is_quantized:
        raise FileError(
            f"the tensor {name!r} is {tensor.dtype} on {tensor.device} with layout "
            f"{tensor.layout}; a file holds dense, initialised, unquantised tensors only"
        )
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPES.values():
        raise FileError(f"the tensor {name!r} is {dtype}, which a file cannot hold; convert it")
    return TensorEntry(name, role, list(tensor.shape), dtype, tensor.requires_grad)


def _describe_graph(graph: fx.Graph) -> list[NodeEntry]:
    """Return the calls of a graph; containers of the user's own classes become plain ones."""
    plain: dict[fx.Node, Any] = {}
    entries: list[NodeEntry] = []
    for node in graph.nodes:
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: plain.get(n, n))
        if node.op == "call_function" and is_construction(node.target):
            plain_target = _make_plain(node.target, args, kwargs)
            if plain_target is not None:
                plain[node] = plain_target
                continue
        entries.append(_describe_node(node, args, kwargs))
    return entries


def _make_plain(kind: Any, args: Any, kwargs: Any) -> Any:
    """Return the dict, list or tuple that a file holds for a container of a class of one's own."""
    if kind is OrderedDict or hasattr(kind, "_fields") or kind.__module__ == MODEL_OUTPUTS:
        return None
    if issubclass(kind, dict):
        items = dict(args[-1]) if args else dict(kwargs)
        is_record = is_dataclass(kind)  # as the outputs of diffusers, which have no keys for None
        return {key: value for key, value in items.items() if not (is_record and value is None)}
    if issubclass(kind, list | tuple):
        return list(args[0]) if issubclass(kind, list) else tuple(args[0])
    return None


def _describe_node(node: fx.Node, args: Any, kwargs: Any) -> NodeEntry:
    target, args = _describe_target(node, args, kwargs)
    if isinstance(target, dict):
        is_output = "model_output" in target  # which has None for what is left out
        kwargs = {k: v for k, v in kwargs.items() if is_output and v is not None}
    encoded = {key: encode(value) for key, value in kwargs.items()}
    operation: Any = node.op
    return NodeEntry(node.name, operation, target, [encode(value) for value in args], encoded)


def _describe_target(node: fx.Node, args: Any, kwargs: Any) -> tuple[object, Any]:
    if node.op == "call_method" and node.target not in SAVED_METHODS:
        raise FileError(f"the model calls Tensor.{node.target}, {NOT_NAMED}")
    if node.op != "call_function":
        return str(node.target), args
    kind: Any = node.target
    if kind is getattr and not (args[1] in ATTRIBUTES and ATTRIBUTES[args[1]].is_saved):
        raise FileError(f"the model reads the attribute {args[1]!r} of a value, {NOT_NAMED}")
    if not is_construction(kind) or kind is OrderedDict:
        return name_operation(kind), args
    if kind.__module__ == MODEL_OUTPUTS:
        return {"model_output": kind.__name__}, args
    fields = getattr(kind, "_fields", None)
    if fields is None:  # a dataclass or a namespace: read by names, as a named tuple is
        fields, args = list(kwargs), list(kwargs.values())
    return {"namedtuple": kind.__name__, "fields": list(fields)}, args


def save(
    model: nn.Module,
    path: str | PathLike[str],
    example_inputs: object = None,
    *,
    modules: Mapping[str, type[Any]] | None = None,
) -> None:
    """Write a model into one safetensors file that `load` needs none of your code to read.

    The model is saved by what its `forward` calls, so its own class need not be there when it
    is loaded. The file appears at `path` whole or not at all, and the same model gives the
    same bytes.

    Args:
        model: Any model whose `forward` can be traced. It is unchanged.
        path: Where to write. A file that is there is replaced.
        example_inputs: A tensor, a tuple of arguments or a dict of keyword arguments. Needed
            only where `forward` is to take arguments that have a default: those that are not
            given keep it for good.
        modules: Leaf classes of your own, by the names under which `load` will be given them.
            They are rebuilt from their attributes, without a call of their constructor; so are
            objects among their attributes whose classes are given here, such as a `LlamaConfig`.

    Raises:
        FileError: If a layer or a call cannot be written; nothing is written then.
        TracingError: If the model's `forward` cannot be followed.
    """
    model = unwrap(model)
    check_kind("path", path, (str, PathLike), "give the name of a file")
    path, classes = Path(path), merge_classes(modules) | rotary_classes_in(model)
    _check_model(model, f" to {str(path)!r}")
    leaves = tuple(kind for kind in (modules or {}).values() if issubclass(kind, nn.Module))
    traces = _find_traces(model, example_inputs, leaves)
    if not path.parent.is_dir():
        raise FileError(
            f"cannot save to {path}: {str(path.parent)!r} is not a folder; make it first"
        )
    if path.is_dir():
        raise FileError(f"cannot save to {path}: it is a folder; name a file in it")
    try:
        description, tensors = describe(model, traces, classes)
        text = description.to_json()
        rebuild(Description.from_json(text), classes)  # what load would refuse is not written
        metadata = {"format": FORMAT, "version": str(VERSION), "description": text}
        certificate = write_certificate(model)
        if certificate is not None:
            metadata["certificate"] = certificate
        kept = write_kept(model)
        if kept is not None:
            metadata["kept_channels"] = kept
        write(path, tensors, metadata)
    except FileError as error:
        raise FileError(f"cannot save {type(model).__name__} to {str(path)!r}: {error}") from error


def _check_model(model: nn.Module, to: str = "") -> None:
    """Refuse gates, and a `forward` that a file would lose."""
    for name, module in model.named_modules():
        if isinstance(module, TriState):
            raise FileError(
                f"cannot save {type(model).__name__}{to}: {name!r} is a TriState, which still has "
                "gates; save archlearn.compact(model)"
            )
        if isinstance(module, GateContainer):
            part = name.removesuffix(CONTAINER).removesuffix(".")
            advice = "it still has gates; save archlearn.compact(model)"
            if part:
                advice = f"{part!r} still has gates; put archlearn.compact's result there"
            raise FileError(
                f"cannot save {type(model).__name__}{to}: {advice}, or keep model.state_dict() as "
                "a checkpoint"
            )
    check_forwards(model, "save")


def _find_traces(
    model: nn.Module, example_inputs: object, leaves: tuple[LayerClass, ...]
) -> Traces:
    """Return the graphs of a compact or loaded model, or follow the model's own forward."""
    graphs = generated_graphs(model)
    if graphs is None:
        if example_inputs is None:
            example_inputs = getattr(model, "_archlearn_example", None) or _needed_inputs(model)
        inputs = None if example_inputs is None else ExampleInputs.of(example_inputs)
        return trace(model, inputs, leaves)
    return Traces(tuple(graphs), {})


def _needed_inputs(model: nn.Module) -> ExampleInputs | None:
    """Return a stand-in for each argument of `forward` that has no default."""
    parameters = signature(model.forward).parameters.values()
    needed = [p for p in parameters if p.default is Parameter.empty]
    if not needed or any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in needed):
        return None
    by_name = [p.name for p in needed if p.kind is p.KEYWORD_ONLY]
    n_by_place = len(needed) - len(by_name)
    stand_in = torch.empty(0, device="cpu")
    return ExampleInputs((stand_in,) * n_by_place, dict.fromkeys(by_name, stand_in), are_real=False)
