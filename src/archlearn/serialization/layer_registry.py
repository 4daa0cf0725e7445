"""Layers that a file may hold, their arguments, and their parametrisations."""

import inspect
import re
import warnings
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, cast

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from archlearn.errors import FileError, InputError, check_kind, first_line
from archlearn.nn.norms import NarrowedLocalResponseNorm
from archlearn.op_table import saved_calls
from archlearn.serialization.limits import MAX_NESTING
from archlearn.serialization.schema import ModuleEntry
from archlearn.serialization.values import decode, encode, is_identifier, shorten
from archlearn.tracing.transformer_blocks import BLOCKS

LayerClass = type[nn.Module]
MAX_ITEMS = 16
MAX_NUMBER = 2**31 - 1
CONTAINERS: dict[str, LayerClass] = {
    "container": nn.Module,
    "torch.nn.Sequential": nn.Sequential,
    "torch.nn.ModuleList": nn.ModuleList,
    "torch.nn.ModuleDict": nn.ModuleDict,
}
_RECURRENT = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout")


# Where the constructor's signature does not say which attributes to keep.
_ARGUMENTS: dict[LayerClass, tuple[str, ...]] = {
    nn.RNN: (*_RECURRENT, "bidirectional", "nonlinearity"),
    nn.LSTM: (*_RECURRENT, "bidirectional", "proj_size"),
    nn.GRU: (*_RECURRENT, "bidirectional"),
    nn.Hardtanh: ("min_val", "max_val", "inplace"),
    nn.Identity: (),
}


@cache
def all_layers() -> dict[str, LayerClass]:
    """Return every class of layer that a file may name, by the name it has there."""
    listed = {f"torch.{call}": layer for call, layer in saved_calls("nn").items()}
    our_calls = saved_calls("archlearn")
    return listed | {call: layer for call, layer in our_calls.items() if isinstance(layer, type)}


def name_module(kind: LayerClass, modules: Mapping[str, type[Any]]) -> str | None:
    """Return the name of a class, the user's own names first, or None if it has none."""
    named_layers = [*modules.items(), *CONTAINERS.items(), *all_layers().items()]
    return next((name for name, layer in named_layers if kind is layer), None)


def read_arguments(name: str, module: nn.Module, kind: LayerClass) -> dict[str, object]:
    """Return the constructor arguments that would build this layer again, as JSON."""
    encoded: dict[str, object] = {}
    for argument in _argument_names(kind):
        try:
            encoded[argument] = encode(_read_argument(module, argument))
        except AttributeError:
            raise FileError(
                f"the layer {name!r} lacks the attribute {argument!r} that every {kind.__name__} "
                "has, so it cannot be described; build it anew"
            ) from None
    return encoded


def build_layer(kind: str, arguments: Mapping[str, object]) -> nn.Module:
    """Return the layer on the meta device: its shapes are there, its numbers are not."""
    layers = all_layers()
    if kind not in layers:
        raise FileError(
            f"it holds a layer of class {shorten(kind)}, which is not one that a file may name; "
            "if it is your own, pass modules={'name': Class} with the name used when it was saved"
        )
    arguments = _without_norm_bias(layers[kind], arguments)
    _check_names(kind, layers[kind], arguments)
    values = {name: _decode_argument(kind, name, value) for name, value in arguments.items()}
    try:
        with torch.device("meta"), warnings.catch_warnings(action="ignore"):
            return layers[kind](**values)
    except Exception as error:
        raise FileError(
            f"the layer {kind} does not take the arguments {shorten(values)}: {error}"
        ) from error


