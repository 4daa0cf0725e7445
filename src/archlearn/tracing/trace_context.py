"""Gradient mode, autocast and patched torch functions while a model is traced.

A part that switches gradients off, or asks for autocast, is called as it is.
"""

import builtins
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType, MethodDescriptorType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx import _symbolic_trace

from archlearn.op_table import CREATE, CREATE_LIKE, functions_with_rule
from archlearn.tracing.fx_utils import is_ours, leaves_of
from archlearn.tracing.rng import RECORDED
from archlearn.tracing.shape_guards import GuardedProxy, Refusal, is_untraced

WITHOUT_GRADIENTS = (
    "calls are made without gradients (torch.no_grad), which a trace does not hold; call .detach() "
    "on what comes out instead"
)
OF_A_FUNCTION = (
    "it calls {name}, a torch.autograd.Function, whose backward is its own and no part of a trace; "
    "call operations of torch instead, such as F.silu, or leave it as it is"
)
OF_ITS_OWN = "it computes gradients of its own, which a trace cannot; do that around the model"
_AUTOCAST = (
    "it asks for or sets autocast, which a trace does not hold; let the caller of the model set it"
)
ONE_THREAD = threading.RLock()
"""Torch is changed while a model is traced, for the thread that does it: one at a time."""
_CREATORS = (*functions_with_rule(CREATE), "randperm", "finfo", "iinfo", "as_tensor")
_TAKING_SIZES = (
    "broadcast_to", "narrow", "ones_like", "reshape", "stack", "tile", "unflatten", "zeros_like",
)  # fmt: skip
_FUNCTIONALS = ("avg_pool1d", "avg_pool2d", "avg_pool3d", "scaled_dot_product_attention")
_RECORDED: tuple[tuple[Any, str], ...] = (
    *((torch, name) for name in (*_CREATORS, *_TAKING_SIZES)),
    *((torch.nn.functional, name) for name in _FUNCTIONALS),
    *((Tensor, name) for name in functions_with_rule(CREATE_LIKE, "Tensor")),
)
"""What is often given a size, a dtype, a list or an answer about one. Torch 2.6 and 2.7 refuse a
traced one there before torch.fx hears of the call, and methods of a parameter always do."""
_CHECKS = ("_check_with", "_check_tensor_all_with")
"""What `torch._check`, `torch._check_value` and others call: they take no traced condition."""
_FAILED = "a check in forward (torch._check) does not hold for these inputs"


@contextmanager
def plain_context(tracer: Any) -> Generator[None]:
    """Trace with gradients and without autocast, and see what torch.fx does not.

    Whoever asks for or sets autocast is refused. `torch.arange(x.shape[1])`,
    `torch.finfo(x.dtype)` and `torch.rand(3)` become calls, and `len(x)` is `x.shape[0]`. A part
    that is computed again for its gradients is followed like any other.
    """
    with torch.device("cpu"):  # torch notes which functions make tensors when it is first asked
        torch.empty(0)
    replacements = _replacements(tracer)
    with ONE_THREAD, _exchanging(replacements), torch.inference_mode(False), torch.enable_grad():
        yield


class ImportedMeanwhile(BaseException):
    """Something of torch's was imported, and torch was put back for it: trace once more."""


_ASKED_FOR: set[str] = set()


@dataclass(slots=True)
class _Imports:
    """Hears of each import before it is made: what is imported would keep what was exchanged.

    What is asked for a second time was not found the first time: a `forward` may try an import.
    """

    put_back: Callable[[], None]
    seen: bool = False

    def find_spec(self, name: str, *_: Any) -> None:
        """Put torch back if something of its own is imported by the thread that traces."""
        if name.startswith("torch") and name not in _ASKED_FOR:
            _ASKED_FOR.add(name)
            self.seen = True
            self.put_back()


@contextmanager
def without_autocast() -> Generator[None]:
    """Let models run in their own precision, whatever the caller runs his own code in."""
    with ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def frozen(net: nn.Module) -> Generator[None]:
    """Let no parameter learn for a while, and let nothing be said of how a model runs.

    A view of one that does is taken for a result with gradients, even where there are none, and
    torch's counter of operations fails when a submodule is called with it. Warnings are for whoever
    calls the model.
    """
    learning = [p for p in net.parameters() if p.requires_grad and p.is_leaf]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for parameter in learning:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in learning:
                parameter.requires_grad_(True)


def _replacements(tracer: Any) -> list[tuple[Any, str, Any]]:
    homes: tuple[Any, ...] = (torch, torch.cuda.amp, torch.cpu.amp)
    replacements: list[tuple[Any, str, Any]] = [
        (torch, "is_autocast_enabled", _refusing(torch.is_autocast_enabled)),
        *[(home.autocast, "__enter__", _refusing(home.autocast.__enter__)) for home in homes],
        *[(home, name, _recording(getattr(home, name), tracer)) for home, name in _RECORDED],
        *[(torch, name, _asserting(getattr(torch, name), tracer)) for name in _CHECKS],
        (builtins, "len", _length(tracer)),
        (builtins, "callable", _may_call(tracer)),
        (torch.jit.ScriptFunction, "__call__", _call_scripted),
        (type(torch.autograd.Variable), "__call__", _call_variable),
        (_symbolic_trace, "_create_wrapped_func", _following(tracer)),
    ]
    again: Any = sys.modules.get("torch.utils.checkpoint")
    if again is not None:
        replacements.append((again, "CheckpointFunction", _CalledOnce))
    return replacements


