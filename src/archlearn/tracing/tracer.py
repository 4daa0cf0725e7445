"""`ArchTracer`: torch.fx tracer that asks the example where Python must decide."""

import operator
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.proxy import TraceError
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from archlearn.module_utils import find_module
from archlearn.nn.functional import linear_by_columns
from archlearn.nn.norms import LocalResponse, NarrowedLocalResponseNorm
from archlearn.nn.tristate_activation import TriState
from archlearn.op_table import ACTIVATE, KIND, SIZES, can_learn, spec_of_function
from archlearn.tracing.block_hooks import BlockCall, name_nodes
from archlearn.tracing.example_inputs import (
    Argument,
    ExampleInputs,
    bind_arguments,
    check_argument,
    check_given,
    check_keywords,
    further_keywords,
    is_plain,
    ones_if_left_out,
    positions_if_left_out,
)
from archlearn.tracing.fx_utils import (
    BLOCK_CALLS,
    describe_failure,
    find_parameter,
    note_source,
    source_of,
)
from archlearn.tracing.module_state import ModuleState
from archlearn.tracing.output_types import construction_of
from archlearn.tracing.plain_calls import (
    find_gelu,
    join_cleared_parts_,
    read_creations_,
    read_layers_,
    read_shapes_,
)
from archlearn.tracing.recurrent_cells import recurrent_cell
from archlearn.tracing.rng import DRAWN, SKIPPED, RngState, check_draws, find_sure_answer, is_drawn
from archlearn.tracing.shape_guards import (
    ANY_SIZE,
    REFUSALS,
    ExampleRuns,
    Guard,
    GuardedProxy,
    Refusal,
    compares_kinds,
    is_untraced,
    may_ask,
    to_guard,
    topic_of,
)
from archlearn.tracing.trace_context import check_gradients
from archlearn.tracing.transformer_blocks import (
    BLOCKS,
    config_flags,
    is_pretrained,
    multihead_attention,
    without_hint,
)

Leaf = str | type[nn.Module]
_OF_TWO: dict[Any, Any] = {
    **dict.fromkeys((torch.max, "max"), torch.maximum),
    **dict.fromkeys((torch.min, "min"), torch.minimum),
}
_PACKED = (
    "it packs sequences of several lengths (pack_padded_sequence), which is not followed; pack, "
    "call the recurrent layer and pad in a submodule of its own, which is called as it is"
)
_EMPTY, _ZEROS = torch.empty, torch.zeros  # while a model is traced, torch has others


class UntraceableError(Exception):
    """Carries the innermost submodule that could not be followed out of the trace."""

    def __init__(self, name: str, module: nn.Module, reason: str) -> None:
        super().__init__(name)
        self.name, self.module, self.reason = name, module, reason


def _keep_sizes_(module: nn.Module, held: dict[str, Any]) -> None:
    """Let attributes that a call set to the size they had, as Swin does, be as they were."""
    for name, value in vars(module).items():
        is_size = isinstance(value, fx.Proxy) and topic_of(value.node) == SIZES
        if is_size and isinstance(held.get(name), int) and value == held[name]:
            vars(module)[name] = held[name]


