"""Rules of elementwise operations: activations, where gates may be, arithmetic, casts, `where`."""

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor, fx, nn

from archlearn.analysis.channel_labels import (
    CONSTANT,
    FIXED,
    UNKNOWN,
    ZERO,
    Labels,
    along,
    constant,
    pointwise,
    replaced,
    varying,
    where_varying,
)
from archlearn.analysis.rule_api import OpCall, describe_call, fixed_out, name_of, opaque
from archlearn.errors import with_article
from archlearn.module_utils import find_module
from archlearn.nn.tristate_activation import TriState
from archlearn.op_table import ACTIVATE, spec_of_class
from archlearn.tracing.fx_utils import size_of

StateRule = Callable[[list[Tensor]], Tensor]


def keep(step: OpCall) -> Any:
    """Return the labels as they are (dropout, casts, clones)."""
    if not step.labels or not isinstance(step.out, Tensor) or step.out.shape != step.x.shape:
        return opaque(step)
    return Labels(step.x.ids, step.x.state)


def unary(step: OpCall) -> Any:
    """Return the labels of a function of each element."""
    if not step.labels or not isinstance(step.out, Tensor) or step.out.shape != step.x.shape:
        return opaque(step)
    if len(step.labels) > 1:
        return mixed(step)
    state = step.x.state
    if any(_is_computed(value, node) for value, node in _arguments(step)):
        state = constant(UNKNOWN, state.shape)
    elif not _maps_zero_to_zero(step):
        state = replaced(state, ZERO, CONSTANT)
    return Labels(step.x.ids, state)


def prelu(step: OpCall) -> Any:
    """A slope for each channel or for all; zero stays zero."""
    if step.is_module:
        inner = ".activation" if hasattr(step.module, "activation") else ""
        slope = step.constraints.raw(f"{step.node.target}{inner}.weight")
    else:
        slope = step.argument(1, "weight")
    if not isinstance(slope, Labels):
        return opaque(step)
    if slope.ids.numel() > 1:
        dim = 1 if step.x.ids.dim() > 1 else 0
        ids, _ = step.constraints.read(step.x, dim)
        step.constraints.tie(ids, slope.ids.reshape(-1))
    return Labels(step.x.ids, step.x.state)


def product(step: OpCall) -> Any:
    """Zero times anything is zero.

    What has no channels, such as the angles of positions, loses what stands beside those that go;
    but a parameter that scales the model's input has no channels of its own.
    """
    return combine(step, _multiply, ties_fixed=False)


def quotient(step: OpCall) -> Any:
    """Zero over anything (but zero) is zero."""
    return combine(step, _divide)


def total(step: OpCall) -> Any:
    """A sum, a difference, a maximum: zero where all are zero."""
    return combine(step, _worst)


def mixed(step: OpCall) -> Any:
    """Any other function of elements at the same place."""
    return combine(step, lambda states: torch.clamp(_worst(states), min=CONSTANT))


COMBINING = (product, quotient, total, mixed)


def where(step: OpCall) -> Any:
    """Elements of one tensor or another: zero where both are, and else not known."""
    of_mask = 0 if step.name == "where" and not isinstance(step.node.target, str) else 1

    def state_rule(states: list[Tensor]) -> Tensor:
        worst = _worst([state for index, state in enumerate(states) if index != of_mask])
        return torch.where(worst == ZERO, ZERO, UNKNOWN)

    return combine(step, state_rule)


def like(step: OpCall) -> Any:
    """Zeros or ones in the shape of a tensor, or another number."""
    if len(step.labels) != 1 or not isinstance(step.out, Tensor) or step.out.shape != step.x.shape:
        return opaque(step)
    is_zero = "zeros" in step.name or step.argument(1, "fill_value") == 0
    state = ZERO if is_zero else CONSTANT
    if any(_is_computed(value, node) for value, node in _arguments(step)):
        state = UNKNOWN
    return Labels(step.x.ids, constant(state, step.x.shape))


def draw(step: OpCall) -> Any:
    """Random numbers in the shape of a tensor, or in its place: not zero where that is."""
    if len(step.labels) != 1 or not isinstance(step.out, Tensor) or step.out.shape != step.x.shape:
        return opaque(step)
    return Labels(step.x.ids, constant(UNKNOWN, step.x.shape))


def create(step: OpCall) -> Any:
    """A new tensor, of which nothing may go."""
    return fixed_out(step.out)


