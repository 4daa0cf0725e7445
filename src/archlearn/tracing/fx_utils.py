"""Call a torch.fx node; map over its nested arguments."""

from collections.abc import Callable
from typing import Any

from torch import fx, nn
from torch.fx.immutable_collections import immutable_dict, immutable_list

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


def leaves_of(tree: Any) -> list[Any]:
    """Return the leaves of nested tuples, lists, dicts and slices."""
    if isinstance(tree, slice):
        return [tree.start, tree.stop, tree.step]
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in leaves_of(value)]
    if isinstance(tree, tuple | list):
        return [leaf for value in tree for leaf in leaves_of(value)]
    return [tree]


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to every leaf of nested tuples, lists, dicts and slices."""
    if isinstance(tree, slice):
        return slice(function(tree.start), function(tree.stop), function(tree.step))
    if isinstance(tree, dict):
        return {key: map_leaves(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_leaves(function, value) for value in tree))
    if isinstance(tree, tuple | list):
        mapped = [map_leaves(function, value) for value in tree]
        return mapped if isinstance(tree, list) else tuple(mapped)
    return function(tree)
