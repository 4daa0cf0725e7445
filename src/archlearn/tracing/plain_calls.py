"""Write calls in the way that rules know: GELU, borrowed shapes, cleared parts, products."""

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from archlearn.module_utils import find_tensor, has_hooks, list_tensors, unnoticed
from archlearn.nn.functional import linear_by_columns
from archlearn.op_table import about_of
from archlearn.tracing.example_inputs import ExampleInputs
from archlearn.tracing.fx_utils import size_of
from archlearn.tracing.module_state import preserve_state
from archlearn.tracing.rng import preserve_rng
from archlearn.tracing.shape_guards import untraced

_PRODUCTS = (torch.matmul, operator.matmul, "matmul", torch.mm, "mm")
_LAST_WITH_FIRST = [(one, two) for one in ([-1], (-1,)) for two in ([0], (0,))]
_ZEROS_LIKE = torch.zeros_like  # another stands in its place while a model is traced
_CREATIONS: dict[Any, str] = {torch.zeros: "new_zeros", torch.ones: "new_ones"}
_NEAR = 1e-12  # of numbers around one, in double precision: rounding


def find_gelu(
    m: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Callable[..., Any] | None:
    """Return `F.gelu` if a module writes that out, by tanh or by erf (as GPT-2's does), or None.

    Call by call, a closed gate behind the tanh would leave half of x; as one activation it leaves
    zero, and may merge.
    """
    is_plain = len(args) == 1 and not kwargs and not m._modules and not list_tensors(m)
    is_own = not type(m).__module__.startswith("torch.") and "forward" not in vars(m)
    if not is_plain or not is_own or has_hooks(m):
        return None
    x = torch.linspace(-8, 8, 257, dtype=torch.float64, requires_grad=True, device="cpu")
    with untraced(), unnoticed(), preserve_state(m), preserve_rng(ExampleInputs((), {})):
        try:
            y = type(m).forward(m, x.clone())
        except Exception:  # whatever it needs
            return None
    if getattr(y, "shape", None) != x.shape or "Gelu" in type(y.grad_fn).__name__:
        return None
    for kind in ("tanh", "none"):
        if bool(((y - F.gelu(x, approximate=kind)).abs() < _NEAR).all()):
            return partial(F.gelu, approximate=kind)
    return None


def read_shapes_(graph: fx.Graph) -> None:
    """Write `y.view_as(x)` as `y.view(x.shape)`: of x nothing but its shape is read."""
    for node in graph.nodes:
        if node.op == "call_method" and node.target in ("view_as", "reshape_as"):
            source, other = (*node.args, *node.kwargs.values())
            with graph.inserting_before(node):
                shape = graph.call_function(getattr, (other, "shape"))
            node.target, node.kwargs = str(node.target).removesuffix("_as"), {}
            node.args = (source, shape)


def read_creations_(graph: fx.Graph) -> None:
    """Write `torch.zeros(2, x.size(1))` as `x.new_zeros(...)`, which has channels where x has.

    Nobody asks for the gradient of what a call has made: `requires_grad_` is left out there.
    """
    for node in graph.nodes:
        if node.target == "requires_grad_" and node.args[0].op.startswith("call"):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        sizes: Any = node.args[0] if len(node.args) == 1 else node.args
        if node.target not in _CREATIONS or not isinstance(sizes, tuple | list):
            continue
        holders = [pair[0] for pair in map(size_of, sizes) if pair is not None]
        if holders and set(node.kwargs) <= {"dtype", "device"}:
            dtype = node.kwargs.get("dtype") or torch.get_default_dtype()
            node.op, node.target = "call_method", _CREATIONS[node.target]
            node.args, node.kwargs = (holders[-1], tuple(sizes)), {**node.kwargs, "dtype": dtype}


def read_layers_(graph: fx.Graph, net: nn.Module) -> None:
    """Write `x @ w`, `x @ w.T` and `F.linear(x, w.T)`, of the model's own w, as linear layers."""
    for node in graph.nodes:
        product = _read_product(node)
        if product is None:
            continue
        (x, factor, *bias), is_linear = product
        if not isinstance(x, fx.Node) or not isinstance(factor, fx.Node) or x.op == "get_attr":
            continue
        is_turned = factor.op != "get_attr" and _is_turned(factor)
        weight = factor.all_input_nodes[0] if is_turned else factor
        tensor = find_tensor(net, str(weight.target)) if weight.op == "get_attr" else None
        if tensor is not None and tensor.is_floating_point() and tensor.dim() == 2:
            node.op, node.args, node.kwargs = "call_function", (x, weight, *bias), {}
            node.target = F.linear if is_turned != is_linear else linear_by_columns
            if not factor.users:
                graph.erase_node(factor)


def _read_product(node: fx.Node) -> tuple[Sequence[Any], bool] | None:
    """Return what a product reads, and whether the second factor has a row for each output."""
    args = node.args
    if node.target is F.linear:
        return (args, True) if len(args) > 1 else None
    if node.target in _PRODUCTS:
        return (args, False) if len(args) > 1 and not node.kwargs else None
    if node.target is torch.tensordot:
        dims: Any = node.kwargs.get("dims", [*args, None, None][2])
        return (args[:2], False) if dims == 1 or dims in _LAST_WITH_FIRST else None
    if node.target is torch.einsum and len(args) == 3 and isinstance(args[0], str):
        left, arrow, out = args[0].replace(" ", "").partition("->")
        one, _, two = left.partition(",")
        if not arrow and "." not in left:  # letters that occur once, sorted
            out = "".join(c for c in sorted({*one, *two}) if left.count(c) == 1)
        _, first, second = args
        for pair, letters_of, weight in (((first, second), one, two), ((second, first), two, one)):
            is_matrix = len(set(weight)) == len(weight) == 2
            for is_turned, letters in ((False, weight), (True, weight[::-1])):  # bni,io->bno
                is_read_once = (
                    is_matrix and letters_of.count(letters[0]) == 1
                )  # no diagonal: ii,io->io
                if (
                    is_read_once
                    and letters_of[-1] + out == letters[0] + letters_of[:-1] + letters[1]
                ):
                    return pair, is_turned
    return None


def _is_turned(node: fx.Node) -> bool:
    """Return whether a call transposes a matrix."""
    if node.target is getattr:
        return node.args[1] in ("T", "mT")
    if node.target in ("transpose", "swapaxes", torch.transpose):
        return set(node.args[1:]) in ({0, 1}, {-1, -2})
    return node.target in ("t", torch.t)


def join_cleared_parts_(graph: fx.Graph) -> None:
    """Write `y = x.clone(); y[a:b].zero_()` as a join of three parts (Swin v2: keys have no bias).

    What was read of y before is as it was; all that follows reads the join.
    """
    order = {node: position for position, node in enumerate(graph.nodes)}
    for node in [node for node in graph.nodes if node.target == "zero_" and not node.users]:
        part = _find_part_of_clone(node.args[0])
        if part is None:
            continue
        whole, bounds = part
        with graph.inserting_before(node):
            front = graph.call_function(operator.getitem, (whole, slice(bounds.start)))
            cleared = graph.call_function(_ZEROS_LIKE, (node.args[0],))
            rest = graph.call_function(operator.getitem, (whole, slice(bounds.stop, None)))
            joined = graph.call_function(torch.cat, ((front, cleared, rest),))
        for user in [user for user in whole.users if order.get(user, -1) > order[node]]:
            user.replace_input_with(whole, joined)
        graph.erase_node(node)


def _find_part_of_clone(part: Any) -> tuple[fx.Node, slice] | None:
    """Return y, and a and b, if a call is `y[a:b]` of a clone that has no other view."""
    if part.target is not operator.getitem or len(part.users) > 1:
        return None
    whole, bounds = part.args
    if whole.target not in ("clone", torch.clone) or not isinstance(bounds, slice):
        return None
    others = [user for user in whole.users if user < part]
    has_views = any(about_of(user.target) is None for user in others)
    ends = (bounds.start, bounds.stop)
    is_known = all(isinstance(n, fx.Node) or (isinstance(n, int) and n >= 0) for n in ends)
    return (whole, bounds) if is_known and bounds.step is None and not has_views else None