def new(step: OpCall) -> Any:
    """`x.new_zeros(sizes)`: channels where x has them, if the sizes are those of x there.

    Whatever is made of zeros may lose any of them; with x's channels it can be added to x. Sizes
    that are literals may be those of channels which zeros begin: states of an LSTM or a ConvLSTM.
    """
    x, dims = step.x, varying(step.x.ids)
    if not isinstance(step.out, Tensor):
        return fixed_out(step.out)
    shape, varied = step.out.shape, where_varying(x.ids)
    state = {"new_zeros": ZERO, "new_ones": CONSTANT}.get(step.name, UNKNOWN)
    arguments: Any = step.node.args[1:]
    sizes: Any = arguments[0] if arguments and isinstance(arguments[0], tuple | list) else arguments
    sizes = sizes if len(sizes) == len(shape) else ()
    sources = [size_of(size) or (None, 0) for size in sizes]
    holder, n = step.node.args[0], x.ids.dim()
    of_x = [i for i, (of, dim) in enumerate(sources) if of is holder and dim % n in dims]
    begun = _find_begun(sizes) if state == ZERO else None
    is_alike = (
        len(shape) == n and dims and varied.numel() and all(shape[d] == x.shape[d] for d in dims)
    )
    if len(dims) == len(of_x) == 1:
        ids, dim_of_channels = varied.reshape(-1), of_x[0]
    elif is_alike and begun not in dims:
        return Labels(varied.expand(shape), constant(state, shape))
    elif begun is not None:
        ids, dim_of_channels = step.constraints.new_atoms(shape[begun]), begun
    else:
        return fixed_out(step.out)
    return along(ids, torch.full_like(ids, state), shape, dim_of_channels)


def _find_begun(sizes: Sequence[Any]) -> int | None:
    """Return the dimension that channels lie along where zeros of literal sizes begin them.

    The last one behind a size that is computed, which is that of the batch; of images the first.
    None if there are two behind it: they may be tokens and channels, or channels and states.
    """
    is_literal = [isinstance(size, int) for size in sizes]
    of_batch = is_literal.index(False) if False in is_literal else 0
    places = [i for i, size in enumerate(sizes) if is_literal[i] and size > 1 and len(sizes) > 1]
    behind = [i for i in places if i > of_batch] or places
    if len(sizes) > 3:
        return behind[0] if behind else None
    return behind[-1] if len(behind) == 1 or (behind and all(is_literal)) else None


def combine(step: OpCall, state_rule: StateRule, *, ties_fixed: bool = True) -> Any:
    """Tie what stands at the same place; what is broadcast along channels must stay."""
    if not isinstance(step.out, Tensor):
        return step.out if not step.labels else fixed_out(step.out)
    shape = step.out.shape
    spread = [labels.ids.broadcast_to(shape) for labels in step.labels]
    dims = sorted({dim for ids in spread for dim in varying(ids)})
    firm = [_is_firm(labels, shape, dims) for labels in step.labels]
    if not any(firm):
        passing = _find_passing(step)
        if passing is None:
            return opaque(step)
        firm[passing] = True
        passed, fixed = set(varying(spread[passing])), constant(FIXED, shape)
        spread = [
            ids if passed & set(varying(ids)) else fixed for ids in spread
        ]  # heads of both go
    has_channels = [bool((labels.ids != FIXED).any()) for labels in step.labels]
    is_scale = all(x.name for x, has in zip(step.labels, has_channels, strict=True) if has)
    if not ties_fixed and not is_scale and any(map(operator.and_, firm, has_channels)):
        firm = list(map(operator.and_, firm, has_channels))
    base = spread[firm.index(True)]
    if len(varying(base)) > 1:  # what varies least says most: all beside it is tied to it
        firm_ids = [ids for ids, is_firm in zip(spread, firm, strict=True) if is_firm]
        base = min(firm_ids, key=lambda ids: len(varying(ids)) or len(shape))
    states = [_state_of(value, node, shape) for value, node in _arguments(step)]
    positions = [i for i, (value, _) in enumerate(_arguments(step)) if isinstance(value, Labels)]
    for index, labels, ids, is_firm in zip(positions, step.labels, spread, firm, strict=True):
        if is_firm:  # of a matrix its rows are tied, where only these are beside
            lines = None if len(varying(ids)) < 2 else step.constraints.lines_of(ids)
            if lines is None or varying(lines[0]) != varying(base):
                step.constraints.tie(base, ids)
            else:
                step.constraints.tie(base, lines[0])
                step.constraints.tie(lines[1], constant(FIXED, ids.shape))
        elif varying(ids):  # broadcast along some of these dimensions only
            step.constraints.spreads.append((base, ids))
            for dim in set(varying(ids)).difference(varying(base)):  # a table's positions
                step.constraints.tie(ids.narrow(dim, 0, 1).expand_as(ids), ids)
        else:
            step.constraints.block(
                labels.ids, f"spread over other channels by {describe_call(step.node)}"
            )
        if not is_firm and labels.name is None:  # a parameter is a constant
            states[index] = torch.tensor(UNKNOWN, device="cpu")
    state = pointwise(lambda *values: state_rule(list(values)), *states)
    return Labels(base, state.broadcast_to(shape))


