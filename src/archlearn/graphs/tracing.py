"""A trace is the list of calls that a model's `forward` makes, in order.

A model is traced twice, in evaluation and in training mode, because tracing bakes in whatever
Python decides from `self.training`. A submodule whose `forward` cannot be followed becomes an
opaque leaf: it is called as it is, and nothing is assumed about its inside.
"""

import inspect as python_inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves, tree_map

from archlearn.errors import InputError, TracingError
from archlearn.modes import evaluating, noticing_mode_reads
from archlearn.responses import LocalResponse
from archlearn.tristate import TriState

Leaf = str | type[nn.Module]
_SOURCE = "archlearn_source"
_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_MODELS = os.path.join(_HERE, "models") + os.sep
_TRANSPARENT = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True, slots=True)
class ExampleInputs:
    """The arguments of one call of the model, by position and by keyword."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, example_inputs: object) -> "ExampleInputs":
        """Accept a tensor, a tuple of arguments or a dict of keyword arguments."""
        if isinstance(example_inputs, ExampleInputs):
            return example_inputs
        if isinstance(example_inputs, Tensor):
            return cls((example_inputs,), {})
        if isinstance(example_inputs, tuple | list):
            return cls(tuple(example_inputs), {})
        if isinstance(example_inputs, Mapping):
            return cls((), dict(example_inputs))
        raise InputError(
            f"example_inputs is a {type(example_inputs).__name__}; give a tensor, a tuple of "
            "arguments, or a dict of keyword arguments, as one call of the model takes them"
        )

    def to(self, *args: Any, floating_only: bool = False) -> "ExampleInputs":
        """Return the same inputs with every tensor (or every floating one) moved."""

        def move(value: Any) -> Any:
            wanted = isinstance(value, Tensor) and (not floating_only or value.is_floating_point())
            return value.detach().to(*args) if wanted else value

        mapped = tree_map(move, (self.args, self.kwargs))
        return ExampleInputs(*mapped)


@dataclass(frozen=True, slots=True)
class Traces:
    """The calls of a model in evaluation and, where they differ, in training.

    Attributes:
        evaluation: The graph of `forward` after `model.eval()`.
        training: The graph after `model.train()`, or None if it is the same graph.
        opaque: Submodules that could not be followed, with the reason.
    """

    evaluation: fx.Graph
    training: fx.Graph | None
    opaque: dict[str, str]

    @property
    def graphs(self) -> tuple[fx.Graph, ...]:
        """All graphs, the evaluation graph first."""
        return (self.evaluation,) if self.training is None else (self.evaluation, self.training)


class _UntraceableError(Exception):
    """Carries the innermost submodule that could not be followed out of the trace."""

    def __init__(self, name: str, module: nn.Module, reason: str) -> None:
        super().__init__(name)
        self.name, self.module, self.reason = name, module, reason


class _Tracer(fx.Tracer):
    """Follows everything but torch's own modules, tri-state activations and leaves."""

    def __init__(self, leaves: Sequence[Leaf], inputs: ExampleInputs | None) -> None:
        super().__init__()
        self._leaf_names = {leaf for leaf in leaves if isinstance(leaf, str)}
        self._leaf_classes = tuple(leaf for leaf in leaves if not isinstance(leaf, str))
        self._inputs = inputs

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        marked = module_qualified_name in self._leaf_names or isinstance(m, self._leaf_classes)
        return (
            marked
            or isinstance(m, TriState | LocalResponse)
            or super().is_leaf_module(m, module_qualified_name)
        )

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        node.meta[_SOURCE] = _user_line()
        return node

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        try:
            return super().call_module(m, forward, args, kwargs)
        except _UntraceableError:
            raise
        except Exception as error:
            raise _UntraceableError(self.path_of_module(m), m, describe_failure(error)) from error

    def create_args_for_root(
        self,
        root_fn: Callable[..., Any],
        is_module: bool,
        concrete_args: dict[str, Any] | tuple[Any, ...] | None = None,
    ) -> tuple[Callable[..., Any], list[Any]]:
        if self._inputs is None:
            return super().create_args_for_root(root_fn, is_module, concrete_args)
        arguments = bind_arguments(root_fn, type(self.root).__name__, self._inputs)
        proxies = [self._placeholder(a, arguments[:i]) for i, a in enumerate(arguments)]

        def call(*given: Any) -> Any:
            args: list[Any] = []
            keywords: dict[str, Any] = {}
            for argument, proxy in zip(arguments, given, strict=True):
                value = proxy if argument.is_followed else argument.value
                if not argument.is_followed and _is_plain(argument.value):
                    self.create_proxy(
                        "call_function", check_argument, (proxy, argument.value, argument.name), {}
                    )
                if argument.by_keyword:
                    keywords[argument.name] = value
                else:
                    args.append(value)
            return root_fn(self.root, *args, **keywords)

        return call, proxies

    def _placeholder(self, argument: "Argument", before: "list[Argument]") -> fx.Proxy:
        if argument.is_followed and all(other.is_followed for other in before):
            return self.create_proxy("placeholder", argument.name, (), {})
        value = argument.value if _is_plain(argument.value) else None
        default = None if argument.is_followed else value
        return self.create_proxy("placeholder", argument.name, (default,), {})


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of `forward`, as it was in the example call.

    Attributes:
        is_followed: Whether it holds tensors; anything else is fixed when the model is traced.
    """

    name: str
    value: Any
    is_followed: bool
    by_keyword: bool


def bind_arguments(
    forward: Callable[..., Any], owner: str, inputs: ExampleInputs
) -> list[Argument]:
    """Return the arguments of `forward` in the order of its signature, defaults filled in."""
    signature = python_inspect.signature(forward)
    try:
        bound = signature.bind(None, *inputs.args, **inputs.kwargs)
    except TypeError as error:
        raise InputError(
            f"example_inputs do not fit {owner}.forward{signature}: {error}; give them as one "
            "call of the model takes them"
        ) from error
    bound.apply_defaults()
    arguments: list[Argument] = []
    for name, value in list(bound.arguments.items())[1:]:
        kind = signature.parameters[name].kind
        if kind is python_inspect.Parameter.VAR_POSITIONAL:
            parts = [(f"{name}_{i}", part, False) for i, part in enumerate(value)]
        elif kind is python_inspect.Parameter.VAR_KEYWORD:
            parts = [(key, part, True) for key, part in value.items()]
        else:
            parts = [(name, value, kind is python_inspect.Parameter.KEYWORD_ONLY)]
        arguments += [Argument(n, v, _holds_tensor(v), by) for n, v, by in parts]
    return arguments


def values_for(graph: fx.Graph, inputs: ExampleInputs) -> list[Any]:
    """Return what the placeholders of a traced graph take for the given inputs."""
    names = [(str(n.target), n.args) for n in graph.nodes if n.op == "placeholder"]
    left = iter(inputs.args)
    values: list[Any] = []
    for name, default in names:
        if name in inputs.kwargs:
            values.append(inputs.kwargs[name])
        else:
            values.append(next(left, default[0] if default else None))
    return values


def check_argument(given: Any, fixed: Any, name: str) -> None:
    """Raise if an argument that was fixed when the model was traced is given otherwise."""
    if given is not fixed and (isinstance(given, Tensor) or given != fixed):
        raise InputError(
            f"{name} is {given!r}, but the model was traced with {fixed!r}; put the value that "
            "you use into example_inputs"
        )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str | torch.dtype)


def trace(
    net: nn.Module, inputs: ExampleInputs | None = None, leaves: Iterable[Leaf] = ()
) -> Traces:
    """Follow the calls of `net.forward` for the arguments that `inputs` gives.

    Arguments of `forward` that `inputs` leaves out keep their defaults. `net` is unchanged.

    Raises:
        TracingError: If `forward` itself, outside any submodule, depends on data.
    """
    bound: Any = vars(type(net)).get("_archlearn_graphs")
    if bound is not None:
        return Traces(bound[0], bound[1] if len(bound) > 1 else None, {})
    marked = list(leaves)
    opaque: dict[str, str] = {}
    with evaluating(net):
        net.eval()
        with noticing_mode_reads(net) as reads:
            evaluation = _trace_mode(net, inputs, marked, opaque)
        if not reads.seen:
            return Traces(evaluation, None, opaque)
        training = _trace_mode(net.train(), inputs, marked, opaque)
    same = _fingerprint(evaluation) == _fingerprint(training)
    return Traces(evaluation, None if same else training, opaque)


def source_of(node: fx.Node) -> str:
    """Return `file.py:12` of the user's line that made a call, or '' if it is not known."""
    return str(node.meta.get(_SOURCE, ""))


