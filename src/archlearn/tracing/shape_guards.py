"""What `forward` asks about shapes while it is traced is answered from the example inputs.

A branch on the rank or a size of a tensor has one answer for the example, and tracing goes on
along that branch. The answer may not hang on the batch size, which changes from call to call,
nor on the values of tensors.
"""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map

from archlearn.tracing.example_inputs import ExampleInputs, check_argument, check_kind

KIND, RANK, SIZES = 0, 1, 2  # what a question is about; the larger, the less is sure
_ATTRIBUTES = {
    "ndim": RANK, "shape": SIZES, "dtype": KIND, "device": KIND, "is_cuda": KIND, "is_nested": KIND,
    "layout": KIND, "is_sparse": KIND,
}  # fmt: skip
_METHODS = {
    "dim": RANK, "ndimension": RANK, "size": SIZES, "numel": SIZES, "nelement": SIZES,
    "is_floating_point": KIND, "is_complex": KIND,
}  # fmt: skip
_FUNCTIONS = (torch.is_floating_point, torch.is_complex)
_OPERATORS = {
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.mod,
    operator.neg, operator.pow, operator.getitem, operator.eq, operator.ne, operator.lt,
    operator.le, operator.gt, operator.ge, operator.and_, operator.or_,
    math.ceil, math.floor, math.sqrt,
}  # fmt: skip


REFUSALS = {
    "bool": "symbolically traced variables cannot be used as inputs to control flow",
    "iter": "a loop over a traced value has as many turns as the data says",
    "len": "the length of a traced value is not known",
    "number": "a traced value cannot be interpreted as a number",
    "text": "the text of a traced value is not known",
    "key": "a traced value cannot be the key of a dictionary or in a set",
}
_NUMBERS = ("number", "text", "key")  # what hangs on a number itself, not on one bit of it


class Refusal(BaseException):
    """Why a part cannot be followed; it passes a user's `except Exception`."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the example inputs say, or why they must not be asked."""

    value: Any = None
    refusal: str = ""


def topic_of(node: fx.Node) -> int | None:
    """Return what a number is about, or None if it hangs on the values of tensors."""
    if node.op == "call_method":
        return _METHODS.get(str(node.target))
    if node.op != "call_function":
        return None
    if node.target in _FUNCTIONS:
        return KIND
    if node.target is getattr:
        holder, name = node.args[0], str(node.args[1])
        inner = topic_of(holder) if isinstance(holder, fx.Node) else None
        return _ATTRIBUTES.get(name) if inner is None else inner
    if node.target not in _OPERATORS:
        return None
    topics = [topic_of(part) for part in node.all_input_nodes]
    known = [topic for topic in topics if topic is not None]
    return max(known) if known and len(known) == len(topics) else None


def describes(user: fx.Node, node: fx.Node) -> bool:
    """Return whether a call reads of a tensor only what type it has and where it is."""
    if user.op == "call_method" and user.target in ("to", "type_as"):
        return user.args[0] is not node
    return topic_of(user) == KIND


Asked = fx.Node | tuple[str, Any, tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Guard:
    """What a graph must ask again of other inputs, a node or a call, and the answer."""

    asked: Asked
    value: Any
    check: Callable[[Any, Any, str], None] = check_argument


def to_guard(node: fx.Node, what: str, value: Any) -> list[Guard]:
    """Return what a graph must ask again of other inputs.

    A branch on a number is asked whether that is zero, and `len(x.shape)` for the rank. In which
    floating type a model runs is not asked while it is certified in another one.
    """
    if what == "len":
        if node.op == "get_attr":
            return [Guard(("call_method", "size", (node, 0), {}), len(value))]
        is_shape = node.target == "size" or (node.target is getattr and node.args[1] == "shape")
        name, asked = ("dim", node.args[0]) if is_shape else ("__len__", node)
        return [Guard(("call_method", name, (asked,), {}), len(value))]
    if topic_of(node) == KIND:
        is_sure = _is_sure_of_kind(node)
        return [Guard(node, bool(value), check_argument if is_sure else check_kind)]
    if what in _NUMBERS:
        return [Guard(node, tuple(value) if isinstance(value, tuple) else value)]
    if isinstance(value, bool):
        return [Guard(node, value)]
    nothing: Any = 0 if isinstance(value, int | float) else ()
    asked = ("call_function", operator.ne, (node, nothing), {})
    return [Guard(asked, bool(value))]


def may_ask(node: fx.Node, what: str, *, may_fix_sizes: bool) -> bool:
    """Return whether the example may answer.

    Shapes of the model's own parameters and buffers are what they are.
    """
    topic = topic_of(node)
    if is_own(node):
        return topic is not None or (what == "len" and node.op == "get_attr")
    if what in _NUMBERS and topic != RANK:
        return topic == SIZES and may_fix_sizes
    return topic is not None


def _is_sure_of_kind(node: fx.Node) -> bool:
    """Return whether an answer is the same for all floating types."""
    if node.target in ("is_floating_point", torch.is_floating_point):
        return True
    other = node.args[1] if node.target in (operator.eq, operator.ne) else None
    return isinstance(other, torch.dtype) and not other.is_floating_point


def is_own(node: fx.Node) -> bool:
    """Return whether a value hangs on the model alone, and not on its inputs."""
    if node.op != "get_attr":
        return bool(node.all_input_nodes) and all(is_own(part) for part in node.all_input_nodes)
    return True


def with_rows(inputs: ExampleInputs, n_rows: int) -> ExampleInputs:
    """Return inputs with another number of rows in each tensor that has as many as the first."""
    tensors = [x for x in tree_leaves((inputs.args, inputs.kwargs)) if isinstance(x, Tensor)]
    n_now = tensors[0].shape[0] if tensors and tensors[0].dim() else 0

    def change(value: Any) -> Any:
        has_rows = isinstance(value, Tensor) and value.dim() and value.shape[0] == n_now
        if not n_now or not has_rows:  # of no rows, none are made
            return value
        return value[torch.arange(n_rows, device=value.device) % n_now]

    return ExampleInputs(*tree_map(change, (inputs.args, inputs.kwargs)))