def _find_passing(step: OpCall) -> int | None:
    """Return which of two tensors keeps its channels apart in an outer product: the wider one.

    Those of the other stay. In a network that shrinks it goes on as it began.
    """
    varied = [index for index, labels in enumerate(step.labels) if varying(labels.ids)]
    if len(varied) != 2:
        return None
    one, two = (where_varying(step.labels[index].ids).numel() for index in varied)
    is_first = step.constraints.whole_groups.setdefault(step.node.name, one >= two)
    return varied[0] if is_first else varied[1]


def _is_firm(labels: Labels, shape: torch.Size, dims: list[int]) -> bool:
    if labels.ids.numel() == 1 and shape.numel() > 1:
        return False
    padded = (1,) * (len(shape) - labels.ids.dim()) + tuple(labels.shape)
    return all(padded[dim] == shape[dim] for dim in dims)


def _arguments(step: OpCall) -> list[tuple[Any, Any]]:
    """Return the arguments of a call, each with the node that it comes from, or itself."""
    values = [*step.args, *step.kwargs.values()]
    return list(zip(values, [*step.node.args, *step.node.kwargs.values()], strict=True))


def _is_computed(value: Any, node: Any) -> bool:
    """Return whether a number is another one for images of another size."""
    return isinstance(node, fx.Node) and isinstance(value, int | float)


def _state_of(value: Any, node: Any, shape: torch.Size) -> Tensor:
    if isinstance(value, Labels):
        return value.state.broadcast_to(shape)
    if _is_computed(value, node):
        return torch.tensor(UNKNOWN, device="cpu")
    is_zero = isinstance(value, int | float) and value == 0
    return torch.tensor(ZERO if is_zero else CONSTANT, device="cpu")


def _worst(states: list[Tensor]) -> Tensor:
    return reduce(torch.maximum, states)


def _multiply(states: list[Tensor]) -> Tensor:
    return torch.where(reduce(torch.minimum, states) == ZERO, ZERO, _worst(states))


def _divide(states: list[Tensor]) -> Tensor:
    above, below = states[0], _worst(states[1:])
    safe = torch.where(above == ZERO, ZERO, torch.maximum(above, below))
    return torch.where(below == ZERO, UNKNOWN, safe)


def _maps_zero_to_zero(step: OpCall) -> bool:
    def zero(leaf: Any) -> Any:
        return torch.zeros(1, device=step.out.device) if isinstance(leaf, Labels) else leaf

    try:
        args = tuple(zero(value) for value in step.args)
        value = step.call(args, {key: zero(value) for key, value in step.kwargs.items()})
        return bool(value == 0)
    except Exception:  # a function that knows no such tensor tells us nothing
        return False


def activation_name(node: fx.Node, net: nn.Module) -> str:
    """Return the activation's own name: ReLU, gelu."""
    if node.op == "call_module":
        module = find_module(net, str(node.target))
        inner = module.activation if isinstance(module, TriState) else module
        return type(inner).__name__
    return name_of(node).rstrip("_")


def activate(step: OpCall) -> Any:
    """Follow an activation; where it is gated, a dropped channel is zero behind it.

    Of a matrix only columns would be gated here: what reads it has gates of its own.
    """
    out = _activate(step)
    if not step.gated or not isinstance(out, Labels):
        return out
    if len(varying(out.ids)) > 1 and step.constraints.lines_of(out.ids) is not None:
        return out
    return Labels(out.ids, constant(ZERO, out.shape))


def _activate(step: OpCall) -> Any:
    name = activation_name(step.node, step.net)
    module = step.module if step.is_module else None
    if isinstance(module, TriState) and not _is_elementwise(module.activation):
        return opaque(
            step,
            f"{step.node.target!r} wraps {with_article(name)}, which may mix channels",
            "wrap an activation that treats every element alike",
        )
    if name.lower() == "prelu":
        return prelu(step)
    return _glu(step) if name.lower() == "glu" else unary(step)


def _is_elementwise(module: nn.Module) -> bool:
    spec = spec_of_class(type(module))
    return spec is not None and (spec.rule == ACTIVATE or isinstance(module, nn.Identity))


def _glu(step: OpCall) -> Any:
    dim = step.option(1, "dim", -1)
    if not isinstance(dim, int):
        return opaque(step)
    ids, gate_ids = step.x.ids.chunk(2, dim)
    state, gate_state = step.x.state.chunk(2, dim)
    step.constraints.tie(ids, gate_ids)
    return Labels(
        ids,
        pointwise(
            lambda x, g: torch.where(x == ZERO, ZERO, torch.maximum(x, g)), state, gate_state
        ),
    )
