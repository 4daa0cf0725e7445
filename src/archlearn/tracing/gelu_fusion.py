"""Replace GELU that is written out, by tanh or by erf, with one call of `F.gelu`.

GPT-2, ALBERT and Phi write `0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))`. Call by
call, a closed gate behind the tanh would leave half of x; as one activation it leaves zero.
"""

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.fx.node import map_arg

from archlearn.tracing.fx_utils import call_node, leaves_of

_CURVES = {torch.tanh, torch.erf, F.tanh, "tanh", "erf"}
_ELEMENTWISE = _CURVES | {
    operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.neg,
    torch.add, torch.sub, torch.mul, torch.div, torch.pow, torch.square,
    "add", "sub", "mul", "div", "pow", "square",
}  # fmt: skip
_FAR = 8  # calls
_NEAR = 1e-12  # of numbers around one, in double precision: rounding


def fuse_gelu_(graph: fx.Graph) -> None:
    """Replace each GELU that is written out by a call of `F.gelu`."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    for curve in [node for node in graph.nodes if _is_one_of(node, _CURVES)]:
        found = _find(curve, order)
        if found is not None:
            end, x, approximate = found
            inner = _between(x, end, order)[:-1]
            # The last call is changed, and not replaced: a block may be known to return it.
            end.op, end.target, end.args = "call_function", F.gelu, (x,)
            end.kwargs = {"approximate": approximate}
            for node in reversed(inner):
                graph.erase_node(node)


def _find(curve: fx.Node, order: dict[fx.Node, int]) -> tuple[fx.Node, fx.Node, str] | None:
    """Return where a GELU around a tanh or erf ends and begins, and which of the two it is."""
    ends = [curve]
    for node in ends:  # grows meanwhile
        if len(ends) < _FAR:
            ends += [user for user in node.users if _is_elementwise(user) and user not in ends]
    for end in ends:
        for x in _sources(end, order):
            within = _between(x, end, order)
            is_closed = all(user in within for node in within[:-1] for user in node.users)
            if curve in within and is_closed:
                kind = _recognise(x, within)
                if kind:
                    return end, x, kind
    return None


def _sources(end: fx.Node, order: dict[fx.Node, int]) -> list[fx.Node]:
    """Return the nodes that all of a node's inputs come from, the nearest first."""
    frontier, found = {end}, list[fx.Node]()
    while frontier and len(found) < _FAR:
        latest = max(frontier, key=lambda node: order[node])
        if len(frontier) == 1 and latest is not end:
            found.append(latest)
        if not _is_elementwise(latest):
            break
        frontier = (frontier - {latest}) | set(latest.all_input_nodes)
    return found


def _between(x: fx.Node, end: fx.Node, order: dict[fx.Node, int]) -> list[fx.Node]:
    """Return the calls from behind one node up to another, in their order."""
    waiting, found = [end], set[fx.Node]()
    while waiting:
        node = waiting.pop()
        if node is not x and node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return sorted(found, key=lambda node: order.get(node, -1))


def _recognise(x: fx.Node, within: Sequence[fx.Node]) -> str:
    """Return what `F.gelu` calls the function that some calls compute, or ''."""
    grid = torch.linspace(-8, 8, 257, dtype=torch.float64)
    values: dict[fx.Node, Tensor] = {x: grid}
    for node in within:
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: values[n])
        values[node] = call_node(node, torch.nn.Identity(), args, kwargs)
    made = values[within[-1]]
    for kind in ("tanh", "none"):
        if float((made - F.gelu(grid, approximate=kind)).abs().max()) < _NEAR:
            return kind
    return ""


def _is_elementwise(node: fx.Node) -> bool:
    """Return whether a call computes each element from those at its place and from numbers."""
    if not _is_one_of(node, _ELEMENTWISE):
        return False
    return all(
        isinstance(leaf, fx.Node | int | float) for leaf in leaves_of((node.args, node.kwargs))
    )


def _is_one_of(node: fx.Node, targets: set[Any]) -> bool:
    return node.op in ("call_function", "call_method") and node.target in targets