class ArchTracer(fx.Tracer):
    """Follows everything but torch's own layers, tri-state activations and leaves."""

    proxy_buffer_attributes = True  # or what is computed from buffers would be a constant

    def __init__(
        self,
        leaves: Sequence[Leaf],
        inputs: ExampleInputs | None,
        *,
        is_strict: bool = False,
    ) -> None:
        super().__init__()
        self._is_strict = is_strict
        self._thread = threading.get_ident()
        self._leaf_names = {leaf for leaf in leaves if isinstance(leaf, str)}
        self._leaf_classes = tuple(leaf for leaf in leaves if not isinstance(leaf, str))
        self._inputs = inputs
        self._installed: set[nn.Module] = set()
        self._unfolded: nn.Module | None = None
        self._proxies: list[weakref.ref[Any]] = []
        self._runs: ExampleRuns | None = None
        self._open_blocks: list[int] = []
        self._blocks: dict[int, BlockCall] = {}
        self.answered: dict[str, str] = {}

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        """Return the calls of a model, without parameters that were only asked for their sizes.

        Nor with a mean that nobody reads: `nn.MultiheadAttention` returns that of its weights; nor
        with types that were compared.
        """
        self._installed = set(root.modules())
        if self._inputs is not None and self._inputs.are_real:
            self._runs = ExampleRuns(root, self._inputs)
        graph = super().trace(root, concrete_args)
        for node in reversed(graph.nodes):
            is_idle = node.op == "get_attr" or node.target == "mean" or topic_of(node) == KIND
            if is_idle and not node.users:
                graph.erase_node(node)
        read_shapes_(graph)
        read_creations_(graph)
        join_cleared_parts_(graph)
        read_layers_(graph, root)
        return graph

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module is called as it is."""
        marked = module_qualified_name in self._leaf_names or isinstance(m, self._leaf_classes)
        return (
            marked
            or isinstance(m, TriState | LocalResponse | NarrowedLocalResponseNorm)
            or (
                super().is_leaf_module(m, module_qualified_name)
                and not _is_parametrized_class_of_users(m)
                and not isinstance(m, BLOCKS)
                and m is not self._unfolded
            )
        )

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Return a new call, with the line that made it."""
        node = super().create_node(*args, **kwargs)
        _name_by_position_(node)
        if node.op.startswith("call") and topic_of(node) is None:
            check_gradients(node.target)
        note_source(node)
        node.meta[BLOCK_CALLS] = tuple(self._open_blocks)
        return node

    def create_arg(self, a: Any) -> Any:
        """Return an argument, or what `forward` returns, with its own type."""
        if isinstance(a, numpy.generic):  # generated code could not name it
            a = a.item()
        if isinstance(a, type) and isinstance(getattr(a, "dtype", None), torch.dtype):
            return a.dtype  # of torch.FloatTensor, as in x.type(torch.FloatTensor)
        construction = construction_of(a)
        if construction is None:
            try:
                return super().create_arg(a)
            except NotImplementedError as error:
                if isinstance(a, type):
                    raise TypeError(f"a trace cannot hold the class {a.__name__}") from error
                is_cache = type(a).__name__.endswith("Cache")
                fix = "return or pass on tensors in tuples, dicts or dataclasses"
                raise TypeError(
                    f"{type(a).__name__} is no container that a trace can hold; "
                    f"{'put use_cache=False into example_inputs' if is_cache else fix}"
                ) from error
        kind, args, kwargs = construction
        return self.create_node(
            "call_function", kind, self.create_arg(args), self.create_arg(kwargs)
        )

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Return a traced value that can be asked about its shape."""
        guarded = GuardedProxy(node, self)
        self.note_proxy(guarded)
        return guarded

    def create_proxy(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, kind: str, target: Any, args: Any, kwargs: Any, *options: Any, **more: Any
    ) -> Any:
        """Record a call, or make it if nothing is traced now."""
        if is_untraced() and kind == "call_function":
            return target(*args, **kwargs)
        if target is _EMPTY:  # no file may show what was in memory
            target, kwargs = _ZEROS, {k: v for k, v in kwargs.items() if k != "memory_format"}
        if target is torch._VF._pack_padded_sequence:
            raise Refusal(_PACKED)
        two = _OF_TWO.get(target)
        if two is not None and len(args) == 2 and all(map(self.is_tensor, args)):
            return super().create_proxy("call_function", two, args, kwargs)
        if target is F.linear and (parts := _split_linear(args, kwargs)) is not None:
            x, weight, bias = parts
            product = super().create_proxy("call_function", F.linear, (x, weight), {})
            return super().create_proxy("call_function", operator.add, (product, bias), {})
        return super().create_proxy(kind, target, args, kwargs, *options, **more)

    def try_to_follow(self, function: Any, record: Any, args: Any, kwargs: Any) -> Any:
        """Follow a function, or record it as one call if that fails."""
        before, answered = set(self.graph.nodes), dict(self.answered)
        try:
            return function(*args, **kwargs)
        except (Exception, Refusal):
            self.answered = answered
            for node in reversed([node for node in self.graph.nodes if node not in before]):
                self.graph.erase_node(node)
            return record(*args, **kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Return a module's parameter or buffer as a traced value, or as it is."""
        if is_untraced():
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

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
        parts: Any = obj
        return iter([parts[i] for i in range(len(self.ask(obj, "len")))])

    def ask(self, proxy: Any, what: str) -> Any:
        """Return what the example inputs say, and note that it was asked."""
        node: fx.Node = proxy.node
        if is_drawn(node):
            sure = find_sure_answer(node) if what == "bool" else None
            if sure is None:
                raise Refusal(SKIPPED if what == "bool" else DRAWN)
            return sure
        is_parts = what == "len" and self.class_of(proxy) in (tuple, list)
        if not is_parts and not may_ask(node, what, may_fix_sizes=self._may_fix_sizes()):
            why = f": {ANY_SIZE}" if topic_of(node) == SIZES else ""
            raise Refusal(f"{REFUSALS[what]}{why}")
        if self._runs is None:
            raise Refusal(f"{REFUSALS[what]}: give example_inputs, which answer for shapes")
        answer = self._runs.answer(node, what, self._find_live)
        if answer.refusal:
            raise Refusal(f"{REFUSALS[what]}: {answer.refusal}")
        if not compares_kinds(node, self.root):
            self._guard(node, to_guard(node, what, answer.value))
        return answer.value

    def _may_fix_sizes(self) -> bool:
        """Return whether sizes of the example may become part of the trace.

        A submodule that needs a size as a number is rather called as it is, for then it takes all
        sizes, unless there is something to learn in it.
        """
        if not self.module_stack:
            return True
        inner = find_module(self.root, next(reversed(self.module_stack.values()))[0])
        alike = [m for m in self.root.modules() if type(m) is type(inner)]
        return any(map(can_learn, alike))  # one that is not looked into, none is

    def own_tensor(self, proxy: Any) -> Tensor | None:
        """Return the parameter or buffer that a traced value is as it stands."""
        if proxy.node.op != "get_attr":
            return None
        owner, _, attribute = str(proxy.node.target).rpartition(".")
        module = find_module(self.root, owner)
        return {**module._buffers, **module._parameters}.get(attribute)

    def class_of(self, proxy: Any) -> Any:
        """Return the class of the value that the example inputs give."""
        node: fx.Node = proxy.node
        if self._runs is None:
            return type(proxy)
        answer = self._runs.answer(node, "class", self._find_live)
        return type(proxy) if answer.refusal else type(answer.value)

    def is_tensor(self, value: Any) -> bool:
        """Return whether a value is traced, and a tensor."""
        is_traced = isinstance(value, fx.Proxy)
        return is_traced and (
            value.node.op == "get_attr" or issubclass(self.class_of(value), Tensor)
        )

    def note_proxy(self, proxy: fx.Proxy) -> None:
        """Remember a traced value for as long as anybody holds it."""
        self._proxies.append(weakref.ref(proxy))

    def _find_live(self) -> set[fx.Node]:
        """Return the calls whose results `forward` may still read."""
        self._proxies = [ref for ref in self._proxies if ref() is not None]
        held = [vars(ref()) for ref in self._proxies]
        nodes: list[Any] = [fields.get("node") or fields.get("_node") for fields in held]
        return {node for node in nodes if node is not None}

    def _guard(self, node: fx.Node, guard: Guard) -> None:
        """Let the graph refuse inputs for which the answer would be another one."""
        line, value, asked = source_of(node) or node.name, guard.value, guard.asked
        answers = self.answered.setdefault(line, str(value))
        if str(value) not in answers.split(", then "):
            self.answered[line] = f"{answers}, then {value}"
        asked_node = asked if isinstance(asked, fx.Node) else self.create_node(*asked)
        what = f"what forward asks at {line}"
        self.create_node("call_function", guard.check, (asked_node, value, what), {})

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Follow a module, or say that it cannot be followed."""
        # torch.fx hears of every call that is made.
        if is_untraced() or threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        if isinstance(m, ParametrizationList):  # `self.weight`, which is computed
            return self.create_proxy("get_attr", _name_of_computed(self.path_of_module(m)), (), {})
        check_gradients()  # whoever switched them off is the caller
        if m not in self._installed and (type(m) is nn.Sequential or not list(m.parameters())):
            return forward(*args, **kwargs)  # made in a forward: nn.ReLU()(x), self.layers[:2](x)
        if isinstance(m, nn.Identity) and args and args[0] is None:
            return None  # not a traced value, which `is None` would deny (Perceiver)
        if not args and set(kwargs) == {"input"} and type(m).__module__.startswith("torch.nn"):
            args, kwargs = (kwargs["input"],), {}
        if not self.is_leaf_module(m, self.path_of_module(m)):
            args, kwargs = without_hint(m, args, kwargs)
        unfolded = multihead_attention(m) or recurrent_cell(m)
        self._unfolded = m if unfolded else None
        forward = unfolded or find_gelu(m, args, kwargs) or forward
        before = (RngState.now(), ModuleState([m])) if self._is_strict else None
        held = dict(vars(m))
        try:
            with self._noting_block(m, args, kwargs) as note_output:
                out = super().call_module(m, forward, args, kwargs)
                note_output(out)
            _keep_sizes_(m, held)
            if before is not None:
                check_draws(before[0])
                before[1].check()
            return out
        except UntraceableError:
            raise
        except (Exception, Refusal) as error:
            raise UntraceableError(self.path_of_module(m), m, describe_failure(error)) from error

    @contextmanager
    def _noting_block(
        self, m: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Generator[Callable[[Any], None]]:
        """Note what a block is given, and yield what notes its output."""
        number, path = len(self._blocks), self.path_of_module(m)
        if self.is_leaf_module(m, path):
            yield lambda _: None
            return
        traced = (*m._forward_pre_hooks, *m._forward_hooks)
        self._blocks[number] = BlockCall(path, None, None, traced)
        named = _try_to_name((tuple(args), kwargs))
        self._open_blocks.append(number)

        def note_output(out: Any) -> None:
            output = _try_to_name((out,))
            if named is not None and output is not None:
                self._blocks[number] = BlockCall(path, named, output[0], traced)

        try:
            yield note_output
        finally:
            self._open_blocks.pop()

    @property
    def blocks(self) -> tuple[BlockCall, ...]:
        """The calls of blocks in their order."""
        return tuple(self._blocks.values())

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
        further = further_keywords(root_fn)
        proxies = [self._placeholder(a, arguments[:i]) for i, a in enumerate(arguments)]
        if further:
            proxies.append(self.create_proxy("placeholder", f"**{further}", (), {}))

        def call(*traced_args: Any) -> Any:
            traced = dict(zip([argument.name for argument in arguments], traced_args, strict=False))
            if further:
                checked = (traced_args[-1], config_flags(self.root))
                self.create_proxy("call_function", check_keywords, checked, {})
            # What was given in place of a tensor says more than that the tensor is missing.
            in_order = sorted(arguments, key=lambda argument: argument.is_followed)
            values = {argument.name: self._checked(argument, traced) for argument in in_order}
            shown = [argument for argument in arguments if argument.is_given]
            args = [values[one.name] for one in shown if not one.by_keyword]
            keywords = {one.name: values[one.name] for one in shown if one.by_keyword}
            whole, named = without_hint(self.root, args, keywords)
            return root_fn(self.root, *whole, **named)

        return call, proxies

    def _placeholder(self, argument: Argument, before: list[Argument]) -> fx.Proxy:
        needed = argument.is_followed and not argument.is_optional
        if needed and all(other.is_followed and not other.is_optional for other in before):
            return self.create_proxy("placeholder", argument.name, (), {})
        default = argument.default if is_plain(argument.default) else None
        return self.create_proxy("placeholder", argument.name, (default,), {})

    def _checked(self, argument: Argument, traced: dict[str, Any]) -> Any:
        """Return an argument's value; let the graph refuse others than it was traced for."""
        proxy, name = traced[argument.name], argument.name
        if not argument.is_followed:
            checked = (proxy, argument.held(), name)
            default = config_flags(self.root).get(name)
            if default is not None and not argument.is_given:
                checked = (*checked, default)
            self.create_proxy("call_function", check_argument, checked, {})
            return argument.value
        tokens = traced.get("input_ids")
        if argument.is_optional and is_pretrained(self.root) and isinstance(tokens, fx.Proxy):
            if name == "attention_mask" and argument.value.dim() == 2:
                return self.create_proxy("call_function", ones_if_left_out, (proxy, tokens), {})
            if name == "position_ids" and self._inputs and self._inputs.may_count_positions:
                read = (proxy, tokens, traced.get("attention_mask"))
                return self.create_proxy("call_function", positions_if_left_out, read, {})
        if proxy.node.args:
            self.create_proxy("call_function", check_given, (proxy, name), {})
        return proxy


