"""Concrete answers for questions about shapes and types while a model is traced.

A branch on the rank or a size of a tensor has one answer for the example, and tracing goes on
along that branch. The answer may not depend on the values of tensors, nor on the batch size, which
changes from call to call: the calls traced so far are run on the example inputs, and on batches of
other sizes, each call once. Meanwhile nothing is traced: `untraced` says so.
"""

import operator
import sys
import threading
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy
import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.fx.proxy import Attribute

from archlearn.module_utils import copy_model, evaluating, find_module, list_tensors, unnoticed
from archlearn.nn.functional import with_items
from archlearn.op_table import (
    ATTRIBUTES,
    CREATE_LIKE,
    KIND,
    RANK,
    SIZES,
    about_of,
    functions_with_rule,
    saved_calls,
    works_in_place,
)
from archlearn.tracing.example_inputs import ExampleInputs, check_argument, check_kind, values_for
from archlearn.tracing.fx_utils import (
    asks_for_class,
    call_node,
    is_made_of,
    is_message,
    is_ours,
)
from archlearn.tracing.module_state import preserve_state
from archlearn.tracing.rng import preserve_rng
from archlearn.tracing.transformer_blocks import ASKS_FOR_TENSOR

# Ways to memory that is not there, and of making a tensor of what NumPy computes from a size.
_OF_NUMPY = ("__array_struct__", "__array_interface__", "__array_wrap__")
_ASKING = frozenset(
    asking.__code__
    for asking in (torch.is_tensor, *(type(k).__instancecheck__ for k in (nn.Parameter, nn.Buffer)))
)
"""Code of torch by which a user's code asks for a class."""
_SIZES = ("shape", "ndim")
_NEW = functions_with_rule(CREATE_LIKE, "Tensor")
_COUNTS = ("size", "dim", "numel", "ndimension", "nelement", "__len__")