@cache
def _argument_names(kind: LayerClass) -> tuple[str, ...]:
    if kind in _ARGUMENTS:
        return _ARGUMENTS[kind]
    parameters = inspect.signature(kind).parameters.values()
    skipped = {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
    return tuple(
        parameter.name
        for parameter in parameters
        if parameter.kind not in skipped
        and parameter.name not in ("device", "dtype")
        and not parameter.name.startswith("_")
    )


def _read_argument(module: nn.Module, argument: str) -> object:
    if isinstance(module, nn.MultiheadAttention) and argument in ("bias", "add_bias_kv"):
        tensor = module.in_proj_bias if argument == "bias" else module.bias_k
        return tensor is not None
    if isinstance(module, nn.PairwiseDistance) and argument == "p":
        return module.norm
    value = getattr(module, argument)
    if argument == "bias":
        return value is not None and value is not False
    return value


def _without_norm_bias(layer: LayerClass, arguments: Mapping[str, object]) -> Mapping[str, object]:
    """Leave out the `bias` of norms where torch is older than that argument.

    There a norm has a bias wherever it is affine.
    """
    is_later = "bias" in arguments and "bias" not in _argument_names(layer)
    if is_later and "affine" in arguments and arguments["affine"] == arguments["bias"]:
        return {name: value for name, value in arguments.items() if name != "bias"}
    return arguments


def _check_names(kind: str, layer: LayerClass, arguments: Mapping[str, object]) -> None:
    unknown = sorted(set(arguments) - set(_argument_names(layer)))
    if unknown:
        raise FileError(
            f"the layer {kind} has no argument {unknown[0]!r} in torch {torch.__version__}; where "
            "the file comes from a later torch, install that"
        )


def _decode_argument(kind: str, name: str, value: object) -> object:
    decoded = decode(value)
    items = decoded if isinstance(decoded, tuple | list) else (decoded,)
    if len(items) > MAX_ITEMS:
        raise FileError(f"argument {name!r} of a {kind} has {len(items)} items, more than any has")
    for item in items:
        if isinstance(item, int) and abs(item) > MAX_NUMBER:
            raise FileError(
                f"argument {name!r} of a {kind} is {shorten(item)}, more than any layer has"
            )
    return decoded


_OWN = frozenset(vars(nn.Module())) | {"training"}
_MARK = "_archlearn_opaque"
_OBJECT = "object"


def merge_classes(modules: Mapping[str, type[Any]] | None) -> dict[str, type[Any]]:
    """Return the user's classes and those that every file may name."""
    advice = 'give a dict from names to classes, such as {"Attention": Attention}'
    check_kind("modules", {} if modules is None else modules, Mapping, advice)
    for name, kind in (modules or {}).items():
        check_kind(f"a name in modules, {name!r},", name, str, advice)
        check_kind(f"modules[{name!r}]", kind, type, advice)
        if name == "container" or name.startswith(("torch.", "archlearn.")):
            raise InputError(
                f"modules={{{name!r}: ...}} takes a name that files use; choose another"
            )
    classes: dict[str, type[Any]] = {f"torch.nn.{kind.__name__}": kind for kind in BLOCKS}
    classes["archlearn.NarrowedLocalResponseNorm"] = NarrowedLocalResponseNorm
    return {**classes, **(modules or {})}


# Decoders of transformers call these as they are, for they turn autocast off. Files may name them,
# and the config that they keep; they are looked up in the package that is installed.
_ROTARY = re.compile(
    r"transformers\.models\.(\w+)\.(modeling_\w+\.\w+RotaryEmbedding|configuration_\w+\.\w+Config)"
)
_MOST_ROTARY = 8


def rotary_classes_in(model: nn.Module) -> dict[str, type[Any]]:
    """Return the rotary embeddings of transformers in a model and their configs, by name."""
    kinds: set[type[Any]] = {type(module) for module in model.modules()}
    kinds |= {type(getattr(module, "config", None)) for module in model.modules()}
    named = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in kinds}
    return {name: kind for name, kind in sorted(named.items()) if _ROTARY.fullmatch(name)}


def find_rotary_classes(entries: Iterable[ModuleEntry]) -> dict[str, type[Any]]:
    """Return those that a file names."""
    names: set[str] = set()
    for entry in entries:
        names.add(entry.kind)
        for value in entry.arguments.values():
            match value:
                case {"object": [str(label), _]}:
                    names.add(label)
                case _:
                    pass
    named = sorted(name for name in names if _ROTARY.fullmatch(name))
    if len(named) > _MOST_ROTARY:
        raise FileError(f"it names {len(named)} classes of transformers; at most {_MOST_ROTARY}")
    return {name: _import_rotary(name) for name in named}


def _import_rotary(name: str) -> type[Any]:
    home, _, label = name.rpartition(".")
    try:
        kind = getattr(import_module(home), label)
    except (ImportError, AttributeError, RuntimeError) as error:
        raise FileError(
            f"it holds a {label}, which is looked up in {home} ({first_line(error)}); install a "
            "version of transformers that has it"
        ) from error
    if not isinstance(kind, type) or f"{kind.__module__}.{kind.__qualname__}" != name:
        raise FileError(f"it names {shorten(name)}, which is another class")
    return kind


def read_attributes(
    name: str, module: nn.Module, classes: Mapping[str, type[Any]]
) -> dict[str, object]:
    """Return the plain attributes of a leaf as JSON; its tensors and submodules come apart."""
    encoded: dict[str, object] = {}
    slots = {**module._modules, **module._parameters, **module._buffers}
    empty = {attribute: None for attribute, value in slots.items() if value is None}
    for attribute, value in {**vars(module), **empty}.items():
        if attribute not in _OWN and attribute != _MARK:
            encoded[attribute] = _encode_attribute(f"{name}.{attribute}", value, classes)
    return encoded


def _encode_attribute(name: str, value: object, classes: Mapping[str, type[Any]]) -> object:
    """Return an attribute as JSON; an object of a class that the user gives by its attributes."""
    label = next((label for label, kind in classes.items() if type(value) is kind), None)
    if label is not None and not isinstance(value, nn.Module):
        held = vars(value).items()
        inner = {key: _encode_attribute(f"{name}.{key}", item, classes) for key, item in held}
        return {_OBJECT: [label, inner]}
    try:
        return encode(value)
    except FileError:
        kind = type(value).__name__
        way_out = (
            f"pass its class to save and to load as well, modules={{..., '{kind}': {kind}}}"
            if _has_attributes(value)
            else "keep numbers, strings and lists of them, or register a buffer"
        )
        raise FileError(
            f"the attribute {name!r} is a {kind}, which a file cannot hold; {way_out}"
        ) from None