def _split_linear(args: Any, kwargs: Any) -> tuple[Any, ...] | None:
    """Return input, weight and bias of `F.linear` if only the bias is computed (BEiT's attention).

    So the weight is that of a layer, and the bias is added to what it returns.
    """
    arguments = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
    weight, bias = arguments.get("weight"), arguments.get("bias")
    is_own = isinstance(weight, fx.Proxy) and find_parameter(weight.node) is not None
    is_computed = isinstance(bias, fx.Proxy) and find_parameter(bias.node) is None
    return (arguments["input"], weight, bias) if is_own and is_computed else None


def _is_parametrized_class_of_users(m: nn.Module) -> bool:
    """Return whether a class of somebody's own was parametrized, whose forward is followed."""
    home = type(m).__bases__[0].__module__ if is_parametrized(m) else "torch.nn"
    return not home.startswith(("torch.nn", "torch.ao.nn"))


def _name_of_computed(path: str) -> str:
    """Return the name of the tensor that `layer.parametrizations.weight` computes."""
    owner, _, name = path.rpartition(".")
    return f"{owner.removesuffix('parametrizations')}{name}"


def _try_to_name(value: Any) -> Any:
    try:
        return name_nodes(value)
    except TypeError:
        return None


def _name_by_position_(node: fx.Node) -> None:
    """Let an activation and a layer have their input where all others have it."""
    if node.op == "call_function" and not node.args and "input" in node.kwargs:
        spec = spec_of_function(node.target)
        if spec is None or spec.rule != ACTIVATE:
            return
        node.args = (node.kwargs["input"],)
        node.kwargs = {name: value for name, value in node.kwargs.items() if name != "input"}
    if node.target is torch.addmm and len(node.args) == 3 and not node.kwargs:
        bias, x, weight = node.args
        parts = [part for part in (bias, weight) if isinstance(part, fx.Node)]
        if [part.op for part in parts] == ["get_attr", "get_attr"]:
            node.target, node.args = linear_by_columns, (x, weight, bias)
