"""A graph is rebuilt node by node, each name and target checked before any code is made of it."""

from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any, cast

from torch import fx, nn

from archlearn.errors import FileError
from archlearn.serialization.limits import MAX_KEYWORDS
from archlearn.serialization.module_tree import find_module
from archlearn.serialization.op_registry import ATTRIBUTES, METHODS, find_operation
from archlearn.serialization.schema import NodeEntry
from archlearn.serialization.values import decode, is_identifier, shorten

_RESERVED = {"self", "torch", "device", "inf", "nan", "NoneType", "fx_pytree", "pytree"}


def rebuild_graph(root: nn.Module, entries: Sequence[NodeEntry]) -> fx.Graph:
    """Return the graph that a file describes, for the modules and tensors of `root`.

    Raises:
        FileError: Before any code is made, if a name is not an identifier, a call is not
            allowed, or an argument is not the result of an earlier call.
    """
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
        return _check_function(target, args)
    if not isinstance(target, str):
        raise FileError(f"the call {entry.name!r} has the target {shorten(target)}")
    allowed = {
        "placeholder": lambda: (
            is_identifier(target.lstrip("*"))
            and not target.startswith("***")
            and target.lstrip("*") not in _RESERVED
            and not entry.kwargs
            and len(args) <= 1
        ),
        "output": lambda: target == "output" and len(args) == 1,
        "call_module": lambda: target != "" and find_module(root, target) is not None,
        "get_attr": lambda: _has_tensor(root, target),
        "call_method": lambda: target in METHODS and _starts(args),
    }
    if not allowed[entry.operation]():
        raise FileError(
            f"the {entry.operation} {entry.name!r} has the target {shorten(target)}, which is "
            "not one that a file may name"
        )
    return target


def _has_tensor(root: nn.Module, path: str) -> bool:
    owner, _, name = path.rpartition(".")
    module = find_module(root, owner)
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
        fits = fits and args[1] in ATTRIBUTES
        if not fits:
            raise FileError(f"it reads the attribute {shorten(args[1:])}, which is not allowed")
    return find_operation(target)


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