def name_classes(module: nn.Module) -> list[str]:
    """Return the classes that a file with this leaf must be given: its own and its attributes'."""
    held = [type(value).__name__ for value in vars(module).values() if _has_attributes(value)]
    return list(dict.fromkeys([type(module).__name__, *held]))


def _has_attributes(value: object) -> bool:
    """Return whether a value is an object that its attributes may make up, such as a config."""
    return (
        not callable(value)
        and bool(getattr(value, "__dict__", None))
        and not isinstance(value, torch.Tensor)
    )


def build_opaque(
    kind: type[nn.Module], attributes: Mapping[str, object], classes: Mapping[str, type[Any]]
) -> nn.Module:
    """Return a leaf of the user's class that still lacks its tensors and submodules."""
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    for attribute, value in attributes.items():
        if attribute in _OWN or hasattr(nn.Module, attribute):
            raise FileError(f"it sets the attribute {shorten(attribute)}, which is not allowed")
        _set_attribute_(module, attribute, value, classes)
    vars(module)[_MARK] = True
    return module


def _set_attribute_(
    owner: object, attribute: str, value: object, classes: Mapping[str, type[Any]], depth: int = 0
) -> None:
    MAX_NESTING.check(depth)
    if not is_identifier(attribute):
        raise FileError(f"it sets the attribute {shorten(attribute)}, which is not allowed")
    match value:
        case {"object": [str(label), dict(inner)]}:
            new_object = _new_object(label, classes)
            for key, item in cast(dict[str, object], inner).items():
                _set_attribute_(new_object, key, item, classes, depth + 1)
            vars(owner)[attribute] = new_object
        case _:
            vars(owner)[attribute] = decode(value)


def _new_object(label: str, classes: Mapping[str, type[Any]]) -> object:
    kind = classes.get(label)
    if kind is None or issubclass(kind, nn.Module):
        raise FileError(
            f"it holds an object of the class {shorten(label)}, which is not given; pass "
            f"modules={{{shorten(label)}: ...}}"
        )
    try:
        instance = object.__new__(kind)
        vars(instance)
    except TypeError as error:
        raise FileError(f"no {shorten(label)} can be made without arguments ({error})") from error
    return instance


def is_opaque(module: nn.Module) -> bool:
    """Return whether `build_opaque` made this module."""
    return _MARK in vars(module)


# The class that computes each norm, and its settings, by the function that puts it there.
_NORMS = {
    "weight_norm": ("_WeightNorm", ("dim",)),
    "spectral_norm": ("_SpectralNorm", ("n_power_iterations", "eps", "dim")),
}


def plain_class(module: nn.Module) -> type[nn.Module]:
    """Return the class that a layer had before its weights were parametrised."""
    kind = type(module)
    return kind.__bases__[0] if parametrize.is_parametrized(module) else kind


def read_parametrisations(name: str, module: nn.Module) -> dict[str, object]:
    """Return the norm of each tensor that has one, as JSON."""
    if not parametrize.is_parametrized(module):
        return {}
    chains = cast(nn.ModuleDict, module.parametrizations)
    return {
        tensor: _read_norm(f"{name}.{tensor}", list(cast(nn.ModuleList, chain)))
        for tensor, chain in chains.items()
    }


def _read_norm(name: str, steps: list[nn.Module]) -> dict[str, object]:
    for norm, (kind, settings) in _NORMS.items():
        if len(steps) == 1 and type(steps[0]).__name__ == kind:
            read = {setting: getattr(steps[0], setting, None) for setting in settings}
            return {"norm": norm, **{key: n for key, n in read.items() if n is not None}}
    raise FileError(
        f"the tensor {name!r} is parametrised by {type(steps[0]).__name__}, which a file cannot "
        "hold; call torch.nn.utils.parametrize.remove_parametrizations first"
    )


def parametrise_(layer: nn.Module, norms: Mapping[str, object]) -> None:
    """Put the norms back on the tensors that had one."""
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
        norm.register_buffer("_u", torch.empty(n_rows, dtype=weight.dtype, device="cpu"))
        norm.register_buffer(
            "_v", torch.empty(weight.numel() // max(n_rows, 1), dtype=weight.dtype, device="cpu")
        )
    parametrize.register_parametrization(layer, tensor, norm, unsafe=True)


def _check_norm(described: object) -> tuple[str, dict[str, Any]]:
    settings = dict(cast(dict[str, Any], described)) if isinstance(described, dict) else {}
    norm = settings.pop("norm", None)
    numbers = all(isinstance(value, int | float) for value in settings.values())
    is_listed = isinstance(norm, str) and norm in _NORMS
    if not is_listed or not numbers or not set(settings) <= set(_NORMS[norm][1]):
        raise FileError(f"it normalises by {shorten(described)}, which is not a norm")
    return norm, settings
