"""Pickle torch.fx graphs as plain tuples."""

import importlib
import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx
from torch.fx.node import map_aggregate

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
    return tuple(
        (
            node.op,
            node.name,
            _pack_target(node.target),
            *map_aggregate((node.args, node.kwargs), _pack_value),
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
        found = map_aggregate((args, kwargs), find)
        nodes[name] = graph.create_node(op, _unpack_target(target), *found, name=name)
        nodes[name].meta[SOURCE] = source
        nodes[name].meta[BLOCK_CALLS] = blocks
    return graph


def compile_graph(graph: fx.Graph) -> Callable[..., Any]:
    """Return a graph as a function of the module that it belongs to, and its inputs."""
    shell = fx.GraphModule(torch.nn.Module(), fx.Graph())
    shell.graph = graph
    return type(shell).forward


def _pack_value(value: Any) -> Any:
    return NodeName(value.name) if isinstance(value, fx.Node) else value


def _pack_target(target: Any) -> Any:
    if isinstance(target, str) or not callable(target):
        return target
    name = getattr(target, "__name__", "")
    own = sys.modules.get(getattr(target, "__module__", None) or "")
    for home in (own, *_HOMES):
        if home is not None and getattr(home, name, None) is target:
            return FunctionName(home.__name__, name)
    return target


def _unpack_target(target: Any) -> Any:
    if isinstance(target, FunctionName):
        return getattr(importlib.import_module(target.home), target.name)
    return target
