"""Forward hooks of blocks fire in a generated `forward`, around the blocks' own inputs and outputs.

A trace is flat: a block, that is, a module which is followed and not called as it is, leaves no
call in it. So the tracer notes where each block begins and ends, what it was given and what it
returned. Marks carry that through surgery, and in the code that is generated at last each mark
is a call of the block's hooks.
"""

import logging
import operator
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from archlearn.errors import InputError
from archlearn.module_utils import has_hooks
from archlearn.tracing.example_inputs import is_plain
from archlearn.tracing.fx_utils import BLOCK_CALLS, NodeName, copy_graph, leaves_of, map_leaves
from archlearn.tracing.output_types import construction_of, parts_of

_log = logging.getLogger(__name__)
_MADE = "archlearn_made"  # a container of another class follows: the class and its arguments


@dataclass(frozen=True, slots=True)
class BlockCall:
    """One call of a block while a model was traced.

    Attributes:
        given: Its arguments by position and by keyword, with names for traced values; None if
            they, or what it returned, are nothing that a graph can hold.
        traced_hooks: Keys of hooks that ran while it was traced: what they do is in the graph.
    """

    path: str
    arguments: tuple[Any, Any] | None
    output: Any
    traced_hooks: tuple[int, ...]


def name_nodes(value: Any) -> Any:
    """Return a value with the names of nodes for what is traced in it."""
    if isinstance(value, fx.Proxy):
        node: Any = vars(value).get("node") or vars(value).get("_node")
        if node is None:
            raise TypeError("an attribute that nobody has read")
        return NodeName(node.name)
    if type(value) is dict:
        return {key: name_nodes(part) for key, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(map(name_nodes, value))
    construction = construction_of(value)
    if construction is not None:
        kind, args, kwargs = construction
        return (_MADE, kind, name_nodes(args), name_nodes(kwargs))
    if not is_plain(value):
        raise TypeError(f"{type(value).__name__} is nothing that a graph can hold")
    return value


def begin_block(*_: Any) -> None:
    """Mark where a block begins: call, path, arguments, keywords, traced hooks."""


def end_block(*_: Any) -> None:
    """Mark where a block ends: call, path, output, traced hooks."""


MARKS = (begin_block, end_block)


def mark_blocks_(graph: fx.Graph, calls: Iterable[BlockCall]) -> None:
    """Put marks into a copy of a traced graph, where its blocks begin and end."""
    node_named = {node.name: node for node in graph.nodes}
    order = {node: position for position, node in enumerate(graph.nodes)}
    inside: dict[int, list[fx.Node]] = {}

    def find(value: Any) -> Any:
        return node_named[value.name] if isinstance(value, NodeName) else value

    for node in graph.nodes:
        for number in node.meta.get(BLOCK_CALLS, ()):
            inside.setdefault(number, []).append(node)
    for number, call in enumerate(calls):  # outer blocks before inner ones
        if call.arguments is None or number not in inside:
            continue
        try:
            arguments, output = map_leaves(find, (call.arguments, call.output))
        except KeyError:  # no part of the graph any more
            continue
        first, last = inside[number][0], inside[number][-1]
        if any(order.get(node, -1) >= order[first] for node in leaves_of(arguments)):
            continue  # a size that was read only inside
        with graph.inserting_before(first):
            graph.call_function(begin_block, (number, call.path, *arguments, call.traced_hooks))
        with graph.inserting_after(last):
            graph.call_function(end_block, (number, call.path, output, call.traced_hooks))


def without_marks(graph: fx.Graph) -> fx.Graph:
    """Return a copy of a graph without marks."""
    copied, _ = copy_graph(graph)
    for node in list(copied.nodes):
        if node.target in MARKS:
            copied.erase_node(node)
    return copied


def erase_marks_of_(node: fx.Node) -> None:
    """Erase the marks of all blocks that are given or return a node, so that it can go."""
    numbers = [user.args[0] for user in node.users if user.target in MARKS]
    for other in list(node.graph.nodes):
        if other.target in MARKS and other.args[0] in numbers:
            node.graph.erase_node(other)


def list_hooks(module: nn.Module) -> list[int]:
    """Return the keys of a module's forward hooks, but for those that transformers registers.

    They note what layers return, or ask for its gradient, and change nothing.
    """
    hooks = [*module._forward_hooks.items(), *module._forward_pre_hooks.items()]
    homes = {key: str(getattr(hook, "__module__", "")).split(".")[0] for key, hook in hooks}
    return [key for key, home in homes.items() if home != "transformers"]


def find_hooked(net: nn.Module, graphs: Iterable[fx.Graph]) -> str | None:
    """Return a module with forward hooks that fire and are in no graph, "" for the whole model."""
    if list_hooks(net):
        return ""
    for mark in [node for graph in graphs for node in graph.nodes if node.target in MARKS]:
        path, traced = str(mark.args[1]), mark.args[-1]
        if set(list_hooks(net.get_submodule(path))) - set(traced):
            return path
    return None


def advise_on_difference(model: nn.Module) -> str:
    """Return what to do where surgery is not exact: a hook registered since may be the reason."""
    for name, module in model.named_modules():
        if has_hooks(module) and list_hooks(module):
            return (
                f"remove the forward hook of {name or type(model).__name__!r}, which may act "
                "behind the gates of what goes, or on other channels than before, and try again"
            )
    return "report the model"


def call_hooks_at_marks(graph: fx.Graph) -> fx.Graph:
    """Return a copy of a graph in which marks are calls of hooks, whose results are read on."""
    hooked_one, _ = copy_graph(graph)
    begun: dict[Any, tuple[fx.Node, fx.Node]] = {}  # the block, and what it is given
    for mark in [node for node in hooked_one.nodes if node.target in MARKS]:
        number, path, *values, traced = mark.args
        with hooked_one.inserting_before(mark):
            built = [_build(hooked_one, value) for value in values]
            if mark.target is begin_block:
                block = hooked_one.get_attr(str(path))
                arguments = hooked_one.call_function(call_pre_hooks, (block, *built, traced))
                begun[number] = (block, arguments)
                end = next(
                    n for n in hooked_one.nodes if n.target is end_block and n.args[0] == number
                )
                _read_from(arguments, tuple(values), mark, end)
            else:
                hooked = hooked_one.call_function(call_hooks, (*begun[number], *built, traced))
                _read_from(hooked, values[0], mark, None)
        hooked_one.erase_node(mark)
    return hooked_one


def call_pre_hooks(
    block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], traced: tuple[int, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Call a block's forward pre-hooks, as torch does; return what the block is given then."""
    if block._forward_pre_hooks:
        before = (args, kwargs)
        for key, hook in list(block._forward_pre_hooks.items()):
            if key in traced:
                continue
            if key in block._forward_pre_hooks_with_kwargs:
                changed: Any = hook(block, args, kwargs)  # pyright: ignore[reportCallIssue]
                args, kwargs = (args, kwargs) if changed is None else changed
            else:
                changed = hook(block, args)  # pyright: ignore[reportCallIssue]
                if changed is not None:
                    args = changed if isinstance(changed, tuple) else (changed,)
        _check_change(block, before, (args, kwargs))
    return args, kwargs


def call_hooks(
    block: nn.Module,
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
    output: Any,
    traced: tuple[int, ...],
) -> Any:
    """Call a block's forward hooks, as torch does; return what the block returns then."""
    if block._forward_hooks:
        before, (args, kwargs) = output, arguments
        for key, hook in list(block._forward_hooks.items()):
            if key in traced:
                continue
            call: Any = hook
            if key in block._forward_hooks_with_kwargs:
                changed = call(block, args, kwargs, output)
            else:
                changed = call(block, args, output)
            output = output if changed is None else changed
        _check_change(block, before, output)
    return output


def _check_change(block: nn.Module, before: Any, after: Any) -> None:
    if after is not before and _fixed_parts(before) != _fixed_parts(after):
        raise InputError(
            f"a forward hook of {type(block).__name__} changes {_fixed_parts(before)} into "
            f"{_fixed_parts(after)}, but what is no tensor was fixed when the model was traced; "
            "change tensors only, or call add_gates on a model that does the same without a hook"
        )


def _fixed_parts(value: Any) -> Any:
    """Return the classes, keys and numbers of a value; for tensors, only that they are some."""
    parts = parts_of(value)
    if parts is None:
        return Tensor if isinstance(value, Tensor) else value
    return type(value).__name__, [(key, _fixed_parts(part)) for key, part in parts]


class SilentHooks(OrderedDict[int, Any]):
    """Hooks of a block that cannot fire: whoever registers one is told so."""

    path = "a block"

    def __setitem__(self, key: int, hook: Any) -> None:
        if not str(getattr(hook, "__module__", "")).startswith("archlearn."):
            _log.warning(
                "a forward hook was registered on %r, but it will not fire: the block was given "
                "or returned something that a trace does not hold; register it on a layer inside, "
                "or on the block around it",
                self.path,
            )
        super().__setitem__(key, hook)


def silence_hooks_(net: nn.Module, graphs: Iterable[fx.Graph], calls: Iterable[BlockCall]) -> None:
    """Let blocks without marks tell whoever registers a hook on them that it will not fire."""
    marked = {n.args[1] for graph in graphs for n in graph.nodes if n.target is begin_block}
    for path in {call.path for call in calls} - marked:
        block = net.get_submodule(path)
        for name in ("_forward_hooks", "_forward_pre_hooks"):
            hooks = SilentHooks()
            hooks.path = path
            OrderedDict.update(hooks, getattr(block, name))
            setattr(block, name, hooks)


def warn_of_traced_hooks(calls: Iterable[BlockCall], net: nn.Module) -> None:
    """Say which hooks ran while a model was traced, and so do not fire again."""
    for path in dict.fromkeys(call.path for call in calls if call.traced_hooks):
        if list_hooks(net.get_submodule(path)):
            _log.warning(
                "%r has a forward hook, which ran while the model was traced and will not fire "
                "again; remove it before add_gates, and register it on the model that add_gates "
                "returns",
                path,
            )


def _is_made(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 4 and value[0] == _MADE


def _build(graph: fx.Graph, value: Any) -> Any:
    """Return a value in which containers of other classes are calls that make them."""
    if _is_made(value):
        _, kind, args, kwargs = value
        return graph.call_function(kind, _build(graph, args), _build(graph, kwargs))
    if isinstance(value, dict):
        return {key: _build(graph, part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return tuple(_build(graph, part) for part in value)
    return value


def _leaves(value: Any, steps: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], fx.Node]]:
    """Yield each node of a value, with the calls that lead from the value to it."""
    if isinstance(value, fx.Node):
        yield steps, value
    elif _is_made(value):
        _, kind, args, kwargs = value
        is_record = not issubclass(kind, dict | tuple | list)
        for name, part in kwargs.items():
            yield from _leaves(part, (*steps, (getattr if is_record else operator.getitem, name)))
        inside = args if hasattr(kind, "_fields") else args[-1] if args else ()
        yield from _leaves(inside, steps)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves(part, (*steps, (operator.getitem, key)))
    elif isinstance(value, tuple | list):
        for index, part in enumerate(value):
            yield from _leaves(part, (*steps, (operator.getitem, index)))


def _read_from(hooked: fx.Node, value: Any, start: fx.Node, end: fx.Node | None) -> None:
    """Let calls from one node up to another read what hooks returned, for the same value."""
    order = {node: position for position, node in enumerate(hooked.graph.nodes)}
    stop = len(order) if end is None else order[end]
    for steps, node in _leaves(value):
        readers = [user for user in node.users if order[start] < order[user] <= stop]
        read = hooked
        for function, key in steps if readers else ():
            read = hooked.graph.call_function(function, (read, key))
        for user in readers:
            user.replace_input_with(node, read)
