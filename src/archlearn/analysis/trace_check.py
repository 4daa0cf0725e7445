"""Check that a traced graph computes what `forward` computes on the example.

Python may decide on something that a trace does not see: the text of a size, the type of a tensor,
an error that is caught. Then other layers are called, or the same ones read other numbers. Weights
may hide that, such as those of a layer that starts at zero. So both runs are made with layers that
note one number for what they read, and return a tensor of the right shape that depends on the
layer, on that number, and on the place of each element. It depends on the number's sine: of a large
sum, a small change would pass for rounding.
"""

import math
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch import Tensor, fx, nn

from archlearn.analysis.propagation import is_all_known, run_graph
from archlearn.analysis.propagation_rules.normalization import may_need_batch
from archlearn.errors import InputError, SurgeryError, TracingError, first_line
from archlearn.module_utils import evaluating, has_hooks
from archlearn.op_table import PRODUCT, spec_of_class
from archlearn.tracing.example_inputs import ExampleInputs
from archlearn.tracing.module_state import ModuleState, capture_state, preserve_state
from archlearn.tracing.output_types import structure_of, tensors_in
from archlearn.tracing.rng import preserve_rng
from archlearn.tracing.symbolic_trace import Traces
from archlearn.tracing.trace_context import ONE_THREAD


@dataclass(slots=True)
class Notes:
    """What layers read in one run, and the tensors and types that the run returned, or an error.

    Attributes:
        read: One number for what each layer read, where the model is: a GPU is not waited for.
    """

    layers: list[str] = field(default_factory=list)
    read: list[Tensor] = field(default_factory=list)
    returned: list[Tensor] = field(default_factory=list)
    structure: Any = None
    error: Exception | None = None


_LAYERS = (PRODUCT, "pooling.pool")


@contextmanager
def stub_layers(net: nn.Module, notes: Notes) -> Generator[None]:
    """Let layers return tensors that do not depend on their weights."""
    replaced: list[nn.Module] = []
    for number, (name, module) in enumerate(net.named_modules()):
        spec = spec_of_class(type(module))
        is_layer = spec is not None and (spec.foldable or spec.rule in _LAYERS)
        is_layer &= type(module).__module__.startswith("torch.nn")  # others are followed inside
        if is_layer and not has_hooks(module) and "forward" not in vars(module):
            vars(module)["forward"] = _stub_layer(module, name, number, notes)
            replaced.append(module)
    try:
        yield
    finally:
        for module in replaced:
            del vars(module)["forward"]


def _stub_layer(module: Any, name: str, number: int, notes: Notes) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        if not args and set(kwargs) == {"input"}:
            args, kwargs = (kwargs["input"],), {}
        x = args[0] if len(args) == 1 and not kwargs else None
        is_left_out = may_need_batch(module, x)
        out = x if is_left_out else type(module).forward(module, *args, **kwargs)
        if not (isinstance(x, Tensor) and isinstance(out, Tensor) and x.is_floating_point()):
            return out
        flat = x.reshape(-1)
        flat = flat if flat.dtype in (torch.float32, torch.float64) else flat.float()
        read = torch.dot(flat, _pattern(flat.shape, flat))
        notes.layers.append(name)
        notes.read.append(read)
        if is_left_out:
            return x * (1.0 + 0.01 * (number % 50))
        share = 0.4 + 0.1 * math.sin(number + len(notes.layers))
        level = torch.sin(read) * share + 1.0
        return (_pattern(out.shape, flat) * level).to(out.dtype)

    return forward