def _user_line() -> str:
    frame = sys._getframe(2)
    while frame is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _is_ours(path: str) -> bool:
    return path.startswith((_TORCH, _HERE)) and not path.startswith(_MODELS)


def describe_failure(error: BaseException) -> str:
    """Return the user's own line at which tracing failed, and why."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not _is_ours(frame.filename):
            return f"{frame.filename}:{frame.lineno} `{frame.line}`: {error}"
    return str(error)


def _trace_mode(
    net: nn.Module,
    inputs: ExampleInputs | None,
    marked: list[Leaf],
    opaque: dict[str, str],
) -> fx.Graph:
    while True:
        try:
            return _Tracer([*marked, *opaque], inputs).trace(net)
        except _UntraceableError as found:
            opaque[found.name] = found.reason
            if not isinstance(found.module, _TRANSPARENT):
                same_class = type(found.module)
                for name, module in net.named_modules():
                    if name and type(module) is same_class:
                        opaque.setdefault(name, found.reason)
        except InputError:
            raise
        except Exception as error:
            raise TracingError(
                f"cannot follow the forward of {type(net).__name__}: {describe_failure(error)}. "
                "Move what depends on the data into a submodule of its own: it is then called as "
                "a leaf, and the rest is learnt (leaves=[...] marks one by name or class)"
            ) from error


def _holds_tensor(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))


def _fingerprint(graph: fx.Graph) -> list[str]:
    return [f"{n.op} {n.name} {n.target} {n.args} {n.kwargs}" for n in graph.nodes]
