"""A call that works in place changes its argument, and whatever lies in the same memory."""

import operator
from collections.abc import Container, Mapping

from torch import fx, nn

from archlearn.analysis.rule_api import Rule
from archlearn.analysis.rules.elementwise import keep
from archlearn.analysis.rules.reshape import attribute, move, pick
from archlearn.module_utils import find_module

_OPERATORS = {
    operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv,
    operator.ipow, operator.setitem,
}  # fmt: skip
_VIEWING = (move, pick, attribute, keep)
_COPYING = frozenset({
    "cat", "concat", "stack", "hstack", "vstack", "clone", "repeat", "repeat_interleave", "tile",
    "flip", "roll", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle",
})  # fmt: skip


def is_in_place(node: fx.Node, net: nn.Module) -> bool:
    """Return whether a call changes its first argument."""
    if not node.args:
        return False
    if node.op == "call_module":
        return bool(getattr(find_module(net, str(node.target)), "inplace", False))
    name = _name_of(node)
    trailing = name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
    return trailing or node.target in _OPERATORS or node.kwargs.get("inplace") is True


def find_views(node: fx.Node, rules: Mapping[fx.Node, Rule], made: Container[str]) -> set[fx.Node]:
    """Return the calls whose results may lie in the same memory as that of a node.

    Args:
        node: Any call.
        rules: How labels pass each call.
        made: The names of the calls that have been made so far.
    """
    found: set[fx.Node] = set()
    waiting = [node]
    while waiting:
        here = waiting.pop()
        if here not in found and here.name in made:
            found.add(here)
            waiting += [user for user in here.users if _may_be_view(user, rules)]
            waiting += here.all_input_nodes if _may_be_view(here, rules) else []
    return found


def _may_be_view(node: fx.Node, rules: Mapping[fx.Node, Rule]) -> bool:
    return rules.get(node) in _VIEWING and _name_of(node) not in _COPYING


def _name_of(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
