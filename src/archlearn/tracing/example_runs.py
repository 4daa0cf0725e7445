"""Run the calls traced so far on the example, to answer questions about shapes.

Those calls are run on the example inputs, and on batches of other sizes to see whether the answer
hangs on that; each call is run once. Meanwhile nothing is traced: `untraced` says so.
"""

import operator
import threading
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from archlearn.module_utils import evaluating, find_module, unnoticed
from archlearn.tracing.example_inputs import ExampleInputs, values_for
from archlearn.tracing.fx_utils import call_node
from archlearn.tracing.module_state import preserve_state
from archlearn.tracing.rng import putting_back
from archlearn.tracing.shape_guards import SIZES, Answer, is_own, topic_of, with_rows

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
    """Runs of the calls traced so far.

    Args:
        net: The model that is traced.
        inputs: Its example inputs.
    """

    def __init__(self, net: nn.Module, inputs: ExampleInputs) -> None:
        self.net, self.inputs = net, inputs
        self.answers: dict[tuple[fx.Node, str], Answer] = {}
        self._run = _Run(net, inputs)
        self._others = [_Run(net, with_rows(inputs, n)) for n in _OTHER_ROWS]

    def answer(self, node: fx.Node, what: str, live: Callable[[], Collection[fx.Node]]) -> Answer:
        """Return what the example inputs say, or why they must not be asked.

        Args:
            node: The call that is asked about.
            what: What is asked.
            live: Gives the calls whose results may still be read.
        """
        if (node, what) not in self.answers:
            with ExitStack() as stack:
                for context in (untraced(), unnoticed(), evaluating(self.net), torch.no_grad()):
                    stack.enter_context(context)
                stack.enter_context(putting_back(self.inputs))
                self.answers[node, what] = self._find(node, what)
                for run in (self._run, *self._others):
                    run.forget(live)
        return self.answers[node, what]

    def _find(self, node: fx.Node, what: str) -> Answer:
        try:
            value = self._run.value_of(node)
        except Exception as error:
            return Answer(refusal=f"the example inputs give no answer ({error})")
        read = _READ.get(what, lambda found: found)
        for other in self._others if _may_hang_on_batch(node, what) else ():
            try:
                found = other.value_of(node)
            except Exception:  # such a batch does not exist for this model
                continue
            if read(found) != read(value):
                return Answer(refusal="the answer depends on the size of the batch")
        return Answer(value)


class _Run:
    """One run, which goes on where it stopped."""

    def __init__(self, net: nn.Module, inputs: ExampleInputs) -> None:
        self.net, self.inputs = net, inputs
        self.values: dict[fx.Node, Any] = {}
        self._buffers: dict[str, Any] = {}
        self._last: fx.Node | None = None
        self._given: Iterator[Any] = iter(())
        self._error: Exception | None = None
        self._n_large = 0

    def value_of(self, node: fx.Node) -> Any:
        """Return what a call returned.

        Raises:
            Exception: What a call raised before that.
        """
        if node not in self.values:
            self._go_on(node.graph)
        if node not in self.values and self._error is not None:
            raise self._error
        return self.values[node]

    def forget(self, live: Callable[[], Collection[fx.Node]]) -> None:
        """Let large results go that nothing can read any more."""
        if self._n_large:
            known, self._n_large = live(), 0
            for node in [n for n, v in self.values.items() if _is_large(v) and n not in known]:
                del self.values[node]

    def _go_on(self, graph: fx.Graph) -> None:
        """Run all calls that were traced since."""
        if self._last is None:
            self._given = iter(values_for(graph, self.inputs.copy()))
        node = graph._root.next if self._last is None else self._last.next
        while node.op != "root" and self._error is None:
            try:
                self.values[node] = self._call(node)
                self._n_large += _is_large(self.values[node])
                self._last, node = node, node.next
            except Exception as error:
                self._error = error

    def _call(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return next(self._given)
        if node.op == "get_attr":
            return self._read(str(node.target))
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: self.values[n])
        if node.op != "call_module":
            return call_node(node, self.net, args, kwargs)
        module = find_module(self.net, str(node.target))
        if type(module).__module__.startswith("torch.nn."):
            return module(*args, **kwargs)
        with preserve_state(module):  # it may count its calls
            return module(*args, **kwargs)

    def _read(self, target: str) -> Any:
        """Return a parameter, or this run's own copy of a buffer: calls may count in it."""
        if target not in self._buffers:
            value = operator.attrgetter(target)(self.net)
            is_buffer = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
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