def _pattern(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return positive numbers around one, the same whenever a shape is asked for."""
    places = torch.arange(math.prod(shape), dtype=torch.float64, device="cpu")
    return (0.5 + torch.frac(places * 0.6180339887498949)).to(like).view(shape)


_RELATIVE, _ABSOLUTE, _ROUNDING = 1e-4, 1e-6, 1e-5
"""Of a number, beside nothing, and of a tensor's largest number: in a network of full size sums are
rounded by more than 1e-6, which is all there is to see of numbers near zero."""
IN_HALF = (
    "In half precision a fused kernel and its parts give other numbers: call add_gates on the "
    "model in float32 (model.float()), and cast what it returns"
)


def is_half(net: nn.Module) -> bool:
    """Return whether a model has weights in half precision."""
    return any(weight.dtype in (torch.float16, torch.bfloat16) for weight in net.parameters())


def check_trace(net: nn.Module, traces: Traces, inputs: ExampleInputs) -> None:
    """Run a model and its graphs on the example inputs, whatever the weights of its layers.

    The model is left as it was: its mode, its buffers, and random numbers still to be drawn.
    """
    with evaluating(net):
        _check_mode(_Stage(net, traces.evaluation, inputs))
        if traces.asks_mode:
            _check_mode(_Stage(net.train(), traces.graphs[-1], inputs))


def forward_matches_graph(net: nn.Module, traces: Traces, inputs: ExampleInputs) -> bool:
    """Return whether a compact model's own `forward` is known to do what its graphs do.

    No certificate says that: the inputs that it tries may end in closed units, and it compares
    models in evaluation mode. It is not known of a model that calls something unknown, which is not
    run at all. The model is left as it was.
    """
    with evaluating(net):
        stage = _Stage(net, traces.evaluation, inputs)
        if not stage.is_bare or _find_difference(stage.run_forward(), _try(stage)):
            return False
        if not traces.asks_mode:
            return True
        stage = _Stage(net.train(), traces.graphs[-1], inputs)
        return stage.is_bare and not _find_difference(stage.run_forward(), stage.run_graph())


def try_graph(net: nn.Module, traces: Traces, inputs: ExampleInputs) -> None:
    """Run a compact model's graph for evaluation, if nothing is unknown in it."""
    with evaluating(net):
        stage = _Stage(net, traces.evaluation, inputs)
        if stage.is_bare:
            _try(stage)


@dataclass(slots=True)
class _Stage:
    """A model in one mode, and the graph that was traced in it.

    It is bare, with stand-ins for layers, where no call is unknown, so that no weights matter.
    """

    net: nn.Module
    graph: fx.Graph
    inputs: ExampleInputs
    is_bare: bool = field(init=False)
    before: ModuleState = field(init=False)

    def __post_init__(self) -> None:
        self.is_bare = is_all_known(self.net, self.graph)
        self.before = capture_state(self.net)

    def run_graph(self) -> Notes:
        """Run the graph, and leave the model as it was."""
        return self._run(lambda inputs: run_graph(self.net, self.graph, inputs))

    def run_forward(self) -> Notes:
        """Run the model itself, and leave it as it was."""
        return self._run(lambda inputs: self.net(*inputs.args, **inputs.kwargs))

    def _run(self, call: Callable[[ExampleInputs], Any]) -> Notes:
        notes = Notes()
        layers = stub_layers(self.net, notes) if self.is_bare else evaluating()
        with preserve_state(self.net, self.before), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are for whoever calls the model
            try:
                # ONE_THREAD, or another that traces takes it for a draw.
                with ONE_THREAD, torch.no_grad(), preserve_rng(self.inputs, seed=0), layers:
                    out = call(self.inputs.copy())
                    notes.returned, notes.structure = tensors_in(out), structure_of(out)
            except Exception as error:
                notes.error = error
        return notes


def _check_mode(stage: _Stage) -> None:
    """Raise if a graph does what `forward` does not, whenever that is called."""
    traced, meant = stage.run_graph(), stage.run_forward()
    if meant.error is not None and not stage.net.training:
        raise InputError(
            f"the model does not run on the example inputs: {first_line(meant.error)}. Give "
            "inputs that model(...) takes, on the device and in the dtype of the model"
        ) from meant.error
    problem = _find_difference(meant, traced)
    if problem and not _find_difference(meant, stage.run_forward()):
        why = (
            "It does something that a trace does not hold, such as asking for type(x), catching an "
            "error, or += on a view of another tensor. Move that into a submodule of its own and "
            "name it in leaves=[...]: it is then called as it is. If another thread draws random "
            "numbers meanwhile, call add_gates once more without it"
        )
        if is_half(stage.net):
            why = IN_HALF
        if has_hooks(stage.net):
            why = (
                "The model has forward hooks, which are around its forward and in no trace: remove "
                "them before add_gates, and register them on the model that it returns"
            )
        raise TracingError(
            f"cannot follow the forward of {type(stage.net).__name__}: on the example inputs its "
            f"trace {problem}. {why}"
        )


def _try(stage: _Stage) -> Notes:
    traced = stage.run_graph()
    if traced.error is not None:
        raise SurgeryError(
            "the compact model does not run on the example inputs: "
            f"{first_line(traced.error)}; keep the gated one, and report the model"
        ) from traced.error
    return traced


def _find_difference(meant: Notes, traced: Notes) -> str:
    """Return what a trace does that was not meant, or ''."""
    if meant.error is not None or traced.error is not None:
        both = meant.error is not None and traced.error is not None
        return "" if both else f"fails ({first_line(traced.error or Exception('not'))})"
    numbers = [map(float, notes.read) for notes in (meant, traced)]
    of_layers = zip(meant.layers, traced.layers, *numbers, strict=False)
    for first, second, read, read_by_trace in of_layers:
        if first != second:
            return f"calls {second!r} where forward calls {first!r}"
        if not numpy.isclose(
            float(read), float(read_by_trace), _RELATIVE, _ABSOLUTE, equal_nan=True
        ):
            return f"gives {first!r} other numbers to read"
    if len(meant.layers) != len(traced.layers):
        return f"calls {len(traced.layers)} layers, forward calls {len(meant.layers)}"
    if meant.structure != traced.structure:
        return f"returns {_say(traced.structure)} where forward returns {_say(meant.structure)}"
    same = len(meant.returned) == len(traced.returned) and all(
        one.shape == two.shape and one.dtype is two.dtype and _is_close(one, two)
        for one, two in zip(meant.returned, traced.returned, strict=True)
    )
    return "" if same else "returns something else"


def _is_close(one: Tensor, two: Tensor) -> bool:
    """Return whether tensors of one shape are the same up to rounding."""
    sizes = one[one.isfinite()].abs() if one.is_floating_point() else one.new_empty(0)
    largest = sizes.max().item() if len(sizes) else 0.0
    rounding = max(_ABSOLUTE, _ROUNDING * largest)
    return torch.allclose(one, two, rtol=_RELATIVE, atol=rounding, equal_nan=True)


def _say(structure: Any) -> str:
    """Return an output's types as Python writes them, without their modules."""
    if isinstance(structure, type):
        return structure.__name__
    kind, parts = structure
    inside = ", ".join(f"{key}={_say(part)}" for key, part in parts)
    return f"{kind.__name__}({inside})"
