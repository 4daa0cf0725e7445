"""Encode and decode the calls of a graph as JSON: arguments, and the operations a file may name."""

import math
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from inspect import isbuiltin, isfunction
from keyword import iskeyword
from typing import Any, cast

import torch
from torch import fx

from archlearn.errors import FileError
from archlearn.op_table import OPERATIONS, TORCH_HOMES, saved_calls
from archlearn.serialization.limits import MAX_NESTING
from archlearn.tracing.example_inputs import (
    check_argument,
    check_given,
    check_keywords,
    check_kind,
    ones_if_left_out,
    positions_if_left_out,
)

Operation = Callable[..., Any]

SAVED_METHODS = frozenset(call.removeprefix("Tensor.") for call in saved_calls("Tensor"))

MODEL_OUTPUTS = "transformers.modeling_outputs"
"""The module whose records, such as `BaseModelOutput`, a file may name as outputs."""


NOT_NAMED = (
    "which is not an operation that a file may name; put the call into a submodule, mark that as a "
    "leaf and pass its class in modules={'name': Class}"
)


def name_operation(target: object) -> str:
    """Return the name under which a function of the graph is written."""
    home = str(getattr(target, "__module__", None))
    listed = torchvision_operations() if home.startswith("torchvision.") else all_operations()
    for name, operation in listed.items():
        if operation is target:
            return name
    label = getattr(target, "__qualname__", repr(target))
    raise FileError(f"the model calls {home}.{label}, {NOT_NAMED}")


def find_operation(name: object) -> Operation:
    """Return the function that a file names."""
    if name in torchvision_names():  # whatever else a file names, nothing is imported for it
        listed, hint = torchvision_operations(), "; it may be there once torchvision is installed"
    else:
        listed, hint = all_operations(), ""
    if isinstance(name, str) and name in listed:
        return listed[name]
    raise FileError(
        f"it calls {str(name)[:80]!r}, which is not an operation that a file may name{hint}"
    )


@cache
def all_operations() -> dict[str, Operation]:
    """Return every function that a file may name, by the name it has there."""
    listed: dict[str, Operation] = {
        "getattr": getattr,
        "collections.OrderedDict": OrderedDict,
        "archlearn.check_argument": check_argument,
        "archlearn.check_kind": check_kind,
        "archlearn.check_given": check_given,
        "archlearn.check_keywords": check_keywords,
        "archlearn.ones_if_left_out": ones_if_left_out,
        "archlearn.positions_if_left_out": positions_if_left_out,
    }
    ours = {call: f for call, f in saved_calls("archlearn").items() if not isinstance(f, type)}
    return listed | ours | saved_calls("operator", "math", *TORCH_HOMES)


@cache
def torchvision_names() -> list[str]:
    """Return the functions that torchvision marks as leaves of a trace."""
    calls = [call for spec in OPERATIONS for call in spec.calls]
    return [call for call in calls if call.startswith("torchvision.")]


def torchvision_operations() -> dict[str, Operation]:
    """Return torchvision's functions, if it can be imported; it is only when one is met."""
    listed: dict[str, Operation] = {}
    for call in torchvision_names():
        home, _, name = call.rpartition(".")
        try:
            listed[call] = getattr(import_module(home), name)
        except (ImportError, RuntimeError, AttributeError):  # RuntimeError: built for another torch
            continue
    return listed


_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|meta)(:\d{1,3})?")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAMES = """
float64 float32 float16 bfloat16 complex64 complex128 int64 int32 int16 int8 uint8 bool
contiguous_format channels_last channels_last_3d preserve_format strided
"""
_CONSTANTS = {str(getattr(torch, name)): getattr(torch, name) for name in _NAMES.split()}
FindNode = Callable[[str], object]


def is_identifier(name: object) -> bool:
    """Return whether a name can stand in code and reaches nothing private to Python."""
    return (
        isinstance(name, str)
        and _IDENTIFIER.fullmatch(name) is not None
        and not iskeyword(name)
        and not (name.startswith("__") and name.endswith("__"))
    )


def encode(value: object) -> object:
    """Return an argument as JSON."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if isinstance(value, slice):
        return {"slice": [encode(part) for part in (value.start, value.stop, value.step)]}
    if isinstance(value, list):
        return [encode(item) for item in cast(list[object], value)]
    if isinstance(value, tuple):
        return {"tuple": [encode(item) for item in cast(tuple[object, ...], value)]}
    if isinstance(value, set):
        return {"set": sorted((encode(item) for item in cast(set[object], value)), key=repr)}
    if isinstance(value, Mapping):
        items = cast(Mapping[object, object], value).items()
        return {"dict": [[encode(key), encode(item)] for key, item in items]}
    return _encode_rare(value)


def _encode_rare(value: object) -> object:
    if value is ...:
        return {"ellipsis": True}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if str(value) in _CONSTANTS:
        return {"torch": str(value)}
    if isfunction(value) or isbuiltin(value):
        return {"operation": name_operation(value)}
    raise FileError(
        f"a call takes {value!r} of type {type(value).__name__}, which a file cannot hold; pass "
        "numbers, strings, tensors, or lists, tuples and dicts of them"
    )


def refuse_node(name: str) -> object:
    """Refuse the result of a call where only plain values belong."""
    raise FileError(f"it holds the result {shorten(name)} of a call where a plain value belongs")


def decode(value: object, find_node: FindNode = refuse_node, depth: int = 0) -> Any:
    """Return the argument that `encode` wrote; `depth` is how deep in lists it stands.

    `find_node` gives the node of a name. Left out, nothing may be the result of a call.
    """
    MAX_NESTING.check(depth)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [decode(item, find_node, depth + 1) for item in cast(list[object], value)]
    if not isinstance(value, dict) or len(cast(dict[str, object], value)) != 1:
        raise FileError(f"it holds the argument {shorten(value)}, which is of no known kind")
    ((kind, content),) = cast(dict[str, object], value).items()
    if kind in ("tuple", "slice", "dict", "set") and isinstance(content, list):
        content = decode(cast(list[object], content), find_node, depth + 1)
    match kind, content:
        case "tuple", list():
            return tuple(content)
        case "slice", [start, stop, step]:
            return slice(start, stop, step)
        case "set", list() if all(isinstance(item, str | int) for item in content):
            return set(content)
        case "dict", list() if all(_is_pair(item) for item in content):
            return dict(content)
        case "node", str():
            return find_node(content)
        case "operation", str() if content != "getattr":
            return find_operation(content)
        case "ellipsis", True:
            return ...
        case "float", "inf" | "-inf" | "nan":
            return float(str(content))
        case "torch", str() if content in _CONSTANTS:
            return _CONSTANTS[content]
        case "device", str() if _DEVICE.fullmatch(content):
            return torch.device(content)
        case _:
            raise FileError(f"it holds {shorten({kind: content})}, which is of no known kind")


def _is_pair(item: object) -> bool:
    """Return whether a part of a decoded dict is a key and a value."""
    return isinstance(item, list) and len(item) == 2 and isinstance(item[0], str | int)


def shorten(value: object) -> str:
    """Return a value for an error message, without letting a file fill the screen."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
