"""Helpers for torch.fx: call nodes, map over arguments, find the user's line, pack and compile."""

import ast
import contextlib
import dis
import functools
import importlib
import itertools
import linecache
import operator
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_map

from archlearn.module_utils import find_module


def call_node(node: fx.Node, net: nn.Module, args: Any, kwargs: Any) -> Any:
    """Make the call that a node stands for."""
    args, kwargs = thaw(args), thaw(kwargs)
    if node.op == "call_module":
        return find_module(net, str(node.target))(*args, **kwargs)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    target: Any = node.target
    return target(*args, **kwargs)


def call_on_labels(node: fx.Node, net: nn.Module, args: Any, kwargs: Any) -> Any:
    """Make the call that a node stands for with labels; what it gives is on the CPU, as they are.

    An index may be on the device of the model, and a node may name that device.
    """
    args, kwargs = map_leaves(_to_cpu, args), map_leaves(_to_cpu, kwargs)
    return tree_map(_to_cpu, call_node(node, net, args, kwargs))


def _to_cpu(leaf: Any) -> Any:
    return leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf


def thaw(value: Any) -> Any:
    """Return arguments of a node with plain lists and dicts, which a call may change in place."""
    if isinstance(value, list):
        return [thaw(item) for item in value] if type(value) is immutable_list else value
    if isinstance(value, dict):
        frozen = type(value) is immutable_dict
        return {key: thaw(item) for key, item in value.items()} if frozen else value
    if type(value) is tuple:
        return tuple(thaw(item) for item in value)
    return value


def is_made_of(node: fx.Node, is_source: Callable[[fx.Node], bool]) -> bool:
    """Return whether a value is computed from such nodes alone.

    Without recursion: the graph of a network of a hundred layers is deeper than Python's stack.
    """
    waiting, seen = [node], set[fx.Node]()
    while waiting:
        part = waiting.pop()
        if part in seen or is_source(part):
            continue
        seen.add(part)
        if not part.all_input_nodes:
            return False
        waiting += part.all_input_nodes
    return True


def find_parameter(node: fx.Node) -> fx.Node | None:
    """Return the `get_attr` of the tensor that a node is, as it stands or some of its rows."""
    while node.op != "get_attr":
        if not _takes_rows(node):
            return None
        node = node.all_input_nodes[0]
    return node


def _takes_rows(node: fx.Node) -> bool:
    """Return whether a call is `x[a:b]`, splits a tensor by rows, or is one of those parts."""
    source: Any = node.args[0] if node.args else None
    if len(node.all_input_nodes) != 1 or not isinstance(source, fx.Node):
        return False
    if _splits(node):
        dim: Any = node.kwargs.get("dim", [*node.args, 0, 0][2])
        return dim == 0
    if node.target is not operator.getitem:
        return False
    index: Any = node.args[1]
    if _splits(source) or isinstance(index, int):
        return _splits(source) and isinstance(index, int)
    indices = index if isinstance(index, tuple) else (index,)
    is_run = all(isinstance(part, slice) and part.step in (None, 1) for part in indices)
    return is_run and all(part == slice(None) for part in indices[1:])


def _splits(node: fx.Node) -> bool:
    is_call = node.op in ("call_method", "call_function")
    return is_call and node.target in ("split", "chunk", torch.split, torch.chunk)


def size_of(node: Any) -> tuple[Any, int] | None:
    """Return the tensor and the dimension of which a value is the size, as it is written."""
    if not isinstance(node, fx.Node):
        return None
    holder, dim = [*node.args, *node.kwargs.values(), None, None][:2]
    if node.target is operator.getitem and isinstance(holder, fx.Node):
        is_shape = holder.target is getattr and holder.args[1] == "shape"
        is_size = holder.target == "size" and len(holder.all_input_nodes) == len(holder.args)
        holder = holder.args[0] if is_shape or is_size else None
    elif node.target != "size":
        return None
    return (holder, dim) if isinstance(holder, fx.Node) and isinstance(dim, int) else None


