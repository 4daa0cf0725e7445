"""What `forward` asks about shapes while it is traced is answered from the example inputs.

A branch on the rank or a size of a tensor has one answer for the example, and tracing goes on
along that branch. The answer may not hang on the batch size, which changes from call to call,
nor on the values of tensors.
"""

import operator
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.fx.proxy import Attribute, TraceError
from torch.utils._pytree import tree_leaves, tree_map

from archlearn.graphs.inputs import ExampleInputs, values_for
from archlearn.graphs.sources import is_ours
from archlearn.graphs.step import call_node
from archlearn.modes import evaluating

KIND, RANK, SIZES = 0, 1, 2  # what a question is about; the larger, the less is sure
_ATTRIBUTES = {"ndim": RANK, "shape": SIZES, "dtype": KIND, "device": KIND, "is_cuda": KIND}
_METHODS = {
    "dim": RANK, "ndimension": RANK, "size": SIZES, "numel": SIZES, "nelement": SIZES,
    "is_floating_point": KIND, "is_complex": KIND,
}  # fmt: skip
_OPERATORS = {
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.mod,
    operator.neg, operator.pow, operator.getitem, operator.eq, operator.ne, operator.lt,
    operator.le, operator.gt, operator.ge, operator.and_, operator.or_,
}  # fmt: skip


REFUSALS = {
    "bool": "symbolically traced variables cannot be used as inputs to control flow",
    "len": "the length of a traced value is not known",
    "index": "a traced value cannot be interpreted as an integer",
}


class Question(BaseException):
    """Something that only the example inputs can answer; it passes a user's `except Exception`."""

    def __init__(self, node: fx.Node, what: str) -> None:
        super().__init__(node.name)
        self.node, self.what = node, what

    @property
    def key(self) -> tuple[str, str]:
        """The same in every trace of one model."""
        return self.node.name, self.what


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
    if node.target is getattr:
        holder, name = node.args[0], str(node.args[1])
        inner = topic_of(holder) if isinstance(holder, fx.Node) else None
        return _ATTRIBUTES.get(name) if inner is None else inner
    if node.target not in _OPERATORS:
        return None
    topics = [topic_of(part) for part in node.all_input_nodes]
    known = [topic for topic in topics if topic is not None]
    return max(known) if known and len(known) == len(topics) else None


Asked = fx.Node | tuple[str, Any, tuple[Any, ...], dict[str, Any]]


def to_guard(node: fx.Node, what: str, value: Any) -> list[tuple[Asked, bool | int]]:
    """Return what a graph must ask again of other inputs, a node or a call, and the answer.

    A branch on a number is asked whether that is zero, and `len(x.shape)` for the rank. In which
    floating type a model runs is not asked again: that changes when it is certified.
    """
    if what == "len":
        is_shape = node.target == "size" or (node.target is getattr and node.args[1] == "shape")
        return [(("call_method", "dim", (node.args[0],), {}), len(value))] if is_shape else []
    if topic_of(node) == KIND:
        is_sure = isinstance(value, bool) and _is_sure_of_kind(node)
        return [(node, value)] if is_sure else []
    if what == "index" or isinstance(value, bool):
        return [(node, value)]
    nothing: Any = 0 if isinstance(value, int | float) else ()
    return [(("call_function", operator.ne, (node, nothing), {}), bool(value))]


def _is_sure_of_kind(node: fx.Node) -> bool:
    """Return whether an answer is the same for all floating types."""
    if node.target == "is_floating_point":
        return True
    other = node.args[1] if node.target in (operator.eq, operator.ne) else None
    return isinstance(other, torch.dtype) and not other.is_floating_point


def find_answer(net: nn.Module, question: Question, inputs: ExampleInputs) -> Answer:
    """Run the calls made so far on the example inputs, and see what the question gets."""
    try:
        value = _evaluate(net, question, inputs)
    except Exception as error:
        return Answer(refusal=f"the example inputs give no answer ({error})")
    if topic_of(question.node) == SIZES and question.what == "bool":
        for n_rows in (1, 2, 7):
            try:
                other = _evaluate(net, question, _with_rows(inputs, n_rows))
            except Exception:  # such a batch does not exist for this model
                continue
            if bool(other) != bool(value):
                return Answer(refusal="the answer depends on the size of the batch")
    return Answer(value)


class Asking:
    """What a traced value adds to fx: questions that the example inputs can answer."""

    tracer: Any

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The class of the example's value, for `isinstance` in a user's code."""
        frame = sys._getframe(1)
        if frame.f_code is torch.is_tensor.__code__ and frame.f_back is not None:
            frame = frame.f_back
        if is_ours(frame.f_code.co_filename):
            return type(self)
        return self.tracer.class_of(self)

    def __hash__(self) -> int:
        """Refuse to be looked up by a user's code: no key would be found."""
        if is_ours(sys._getframe(1).f_code.co_filename):
            return id(self)
        raise TraceError("a traced value cannot be the key of a dictionary or in a set")

    def __len__(self) -> int:
        return len(self.tracer.ask(self, "len"))

    def __index__(self) -> int:
        return self.tracer.ask(self, "index")


class AskingProxy(Asking, fx.Proxy):
    """A traced value."""

    def __getattr__(self, k: str) -> "AskingAttribute":
        return AskingAttribute(self, k)


class AskingAttribute(Asking, Attribute):
    """An attribute of a traced value."""

    def __getattr__(self, k: str) -> "AskingAttribute":
        return AskingAttribute(self, k)


def parts_of(proxy: Any, n: int) -> Iterator[Any]:
    """Return the sizes of a shape one by one, as traced values."""
    return iter([proxy[i] for i in range(n)])


def _evaluate(net: nn.Module, question: Question, inputs: ExampleInputs) -> Any:
    graph, wanted = question.node.graph, question.node
    copied = ExampleInputs(*tree_map(_copied, (inputs.args, inputs.kwargs)))
    given = iter(values_for(graph, copied))
    values: dict[fx.Node, Any] = {}
    with evaluating(net), torch.no_grad():
        for node in graph.nodes:
            args, kwargs = map_arg((node.args, node.kwargs), lambda n: values[n])
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "get_attr":
                values[node] = operator.attrgetter(str(node.target))(net)
            else:
                values[node] = call_node(node, net, args, kwargs)
            if node is wanted:
                break
    return values[wanted]


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _with_rows(inputs: ExampleInputs, n_rows: int) -> ExampleInputs:
    """Return inputs with another number of rows in each tensor that has as many as the first."""
    tensors = [x for x in tree_leaves((inputs.args, inputs.kwargs)) if isinstance(x, Tensor)]
    n_now = tensors[0].shape[0] if tensors and tensors[0].dim() else 0

    def change(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.dim() or value.shape[0] != n_now:
            return value
        return value[torch.arange(n_rows, device=value.device) % n_now]

    return ExampleInputs(*tree_map(change, (inputs.args, inputs.kwargs)))