class Asking:
    """What a traced value adds to fx: questions that the example inputs can answer."""

    tracer: Any
    __array_priority__ = Tensor.__array_priority__  # or NumPy's numbers would read it

    @property
    def __class__(self: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The class of the example's value, for `isinstance` in a user's code.

        To torch's kernels, which ask for it as well, it is what it is: they would take it for a
        tensor in memory.
        """
        frame = sys._getframe(1)
        if frame.f_code is ASKS_FOR_TENSOR:
            return Tensor if self.node.op == "get_attr" else self.tracer.class_of(self)
        is_asked = frame.f_code in _ASKING and frame.f_back is not None
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
        tensor = self.tracer.own_tensor(self)
        has_size = k in _SIZES and isinstance(tensor, nn.Parameter)  # a buffer may be exchanged
        if tensor is not None and (has_size or k in vars(tensor)):
            return getattr(tensor, k)
        kind = Tensor if hasattr(Tensor, k) else self.tracer.class_of(self)
        is_foreign = issubclass(kind, Tensor) and not hasattr(kind, k)
        if is_foreign or _has_not(self, k):  # transformers asks whether a tensor is one of jax
            raise AttributeError(k)
        return AskingAttribute(self, k)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Let whoever reads the tensor by its name read the result; a view of it is not told."""
        proxy = self.tracer.create_proxy("call_function", with_items, (self, index, value), {})
        self.node = proxy.node


class AskingAttribute(Asking, Attribute):
    """An attribute of a traced value."""

    def __init__(self, root: fx.Proxy, attr: str) -> None:
        super().__init__(root, attr)
        self.tracer.note_proxy(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call a method; of a parameter, those that ask for its sizes are answered at once."""
        tensor = self.tracer.own_tensor(self.root) if self.attr in _COUNTS else None
        if not isinstance(tensor, nn.Parameter):
            proxy = super().__call__(*args, **kwargs)
            if not works_in_place(self.attr) or type(self.root) is not GuardedProxy:
                return proxy
            self.root.node = proxy.node  # whoever reads the tensor by its name reads the result
            return self.root
        return getattr(tensor, self.attr)(*args, **kwargs)

    def __getattr__(self, k: str) -> "AskingAttribute":
        if _has_not(self, k):
            raise AttributeError(k)
        return AskingAttribute(self, k)


def _has_not(proxy: Any, attribute: str) -> bool:
    """Return whether a traced value lacks what NumPy asks it for."""
    if attribute == "prod":  # np.prod(x.shape[1:]): sizes have no such method
        return topic_of(proxy.node) == SIZES
    return attribute in _OF_NUMPY


_OPERATORS = frozenset(saved_calls("operator", "math").values())
REFUSALS = {
    "bool": "symbolically traced variables cannot be used as inputs to control flow",
    "iter": "a loop over a traced value has as many turns as the data says",
    "len": "the length of a traced value is not known",
    "number": "a traced value cannot be interpreted as a number",
    "text": "the text of a traced value is not known",
    "key": "a traced value cannot be the key of a dictionary or in a set",
}
ANY_SIZE = (
    "a part that needs a size as a number is called as it is, and takes all sizes; with a layer "
    "and an activation among its modules (nn.SiLU, not F.silu) it is followed, for the example's "
    "size"
)
_NUMBERS = ("number", "text", "key")  # what depends on a number itself, not on one bit


class Refusal(BaseException):
    """Why a part cannot be followed; it passes a user's `except Exception`."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the example inputs say, or why they must not be asked."""

    value: Any = None
    refusal: str = ""


def topic_of(node: fx.Node) -> int | None:
    """Return what a number is about, or None if it depends on the values of tensors."""
    if node.op == "call_method":
        return about_of(node.target)
    if node.op != "call_function":
        return None
    if node.target is getattr:
        holder, name = node.args[0], str(node.args[1])
        inner = topic_of(holder) if isinstance(holder, fx.Node) else None
        attribute = ATTRIBUTES.get(name)
        return (attribute.about if attribute else None) if inner is None else inner
    if (about := about_of(node.target)) is not None:
        return about
    if node.target not in _OPERATORS:
        return None
    topics = [topic_of(part) for part in node.all_input_nodes]
    attribute = [topic for topic in topics if topic is not None]
    return max(attribute) if attribute and len(attribute) == len(topics) else None


def describes(user: fx.Node, node: fx.Node) -> bool:
    """Return whether a call reads of a tensor only what type it has and where it is."""
    if user.op == "call_method" and user.target in ("to", "type_as"):
        return user.args[0] is not node
    if user.op == "call_method" and user.target in _NEW:
        return True
    return topic_of(user) == KIND


def compares_kinds(node: fx.Node, net: nn.Module) -> bool:
    """Return whether types are compared of two tensors that the model's own numbers have made.

    These are floating whatever the inputs are: under autocast the answer is another, and nothing
    but a cast follows. So it is not asked again, as the type of an input is.
    """
    parts = node.all_input_nodes if node.target in (operator.eq, operator.ne) else []
    is_pair = len(parts) == 2 and all(topic_of(part) == KIND for part in parts)
    return is_pair and all(_reads_own(part.all_input_nodes, net) for part in parts)


def _reads_own(nodes: Collection[fx.Node], net: nn.Module) -> bool:
    """Return whether a parameter or buffer has a part in some values, but by its sizes or type."""
    waiting, seen = [*nodes], set[fx.Node]()
    while waiting:
        node = waiting.pop()
        if node in seen or topic_of(node) is not None:
            continue
        seen.add(node)
        is_layer = node.op == "call_module" and list_tensors(find_module(net, str(node.target)))
        if is_layer or node.op == "get_attr":
            return True
        waiting += node.all_input_nodes
    return False


Asked = fx.Node | tuple[str, Any, tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Guard:
    """What a graph must ask again of other inputs, a node or a call, and the answer."""

    asked: Asked
    value: Any
    check: Callable[[Any, Any, str], None] = check_argument


def to_guard(node: fx.Node, what: str, value: Any) -> Guard:
    """Return what a graph must ask again of other inputs.

    A branch on a number is asked whether that is zero, and `len(x.shape)` for the rank. In which
    floating type a model runs is not asked while it is certified in another one.
    """
    if what == "len":
        if node.op == "get_attr":
            return Guard(("call_method", "size", (node, 0), {}), len(value))
        is_shape = node.target == "size" or (node.target is getattr and node.args[1] == "shape")
        name, asked = ("dim", node.args[0]) if is_shape else ("__len__", node)
        return Guard(("call_method", name, (asked,), {}), len(value))
    if topic_of(node) == KIND:  # some answers are the same for all floating types
        other = node.args[1] if node.target in (operator.eq, operator.ne) else None
        is_sure = isinstance(other, torch.dtype) and not other.is_floating_point
        is_sure |= node.target in ("is_floating_point", torch.is_floating_point)
        return Guard(node, bool(value), check_argument if is_sure else check_kind)
    if what in _NUMBERS:
        return Guard(node, tuple(value) if isinstance(value, tuple) else value)
    if isinstance(value, bool):
        return Guard(node, value)
    nothing: Any = 0 if isinstance(value, int | float) else ()
    asked = ("call_function", operator.ne, (node, nothing), {})
    return Guard(asked, bool(value))


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


def is_own(node: fx.Node) -> bool:
    """Return whether a value depends on the model alone, and not on its inputs."""
    return is_made_of(node, lambda part: part.op == "get_attr")


def with_rows(inputs: ExampleInputs, n_rows: int) -> ExampleInputs:
    """Return inputs with another number of rows in each tensor that has as many as the first."""
    tensors = inputs.tensors()
    n_now = tensors[0].shape[0] if tensors and tensors[0].dim() else 0

    def change(x: Tensor) -> Tensor:
        if not n_now or not x.dim() or x.shape[0] != n_now:  # of no rows, none are made
            return x
        return x[torch.arange(n_rows, device=x.device) % n_now]

    return inputs.map(change)


_AS_SIZES = "write int(a / b) as a // b, and np.sqrt(a) or np.prod(a) as those of math"
_OTHER_ROWS = (1, 2, 7)
_LARGE = 2**16  # numbers; smaller tensors are not worth the trouble of letting them go
_READ: dict[str, Callable[[Any], Any]] = {"bool": bool, "len": len}
_STATE = threading.local()


def is_untraced() -> bool:
    """Return whether calls of this thread are no part of a trace now."""
    return getattr(_STATE, "is_untraced", False)


@contextmanager
def untraced() -> Generator[None]:
    """Let this thread make calls that are no part of the trace under way."""
    before, _STATE.is_untraced = is_untraced(), True
    try:
        yield
    finally:
        _STATE.is_untraced = before


class ExampleRuns:
    """Runs of the calls traced so far."""

    def __init__(self, net: nn.Module, inputs: ExampleInputs) -> None:
        self.net, self.inputs = net, inputs
        self.answers: dict[tuple[fx.Node, str], Answer] = {}
        self._run = _Run(net, inputs)
        others = [with_rows(inputs, n) for n in _OTHER_ROWS]
        sizes = [tensor.shape for tensor in inputs.tensors()]
        self._others = [
            _Run(net, other, on_meta=True)
            for other in others
            if [tensor.shape for tensor in other.tensors()] != sizes
        ]

    def answer(self, node: fx.Node, what: str, live: Callable[[], Collection[fx.Node]]) -> Answer:
        """Return what the example inputs say, or why they must not be asked.

        `live` gives the calls whose results may still be read; others are forgotten.
        """
        if (node, what) not in self.answers:
            with ExitStack() as stack:
                for context in (untraced(), unnoticed(), evaluating(self.net), torch.no_grad()):
                    stack.enter_context(context)
                stack.enter_context(preserve_rng(self.inputs))
                self.answers[node, what] = self._find(node, what)
                for run in (self._run, *self._others):
                    run.forget(live)
        return self.answers[node, what]

    def _find(self, node: fx.Node, what: str) -> Answer:
        try:
            value = self._run.value_of(node)
        except Exception as error:
            return Answer(refusal=f"the example inputs give no answer ({error})")
        read = _READ.get(what, lambda result: result)
        for other in self._others if _may_hang_on_batch(node, what) else ():
            try:
                result = other.value_of(node)
            except Exception:  # such a batch does not exist for this model
                continue
            if read(result) != read(value):
                hint = f"; {_AS_SIZES}" if what == "number" else ""
                return Answer(refusal=f"the answer depends on the size of the batch{hint}")
        return Answer(value)


class _Run:
    """One run, which goes on where it stopped.

    On the meta device it has sizes and no numbers. Where some call needs numbers, or does not know
    that device, all is run anew with numbers.
    """

    def __init__(self, net: nn.Module, inputs: ExampleInputs, *, on_meta: bool = False) -> None:
        self.net, self.inputs, self._on_meta = net, inputs, on_meta
        self._on_meta_device: dict[str, nn.Module] = {}
        self.values: dict[fx.Node, Any] = {}
        # As they are now: `forward` may set one to what a call returns.
        self._held = dict(net.named_buffers(remove_duplicate=False))
        self._buffers: dict[str, Any] = {}
        self._last: fx.Node | None = None
        self._given: Iterator[Any] = iter(())
        self._error: Exception | None = None
        self._n_large = 0

    def value_of(self, node: fx.Node) -> Any:
        """Return what a call returned, or raise what one before it did."""
        if node not in self.values:
            with torch.device("meta") if self._on_meta else nullcontext():
                self._go_on_(node.graph)
        if node not in self.values and self._error is not None:
            if not self._on_meta:
                raise self._error
            self._on_meta, self._last, self._error = False, None, None
            self.values, self._buffers, self._on_meta_device = {}, {}, {}
            return self.value_of(node)
        return self.values[node]

    def _go_on_(self, graph: fx.Graph) -> None:
        """Run all calls that were traced since."""
        if self._last is None:
            inputs = self.inputs.to("meta") if self._on_meta else self.inputs.copy()
            self._given = iter(values_for(graph, inputs))
        call = graph._root.next if self._last is None else self._last.next
        while call.op != "root" and self._error is None:
            try:
                self.values[call] = self._call(call)
                self._n_large += _is_large(self.values[call])
                self._last, call = call, call.next
            except Exception as error:
                self._error = error

    def forget(self, live: Callable[[], Collection[fx.Node]]) -> None:
        """Let large results go that nothing can read any more."""
        if self._n_large:
            live_nodes, self._n_large = live(), 0
            for node in [n for n, v in self.values.items() if _is_large(v) and n not in live_nodes]:
                del self.values[node]

    def _call(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return next(self._given)
        if node.op == "get_attr":
            return self._read(str(node.target))
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: self.values[n])
        if node.op != "call_module":
            return call_node(node, self.net, args, kwargs)
        name = str(node.target)
        module = find_module(self.net, name)
        if self._on_meta:
            if name not in self._on_meta_device:
                tensors = (*module.parameters(), *module.buffers())
                memo = {id(tensor): tensor.detach().to("meta") for tensor in tensors}
                self._on_meta_device[name] = copy_model(module, memo)
            return self._on_meta_device[name](*args, **kwargs)
        if type(module).__module__.startswith("torch.nn."):
            return module(*args, **kwargs)
        with preserve_state(module):  # it may count its calls
            return module(*args, **kwargs)

    def _read(self, target: str) -> Any:
        """Return a parameter, or this run's own copy of a buffer: calls may count in it."""
        if target not in self._buffers:
            value = self._held.get(target)
            value = operator.attrgetter(target)(self.net) if value is None else value
            is_buffer = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
            if self._on_meta and isinstance(value, Tensor):
                self._buffers[target] = value.detach().to("meta")
            else:
                self._buffers[target] = value.clone() if is_buffer else value
        return self._buffers[target]


def _is_large(value: Any) -> bool:
    return isinstance(value, Tensor) and value.numel() > _LARGE


def _may_hang_on_batch(node: fx.Node, what: str) -> bool:
    topic = topic_of(node)
    if is_own(node):
        return False
    if what == "len":  # of a shape, that is a rank; of parts, it may be anything
        return topic is None
    return topic == SIZES and what != "class"
