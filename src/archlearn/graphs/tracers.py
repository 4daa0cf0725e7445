"""A tracer follows every call of a model, and asks the example inputs where Python must decide."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import fx, nn
from torch.fx.proxy import TraceError

from archlearn.graphs.contexts import check_gradients
from archlearn.graphs.draws import Stand, check_draws
from archlearn.graphs.inputs import (
    Argument,
    ExampleInputs,
    bind_arguments,
    check_argument,
    check_given,
    is_plain,
)
from archlearn.graphs.lookups import find_module
from archlearn.graphs.proxies import AskingProxy, parts_of
from archlearn.graphs.questions import (
    REFUSALS,
    Answer,
    Guard,
    Question,
    Refusal,
    may_ask,
    to_guard,
    topic_of,
)
from archlearn.graphs.remnants import Remnants
from archlearn.graphs.rules.activations import FUNCTIONS
from archlearn.graphs.sources import describe_failure, note_source, source_of
from archlearn.graphs.transformers import BLOCKS, without_hint
from archlearn.responses import LocalResponse, NarrowedLocalResponseNorm
from archlearn.tristate import TriState

Leaf = str | type[nn.Module]


class UntraceableError(Exception):
    """Carries the innermost submodule that could not be followed out of the trace."""

    def __init__(self, name: str, module: nn.Module, reason: str) -> None:
        super().__init__(name)
        self.name, self.module, self.reason = name, module, reason


class Follower(fx.Tracer):
    """Follows everything but torch's own layers, tri-state activations and leaves."""

    proxy_buffer_attributes = True  # or what is computed from buffers would be a constant

    def __init__(
        self,
        leaves: Sequence[Leaf],
        inputs: ExampleInputs | None,
        answers: dict[tuple[str, str], Answer],
        *,
        is_strict: bool = False,
    ) -> None:
        super().__init__()
        self._is_strict = is_strict
        self._thread = threading.get_ident()
        self._leaf_names = {leaf for leaf in leaves if isinstance(leaf, str)}
        self._leaf_classes = tuple(leaf for leaf in leaves if not isinstance(leaf, str))
        self._inputs, self._answers = inputs, answers
        self._can_answer = inputs is not None and inputs.are_real
        self.answered: dict[str, str] = {}

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        """Return the calls of a model, without parameters that were only asked for their sizes."""
        graph = super().trace(root, concrete_args)
        for node in reversed(graph.nodes):
            if node.op == "get_attr" and not node.users:
                graph.erase_node(node)
        return graph

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module is called as it is."""
        marked = module_qualified_name in self._leaf_names or isinstance(m, self._leaf_classes)
        return (
            marked
            or isinstance(m, TriState | LocalResponse | NarrowedLocalResponseNorm)
            or (super().is_leaf_module(m, module_qualified_name) and not isinstance(m, BLOCKS))
        )

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Return a new call, with the line that made it."""
        node = super().create_node(*args, **kwargs)
        _name_by_position_(node)
        if node.op.startswith("call") and topic_of(node) is None:
            check_gradients(node.target)
        note_source(node)
        return node

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Return a traced value that can be asked about its shape."""
        return AskingProxy(node, self)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Answer `if` from the example inputs."""
        return bool(self.ask(obj, "bool"))

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """Return the sizes of a shape one by one, or the parts that a tensor is split into."""
        has_parts = obj.node.op == "get_attr" or self.class_of(obj) in (tuple, list)
        if topic_of(obj.node) is None and not has_parts:
            try:
                return super().iter(obj)
            except TraceError:
                raise Refusal(REFUSALS["iter"]) from None
        return parts_of(obj, len(self.ask(obj, "len")))

    def ask(self, proxy: Any, what: str) -> Any:
        """Return what the example inputs say, and note that it was asked.

        Raises:
            Refusal: If the question is about values, or its answer may change.
        """
        node: fx.Node = proxy.node
        is_parts = what == "len" and self.class_of(proxy) in (tuple, list)
        if not is_parts and not may_ask(node, what, at_top=len(self.module_stack) < 1):
            raise Refusal(REFUSALS[what])
        if not self._can_answer:
            raise Refusal(f"{REFUSALS[what]}: give example_inputs, which answer for shapes")
        answer = self._answer(node, what)
        if answer.refusal:
            raise Refusal(f"{REFUSALS[what]}: {answer.refusal}")
        for guard in to_guard(node, what, answer.value):
            self._guard(node, guard)
        return answer.value

    def own_parameter(self, proxy: Any) -> nn.Parameter | None:
        """Return the parameter that a traced value is as it stands, whose sizes are known."""
        if proxy.node.op != "get_attr":
            return None
        owner, _, attribute = str(proxy.node.target).rpartition(".")
        return find_module(self.root, owner)._parameters.get(attribute)

    def class_of(self, proxy: Any) -> Any:
        """Return the class of the value that the example inputs give."""
        node: fx.Node = proxy.node
        if not self._can_answer or not node.op.startswith(("call", "placeholder")):
            return type(proxy)
        answer = self._answer(node, "class")
        return type(proxy) if answer.refusal else type(answer.value)

    def _answer(self, node: fx.Node, what: str) -> Answer:
        question = Question(node, what)
        if question.key not in self._answers:
            raise question
        return self._answers[question.key]

    def _guard(self, node: fx.Node, guard: Guard) -> None:
        """Let the graph refuse inputs for which the answer would be another one."""
        line, value, asked = source_of(node) or node.name, guard.value, guard.asked
        said = self.answered.setdefault(line, str(value))
        if str(value) not in said.split(", then "):
            self.answered[line] = f"{said}, then {value}"
        made = asked if isinstance(asked, fx.Node) else self.create_node(*asked)
        what = f"what forward asks at {line}"
        self.create_node("call_function", guard.check, (made, value, what), {})

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Follow a module, or say that it cannot be followed."""
        if threading.get_ident() != self._thread:  # torch.fx hears of every call that is made
            return forward(*args, **kwargs)
        check_gradients()  # whoever switched them off is the caller
        if not args and set(kwargs) == {"input"} and type(m).__module__.startswith("torch.nn"):
            args, kwargs = (kwargs["input"],), {}
        if not self.is_leaf_module(m, self.path_of_module(m)):
            args, kwargs = without_hint(m, args, kwargs)
        before = (Stand.now(), Remnants([m])) if self._is_strict else None
        try:
            out = super().call_module(m, forward, args, kwargs)
            if before is not None:
                check_draws(before[0])
                before[1].check()
            return out
        except UntraceableError:
            raise
        except (Exception, Refusal) as error:
            raise UntraceableError(self.path_of_module(m), m, describe_failure(error)) from error

    def create_args_for_root(
        self,
        root_fn: Callable[..., Any],
        is_module: bool,
        concrete_args: dict[str, Any] | tuple[Any, ...] | None = None,
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Return `forward` with all but tensors filled in, and a traced value for each argument."""
        if self._inputs is None:
            return super().create_args_for_root(root_fn, is_module, concrete_args)
        arguments = bind_arguments(root_fn, type(self.root).__name__, self._inputs)
        proxies = [self._placeholder(a, arguments[:i]) for i, a in enumerate(arguments)]

        def call(*given: Any) -> Any:
            args: list[Any] = []
            keywords: dict[str, Any] = {}
            for argument, proxy in zip(arguments, given, strict=True):
                value = proxy if argument.is_followed else argument.value
                if not argument.is_followed:
                    checked = (proxy, argument.held(), argument.name)
                    self.create_proxy("call_function", check_argument, checked, {})
                elif proxy.node.args:
                    self.create_proxy("call_function", check_given, (proxy, argument.name), {})
                if argument.by_keyword:
                    keywords[argument.name] = value
                else:
                    args.append(value)
            whole, named = without_hint(self.root, args, keywords)
            return root_fn(self.root, *whole, **named)

        return call, proxies

    def _placeholder(self, argument: "Argument", before: "list[Argument]") -> fx.Proxy:
        if argument.is_followed and all(other.is_followed for other in before):
            return self.create_proxy("placeholder", argument.name, (), {})
        default = argument.default if is_plain(argument.default) else None
        return self.create_proxy("placeholder", argument.name, (default,), {})


def _name_by_position_(node: fx.Node) -> None:
    """Let an activation have its input where all others have it, if it was given by name."""
    if node.target in FUNCTIONS and not node.args and "input" in node.kwargs:
        node.args = (node.kwargs["input"],)
        node.kwargs = {name: value for name, value in node.kwargs.items() if name != "input"}