def leaves_of(tree: Any) -> list[Any]:
    """Return the leaves of nested tuples, lists, dicts and slices."""
    leaves: list[Any] = []
    map_aggregate(tree, leaves.append)
    return leaves


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to every leaf of nested tuples, lists, dicts and slices."""
    return thaw(map_aggregate(tree, function))


SOURCE = "archlearn_source"
BLOCK_CALLS = "archlearn_blocks"
"""Under which a node holds the numbers of the calls of blocks that it is a part of."""
_HOMES: tuple[Any, ...] = (torch, F, operator)
Packed = tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class NodeName:
    """Stands for a node among packed arguments."""

    name: str


@dataclass(frozen=True, slots=True)
class FunctionName:
    """Stands for a function that pickle would not find by its own name."""

    home: str
    name: str


def pack_graph(graph: fx.Graph) -> Packed:
    """Return a graph as tuples, one a node."""

    def pack(value: Any) -> Any:
        return NodeName(value.name) if isinstance(value, fx.Node) else value

    return tuple(
        (
            node.op,
            node.name,
            _pack_target(node.target),
            *map_aggregate((node.args, node.kwargs), pack),
            node.meta.get(SOURCE, ""),
            node.meta.get(BLOCK_CALLS, ()),
        )
        for node in graph.nodes
    )


def unpack_graph(packed: Packed) -> fx.Graph:
    """Return the graph that `pack_graph` was given."""
    graph = fx.Graph()
    nodes: dict[str, fx.Node] = {}

    def find(value: Any) -> Any:
        return nodes[value.name] if isinstance(value, NodeName) else value

    for op, name, target, args, kwargs, source, blocks in packed:
        arguments = map_aggregate((args, kwargs), find)
        if isinstance(target, FunctionName):
            target = getattr(importlib.import_module(target.home), target.name)
        nodes[name] = graph.create_node(op, target, *arguments, name=name)
        nodes[name].meta[SOURCE] = source
        nodes[name].meta[BLOCK_CALLS] = blocks
    return graph


def copy_graph(graph: fx.Graph) -> tuple[fx.Graph, dict[str, fx.Node]]:
    """Return a copy of a graph, and its nodes by their names in the original."""
    copied = fx.Graph()
    mapping: dict[fx.Node, fx.Node] = {}
    copied.output(copied.graph_copy(graph, mapping))
    return copied, {old.name: new for old, new in mapping.items()}


def compile_graph(graph: fx.Graph) -> Callable[..., Any]:
    """Return a graph as a function of the module that it belongs to, and its inputs."""
    shell = fx.GraphModule(torch.nn.Module(), fx.Graph())
    with graph.on_generate_code(lambda _: _write_devices):
        shell.graph = graph
    return type(shell).forward


def _write_devices(lines: list[str]) -> list[str]:
    """Let `device(type='cpu')` be torch's in lines behind those that read the argument `device`."""
    read = [i for i, line in enumerate(lines) if line.endswith(" = device\n")]
    for i in read[-1:]:
        lines.insert(i + 1, "device = torch.device\n")
    return lines


def _pack_target(target: Any) -> Any:
    if isinstance(target, str) or not callable(target):
        return target
    name = getattr(target, "__name__", "")
    module = sys.modules.get(getattr(target, "__module__", None) or "")
    for home in (module, *_HOMES):
        if home is not None and getattr(home, name, None) is target:
            return FunctionName(home.__name__, name)
    return target


_TORCH = os.path.dirname(torch.__file__) + os.sep
_DECORATORS = contextlib.__file__  # `add_gates` is one of its contexts
_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_MODELS = os.path.join(_HERE, "models") + os.sep


def note_source(node: fx.Node) -> None:
    """Note on a node the user's line that is running now."""
    frame = sys._getframe(2)
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is not None:
        name = os.path.basename(frame.f_code.co_filename)
        node.meta[SOURCE] = f"{name}:{frame.f_lineno}"


def source_of(node: fx.Node) -> str:
    """Return `file.py:12` of the user's line that made a call, or '' if it is not known."""
    return str(node.meta.get(SOURCE, ""))


def describe_failure(error: BaseException) -> str:
    """Return the user's own line at which tracing failed, and why."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not is_ours(frame.filename):
            return f"{frame.filename}:{frame.lineno} `{frame.line}`: {error}"
    return str(error)


@functools.lru_cache(maxsize=1024)
def is_ours(path: str) -> bool:
    """Return whether a file is torch's or ours; our models count as a user's."""
    return path.startswith((_TORCH, _HERE, _DECORATORS)) and not path.startswith(_MODELS)


_SPEAKING = frozenset({
    "_assert", "print", "debug", "info", "warning", "warn", "error", "exception", "critical", "log",
})  # fmt: skip
_SPEAKERS = ("logging", "warnings", "traceback")


def is_message(frame: FrameType) -> bool:
    """Return whether the text that is made at a frame is only printed, logged or raised."""
    if str(frame.f_globals.get("__name__")).split(".")[0] in _SPEAKERS:
        return True
    line = frame.f_lineno  # of the innermost statement that holds it
    around = [
        node
        for node in _statements(frame.f_code.co_filename)
        if node.lineno <= line <= (node.end_lineno or line)
    ]
    statement = min(around, key=lambda n: (n.end_lineno or 0) - n.lineno, default=None)
    if isinstance(statement, ast.Raise | ast.Assert):
        return True
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    called = statement.value.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in _SPEAKING


def asks_for_class(frame: FrameType) -> bool:
    """Return whether a frame asks for a value's class by `isinstance`, `__class__` or `case`."""
    instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    if "CALL" not in instruction:
        return instruction in ("LOAD_ATTR", "MATCH_CLASS")
    places = itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
    line, _, column, _ = next(places, (None, None, None, None))
    if line is None or column is None:
        return False
    text = linecache.getline(frame.f_code.co_filename, line).encode()[column:]
    return text.startswith((b"isinstance", b"builtins.isinstance"))


@lru_cache(maxsize=64)
def _statements(path: str) -> tuple[ast.stmt, ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.stmt))
