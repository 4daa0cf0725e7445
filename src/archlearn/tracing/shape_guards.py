"""Concrete answers for questions about shapes and types while a model is traced.

The text of a size is a message, or something to decide by; a class is asked for, or looked up.

A branch on the rank or a size of a tensor has one answer for the example, and tracing goes on
along that branch. The answer may not hang on the batch size, which changes from call to call,
nor on the values of tensors.
"""

import ast
import dis
import itertools
import linecache
import math
import operator
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import Any

import numpy
import torch
from torch import Tensor, fx
from torch.fx.proxy import Attribute
from torch.utils._pytree import tree_leaves, tree_map

from archlearn.op_table import works_in_place
from archlearn.tracing.example_inputs import ExampleInputs, check_argument, check_kind
from archlearn.tracing.fx_utils import is_ours
from archlearn.tracing.transformer_blocks import ASKS_FOR_TENSOR

_SPEAKING = frozenset({
    "_assert", "print", "debug", "info", "warning", "warn", "error", "exception", "critical", "log",
})  # fmt: skip
_SPEAKERS = ("logging", "warnings", "traceback")


def is_message(frame: FrameType) -> bool:
    """Return whether the text that is made at a frame is only printed, logged or raised."""
    if str(frame.f_globals.get("__name__")).split(".")[0] in _SPEAKERS:
        return True
    statement = _find_statement(frame.f_code.co_filename, frame.f_lineno)
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


def _find_statement(path: str, line: int) -> ast.stmt | None:
    """Return the innermost statement of a file that holds a line."""
    around = [
        node for node in _statements(path) if node.lineno <= line <= (node.end_lineno or line)
    ]
    return min(around, key=lambda node: (node.end_lineno or 0) - node.lineno, default=None)


@lru_cache(maxsize=64)
def _statements(path: str) -> tuple[ast.stmt, ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.stmt))


_OF_NUMPY = ("__array_struct__", "__array_interface__")  # ways to memory that is not there
_SIZES = ("shape", "ndim")
_COUNTS = ("size", "dim", "numel", "ndimension", "nelement", "__len__")


class Asking:
    """What a traced value adds to fx: questions that the example inputs can answer."""

    tracer: Any

    @property
    def __class__(self: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The class of the example's value, for `isinstance` in a user's code.

        To torch's kernels, which ask for it as well, it is what it is: they would take it for a
        tensor in memory.
        """
        frame = sys._getframe(1)
        if frame.f_code is ASKS_FOR_TENSOR:
            return Tensor if self.node.op == "get_attr" else self.tracer.class_of(self)
        is_asked = frame.f_code is torch.is_tensor.__code__ and frame.f_back is not None
        if is_asked and frame.f_back is not None:
            frame = frame.f_back
        if is_ours(frame.f_code.co_filename):  # torch itself asks thousands of times: be quick
            return type(self)
        return self.tracer.class_of(self) if is_asked or asks_for_class(frame) else type(self)

    def __hash__(self) -> int:
        if is_ours(sys._getframe(1).f_code.co_filename):
            return id(self)
        return hash(self.tracer.ask(self, "key"))

    def __len__(self) -> int:
        return len(self.tracer.ask(self, "len"))

    def __index__(self) -> int:
        return operator.index(self.tracer.ask(self, "number"))

    def __int__(self) -> int:
        return int(self.tracer.ask(self, "number"))

    def __float__(self) -> float:
        return float(self.tracer.ask(self, "number"))

    def __round__(self, n_digits: int | None = None) -> Any:
        return round(self.tracer.ask(self, "number"), n_digits)

    def __array__(self, *_: Any, **__: Any) -> Any:
        """NumPy reads a size as a number."""
        return numpy.asarray(self.tracer.ask(self, "number"))

    def __str__(self) -> str:
        return str(self._value_for_text(sys._getframe(1)))

    def __repr__(self) -> str:
        return repr(self._value_for_text(sys._getframe(1)))

    def __format__(self, spec: str) -> str:
        return format(self._value_for_text(sys._getframe(1)), spec)

    def _value_for_text(self: Any, frame: FrameType) -> Any:
        """Return the example's value if `forward` decides by its text; a message may say less."""
        if is_ours(frame.f_code.co_filename):
            return f"{type(self).__name__}({self.node.name})"
        if is_message(frame):
            return f"<{self.node.name}>"
        return self.tracer.ask(self, "text")


class GuardedProxy(Asking, fx.Proxy):
    """A traced value."""

    def __getattr__(self, k: str) -> Any:
        if k in _OF_NUMPY or self.tracer.lacks(self, k):
            raise AttributeError(k)
        own = self.tracer.own_parameter(self) if k in _SIZES else None
        return AskingAttribute(self, k) if own is None else getattr(own, k)


class AskingAttribute(Asking, Attribute):
    """An attribute of a traced value."""

    def __init__(self, root: fx.Proxy, attr: str) -> None:
        super().__init__(root, attr)
        self.tracer.note_proxy(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call a method; of a parameter, those that ask for its sizes are answered at once."""
        own = self.tracer.own_parameter(self.root) if self.attr in _COUNTS else None
        if own is None:
            made = super().__call__(*args, **kwargs)
            if not works_in_place(self.attr) or type(self.root) is not GuardedProxy:
                return made
            self.root.node = made.node  # whoever reads the tensor by its name reads the result
            return self.root
        return getattr(own, self.attr)(*args, **kwargs)

    def __getattr__(self, k: str) -> "AskingAttribute":
        if k in _OF_NUMPY:
            raise AttributeError(k)
        return AskingAttribute(self, k)


def parts_of(proxy: Any, n: int) -> Iterator[Any]:
    """Return the sizes of a shape one by one, as traced values."""
    return iter([proxy[i] for i in range(n)])


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
