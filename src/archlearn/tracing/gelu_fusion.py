"""Replace GELU that is written out, by tanh or by erf, with one call of `F.gelu`.

GPT-2, ALBERT and Phi write `0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))`. Call by
call, a closed gate behind the tanh would leave half of x; as one activation it leaves zero.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.fx.node import map_arg

from archlearn.op_table import OpSpec, spec_of, works_in_place
from archlearn.tracing.fx_utils import call_node, leaves_of

_CURVES = ("torch.tanh", "torch.erf")
_ELEMENTWISE = tuple(f"elementwise.{kind}" for kind in ("unary", "product", "quotient", "total"))
_NO_NET = torch.nn.Identity()  # functions and methods belong to none
_FAR = 8  # calls
_NEAR = 1e-12  # of numbers around one, in double precision: rounding


def fuse_gelu_(graph: fx.Graph) -> None:
    """Replace each GELU that is written out by a call of `F.gelu`."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    for curve in [node for node in graph.nodes if _is_curve(node)]:
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
        values[node] = call_node(node, _NO_NET, args, kwargs)
    made = values[within[-1]]
    for kind in ("tanh", "none"):
        if float((made - F.gelu(grid, approximate=kind)).abs().max()) < _NEAR:
            return kind
    return ""


def _is_elementwise(node: fx.Node) -> bool:
    """Return whether a call computes each element from those at its place and from numbers."""
    spec = _spec_of(node)
    is_known = spec is not None and (spec.rule in _ELEMENTWISE or _is_curve(node))
    return is_known and all(
        isinstance(leaf, fx.Node | int | float) for leaf in leaves_of((node.args, node.kwargs))
    )


def _is_curve(node: fx.Node) -> bool:
    spec = _spec_of(node)
    return spec is not None and any(call in spec.calls for call in _CURVES)


def _spec_of(node: fx.Node) -> OpSpec | None:
    """Return what is known of a function or method that leaves its input alone."""
    is_module = node.op == "call_module"
    return None if is_module or works_in_place(node.target) else spec_of(node, _NO_NET)
