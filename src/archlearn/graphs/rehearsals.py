"""A trace is rehearsed beside `forward` itself: on the example inputs both must do the same.

Python may decide on something that a trace does not see: the text of a size, the type of a tensor,
an error that is caught. Then other layers are called, or the same ones read other numbers. To see
that, layers need not be computed: stand-ins note what they read, and return something that hangs
on it.
"""

import math
import random
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from archlearn.errors import InputError, TracingError, first_line
from archlearn.graphs.draws import putting_back
from archlearn.graphs.inputs import ExampleInputs, values_for
from archlearn.graphs.lookups import has_hooks
from archlearn.graphs.remnants import look_at, restoring
from archlearn.graphs.runs import Runner
from archlearn.graphs.shapes import guess_layer
from archlearn.graphs.tracing import Traces
from archlearn.modes import evaluating

_NEAR: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-6, "equal_nan": True}


@dataclass(slots=True)
class _Notes:
    """What layers read in one run, and what the run returned.

    Attributes:
        layers: The layers that were called, in order.
        read: One number for what each of them read.
        returned: All tensors of the result.
        error: Why there is none.
    """

    layers: list[str] = field(default_factory=list)
    read: list[Tensor] = field(default_factory=list)
    returned: list[Tensor] = field(default_factory=list)
    error: Exception | None = None


def rehearse(net: nn.Module, traces: Traces, inputs: ExampleInputs) -> None:
    """Run a model and its graphs on the example inputs, without computing its layers.

    The model is left as it was: its mode, its buffers, and random numbers still to be drawn.

    Raises:
        InputError: If the model does not run on the inputs.
        TracingError: If a graph does something else.
    """
    with evaluating(net):
        _rehearse_mode(net.eval(), traces.evaluation, inputs)
        if traces.asks_mode:
            _rehearse_mode(net.train(), traces.graphs[-1], inputs)


def _rehearse_mode(net: nn.Module, graph: fx.Graph, inputs: ExampleInputs) -> None:
    is_bare, before = Runner(net, graph).may_guess, look_at(net)

    def run(call: Callable[[ExampleInputs], Any]) -> _Notes:
        with restoring(net, before):
            return _run(net, call, inputs, is_bare=is_bare)

    def forward(given: ExampleInputs) -> Any:
        return net(*given.args, **given.kwargs)

    traced = run(lambda given: fx.Interpreter(net, graph=graph).run(*values_for(graph, given)))
    meant = run(forward)
    if meant.error is not None and not net.training:
        raise InputError(
            f"the model does not run on the example inputs: {first_line(meant.error)}. Give "
            "inputs that model(...) takes, on the device and in the dtype of the model"
        ) from meant.error
    found = _find_difference(meant, traced)
    if found and not _find_difference(meant, run(forward)):
        raise TracingError(
            f"cannot follow the forward of {type(net).__name__}: on the example inputs its trace "
            f"{found}. It does something that a trace does not hold, such as asking for type(x), "
            "catching an error, += on a view of another tensor, or a forward that was put into "
            "the instance. Move that into a submodule of its own and name it in leaves=[...]: it "
            "is then called as it is"
        )


def _find_difference(meant: _Notes, traced: _Notes) -> str:
    """Return what a trace does that was not meant, or ''."""
    if meant.error is not None or traced.error is not None:
        both = meant.error is not None and traced.error is not None
        return "" if both else f"fails ({first_line(traced.error or Exception('not'))})"
    for place, (first, second) in enumerate(zip(meant.layers, traced.layers, strict=False)):
        if first != second:
            return f"calls {second!r} where forward calls {first!r}"
        if not torch.allclose(meant.read[place], traced.read[place], **_NEAR):
            return f"gives {first!r} other numbers to read"
    if len(meant.layers) != len(traced.layers):
        return f"calls {len(traced.layers)} layers, forward calls {len(meant.layers)}"
    same = len(meant.returned) == len(traced.returned) and all(
        one.shape == two.shape and one.dtype is two.dtype and torch.allclose(one, two, **_NEAR)
        for one, two in zip(meant.returned, traced.returned, strict=True)
    )
    return "" if same else "returns something else"


def _run(
    net: nn.Module, call: Callable[[ExampleInputs], Any], inputs: ExampleInputs, *, is_bare: bool
) -> _Notes:
    notes = _Notes()
    standing_in = _standing_in(net, notes) if is_bare else evaluating()
    try:
        with torch.no_grad(), _same_chance(inputs), standing_in, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are for whoever calls the model
            notes.returned = _tensors_in(call(inputs.copy()))
    except Exception as error:
        notes.error = error
    return notes


@contextmanager
def _standing_in(net: nn.Module, notes: _Notes) -> Generator[None]:
    """Let layers whose results are known but for their numbers be stood in for."""
    replaced: list[nn.Module] = []
    for place, (name, module) in enumerate(net.named_modules()):
        if module._parameters and not has_hooks(module) and "forward" not in vars(module):
            vars(module)["forward"] = _stand_in(module, name, place, notes)
            replaced.append(module)
    try:
        yield
    finally:
        for module in replaced:
            del vars(module)["forward"]


def _stand_in(module: Any, name: str, place: int, notes: _Notes) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        x = args[0] if len(args) == 1 and not kwargs else None
        guessed = guess_layer(module, x) if isinstance(x, Tensor) else None
        if guessed is None or x is None:
            return type(module).forward(module, *args, **kwargs)
        notes.layers.append(name)
        notes.read.append(torch.dot(_flat(x), _weights(x.numel(), x)))
        if guessed is x:
            return x * (1.0 + 0.01 * (place % 50))
        level = (1.0 + 0.5 * torch.sin(notes.read[-1] + place)).to(x.dtype)
        return _weights(guessed.numel(), x).to(x.dtype).view(guessed.shape) * level

    return forward


def _flat(x: Tensor) -> Tensor:
    flat = x.reshape(-1)
    return flat if flat.dtype in (torch.float32, torch.float64) else flat.float()


_TABLES: dict[Any, Tensor] = {}


def _weights(n: int, like: Tensor) -> Tensor:
    """Return n positive numbers around one, the same whenever they are asked for."""
    dtype = torch.float64 if like.dtype is torch.float64 else torch.float32
    found = _TABLES.get((dtype, like.device))
    if found is None or len(found) < n:
        places = torch.arange(2 ** math.ceil(math.log2(max(n, 2))), dtype=torch.float64)
        found = (0.5 + torch.frac(places * 0.6180339887498949)).to(like.device, dtype)
        _TABLES[dtype, like.device] = found
    return found[:n]


@contextmanager
def _same_chance(inputs: ExampleInputs) -> Generator[None]:
    """Let generators start at the same place, and be put back afterwards."""
    with putting_back(inputs) as devices:
        random.seed(0)
        torch.default_generator.manual_seed(0)
        for device in devices:
            torch.cuda.default_generators[device].manual_seed(0)
        yield


def _tensors_in(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            found += _tensors_in([getattr(leaf, each.name) for each in fields(leaf)])
    return found