@contextmanager
def _exchanging(replacements: list[tuple[Any, str, Any]]) -> Generator[None]:
    """Let owners have other attributes for a while, unless an import gives them theirs back."""
    originals = [getattr(owner, name) for owner, name, _ in replacements]

    def put_back() -> None:
        for (owner, name, _), function in zip(replacements, originals, strict=True):
            setattr(owner, name, function)

    imports: Any = _Imports(put_back)
    sys.meta_path.insert(0, imports)
    try:
        for owner, name, other in replacements:
            setattr(owner, name, other)
        yield
    finally:
        sys.meta_path.remove(imports)
        put_back()
        if imports.seen:
            raise ImportedMeanwhile


class _CalledOnce:
    """Stands for checkpointing by torch's older way, which runs without gradients at first."""

    @staticmethod
    def apply(function: Callable[..., Any], _: bool, *args: Any) -> Any:
        """Call the function."""
        return function(*args)


_run_scripted: Any = torch.jit.ScriptFunction.__call__


def _call_scripted(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Call what `torch.jit.script` was given, if a traced value is among the arguments."""
    inner = getattr(self, "_torchdynamo_inline", None)
    is_traced = any(isinstance(leaf, fx.Proxy) for leaf in leaves_of((args, kwargs)))
    if inner is None or not is_traced:
        return _run_scripted(self, *args, **kwargs)
    return inner(*args, **kwargs)


def _call_variable(kind: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a traced tensor as it is: so is `Variable(x)` since torch 0.4."""
    is_traced = bool(args) and isinstance(args[0], fx.Proxy)
    return args[0] if is_traced else type.__call__(kind, *args, **kwargs)


def _following(tracer: Any) -> Callable[..., Any]:
    """Return what stands for functions that `torch.fx.wrap` hides: follow those of tensors.

    Functions of sizes are called as they are, and so take all sizes.
    """
    record: Any = _symbolic_trace._create_wrapped_func

    def wrap(function: Any) -> Any:
        recorded = record(function)
        if not isinstance(function, FunctionType):
            return recorded  # such as math.sqrt

        def call(*args: Any, **kwargs: Any) -> Any:
            if any(map(tracer.is_tensor, leaves_of((args, kwargs)))):
                return tracer.try_to_follow(function, recorded, args, kwargs)
            return recorded(*args, **kwargs)

        return call

    return wrap


def _length(tracer: Any) -> Callable[[Any], Any]:
    """Return `len` that gives rows of a traced tensor as a traced value, as `x.shape[0]` is one."""
    builtin = len

    def length(of: Any, /) -> Any:
        return of.shape[0] if type(of) is GuardedProxy and tracer.is_tensor(of) else builtin(of)

    return length


def _may_call(tracer: Any) -> Callable[[Any], bool]:
    """Return `callable` that asks the example: every traced value has a `__call__`."""
    builtin = callable

    def may_call(of: Any, /) -> bool:
        if type(of) is not GuardedProxy:
            return builtin(of)
        return any("__call__" in vars(base) for base in tracer.class_of(of).__mro__)

    return may_call


def _asserting(function: Callable[..., Any], tracer: Any) -> Callable[..., Any]:
    """Return a check that the graph makes again, of its own inputs.

    A message that is made of more than text may hold traced values, which no graph can print.
    """

    def check(error: Any, condition: Any, message: Any = None, *rest: Any) -> None:
        if not isinstance(condition, fx.Proxy):
            function(error, condition, message, *rest)
            return
        cells = getattr(message, "__closure__", None) or ()
        is_text = all(isinstance(cell.cell_contents, str) for cell in cells)
        holds: Any = condition.all() if tracer.is_tensor(condition) else condition
        text = str(message()) if message is not None and is_text else _FAILED
        tracer.create_proxy("call_function", torch._assert, (holds, text), {})

    return check


def _recording(function: Callable[..., Any], tracer: fx.Tracer) -> Callable[..., Any]:
    thread = threading.get_ident()

    def record(*args: Any, **kwargs: Any) -> Any:
        draws = function in RECORDED and "generator" not in kwargs
        is_traced = any(isinstance(leaf, fx.Proxy) for leaf in leaves_of((args, kwargs)))
        if threading.get_ident() != thread or not (draws or is_traced):
            return function(*args, **kwargs)
        if isinstance(function, MethodDescriptorType):
            return tracer.create_proxy("call_method", function.__name__, args, kwargs)
        return tracer.create_proxy("call_function", function, args, kwargs)

    return record


def check_gradients(target: object = None) -> None:
    """Refuse a call that is made without gradients, or that computes some."""
    if target in (torch.autograd.grad, torch.autograd.backward, "backward"):
        raise Refusal(OF_ITS_OWN)
    if not torch.is_grad_enabled():
        function = _running_function()
        raise Refusal(OF_A_FUNCTION.format(name=function) if function else WITHOUT_GRADIENTS)


def _running_function() -> str:
    """Return the name of the torch.autograd.Function whose `forward` is running, or ''."""
    names: dict[object, str] = {}
    kinds: list[Any] = [torch.autograd.Function]
    for kind in kinds:
        kinds += kind.__subclasses__()
        names.setdefault(getattr(inspect.unwrap(kind.forward), "__code__", None), kind.__name__)
    frame = sys._getframe(1)
    while frame is not None and frame.f_code not in names:
        frame = frame.f_back
    return "" if frame is None else names[frame.f_code]


def _refusing(function: Callable[..., Any]) -> Callable[..., Any]:
    thread = threading.get_ident()

    def refuse(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_code
        is_torch = is_ours(caller.co_filename) and caller.co_name != "decorate_autocast"
        if is_torch or is_untraced() or threading.get_ident() != thread:
            return function(*args, **kwargs)
        raise Refusal(_AUTOCAST)

    return refuse
