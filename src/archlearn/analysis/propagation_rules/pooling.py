"""Rules of pooling, interpolation, softmax and reductions."""

import operator
from typing import Any

import torch
from torch import Tensor, fx

from archlearn.analysis.channel_labels import (
    CONSTANT,
    FIXED,
    UNKNOWN,
    ZERO,
    Labels,
    along,
    replaced,
    varying,
    worst_along,
)
from archlearn.analysis.rule_api import OpCall, describe_call, fixed_out, opaque

# Where the dimensions and keepdim stand in a call, if not second and third.
_PLACES = {"var": (1, 3), "std": (1, 3), "norm": (2, 3), "linalg_vector_norm": (2, 3)}


def pool(step: OpCall) -> Any:
    """Pool over space; zero stays zero, and a constant stays one unless zeros are counted in."""
    if not isinstance(step.out, Tensor):
        return opaque(step)
    n_space = next((n for n in (1, 2, 3) if f"{n}d" in step.name), step.x.ids.dim() - 2)
    dim = step.x.ids.dim() - 1 - n_space
    if dim < 0:
        return opaque(step)
    ids, state = step.constraints.read(step.x, dim)
    if not _keeps_constants(step):
        state = replaced(state, CONSTANT, UNKNOWN)
    return along(ids, state, step.out.shape, dim)


def resize(step: OpCall) -> Any:
    """Interpolate over space, for (batch, channels, space...)."""
    ids, state = step.constraints.read(step.x, 1)
    return along(ids, state, step.out.shape, 1)


def mean(step: OpCall) -> Any:
    """Reduce over dimensions within a channel; a constant stays one."""
    return _reduce(step, keeps_constants=True)


def reduce(step: OpCall) -> Any:
    """Reduce over dimensions within a channel; only zero is sure to stay what it was."""
    return _reduce(step, keeps_constants=False)


def extreme(step: OpCall) -> Any:
    """`max` and `min` along a dimension, of which the values are read and the indices are not."""
    if not isinstance(step.out, tuple) or not all(map(_reads_values, step.node.users)):
        return opaque(step)
    labels = _reduce(step, keeps_constants=True)
    return (
        type(step.out)((labels, fixed_out(step.out[1]))) if isinstance(labels, Labels) else labels
    )


def variance(step: OpCall) -> Any:
    """A variance within a channel, or over the open channels (norms by hand)."""
    return _reduce(step, keeps_constants=False)


def along_dim(step: OpCall) -> Any:
    """A function along one dimension (softmax, cumsum) that channels must not lie along.

    Unless they lie along another one, too, as in a softmax over several paths. A sum of constants
    differs from place to place, and a softmax of them with the image's size.
    """
    if not step.labels or not isinstance(step.out, Tensor) or step.out.shape != step.x.shape:
        return opaque(step)
    dim = step.option(1, "dim")
    n = step.x.ids.dim()
    dims = varying(step.x.ids)
    if not isinstance(dim, int) or dims == [dim % n] or len(dims) > 2:
        return opaque(step)
    labels = step.x
    if dim % n in dims:
        (other,) = set(dims) - {dim % n}
        labels = along(*step.constraints.read(labels, other), labels.shape, other)
    state = labels.state
    if "soft" in step.name.lower():
        state = replaced(state, ZERO, UNKNOWN)
    return Labels(labels.ids, replaced(state, CONSTANT, UNKNOWN))


def _reduce(step: OpCall, keeps_constants: bool) -> Any:
    of_dims, of_keepdim = _PLACES.get(step.name, (1, 2))
    dims = step.argument(of_dims, "dim", step.kwargs.get("axis"))
    keepdim = bool(step.argument(of_keepdim, "keepdim", False))
    listed = dims if isinstance(dims, tuple | list) else (dims,)
    if not (
        isinstance(step.out, Tensor | tuple) and listed and all(type(dim) is int for dim in listed)
    ):
        return opaque(step)
    chosen = {dim % step.x.ids.dim() for dim in listed}
    ids, state = step.x.ids, step.x.state
    dims = set(varying(ids))
    if chosen & dims:
        if len(dims - chosen) != 1:
            return _over_channels(step)
        (dim,) = dims - chosen  # tensors that were stacked, channel by channel
        labels = along(*step.constraints.read(step.x, dim), step.x.shape, dim)
        ids, state = labels.ids, labels.state
    for dim in sorted(chosen, reverse=True):
        ids = ids.narrow(dim, 0, 1) if keepdim else ids.select(dim, 0)
        state = worst_along(state, dim) if keepdim else worst_along(state, dim).squeeze(dim)
    if not keeps_constants:
        state = replaced(state, CONSTANT, UNKNOWN)
    return Labels(ids, state)


def _reads_values(user: fx.Node) -> bool:
    """Return whether what reads a pair of values and indices takes the values, or nothing."""
    if user.target is operator.getitem or user.target is getattr:
        return user.args[1] in (0, "values") or not user.users
    return False


def _over_channels(step: OpCall) -> Any:
    """A sum or norm over channels: those that are zero may go.

    A mean or a variance is taken over open channels. Where no gate may stand in front of it, a mean
    divides by the channels there were.
    """
    text = f"{describe_call(step.node)} is taken over its channels"
    fix = "put an activation in front of it, or leave these channels as they are"
    dims = varying(step.x.ids)
    if not _leaves_zeros_out(step):
        return opaque(step, text)
    if len(dims) > 1:
        return opaque(step, text, fix)
    ids, state = step.constraints.read(step.x, dims[0])
    is_counted = step.may_gate_reads and step.name in ("mean", "var")
    is_read = (ids != FIXED) & ((state != ZERO) | is_counted)
    if step.may_gate_reads and bool(is_read.any()):
        step.gate_read(dims[0], torch.where(is_read, ids, FIXED))
    else:
        step.constraints.block(ids[is_read], text, fix)
    return fixed_out(step.out)


def _leaves_zeros_out(step: OpCall) -> bool:
    if step.name in ("norm", "linalg_vector_norm"):
        order = step.argument(1, "p" if step.name == "norm" else "ord", 2)
        return order in (None, "fro") or (isinstance(order, int | float) and order > 0)
    if step.name != "var" or not step.may_gate_reads:
        return step.name in ("sum", "mean")
    dims: Any = step.argument(1, "dim")
    listed = dims if isinstance(dims, tuple | list) else (dims,)
    return [dim % step.x.ids.dim() for dim in listed] == varying(step.x.ids)


def _keeps_constants(step: OpCall) -> bool:
    plain = step.name.lower().replace("_", "")
    if "lp" in plain:
        return False
    if "avg" not in plain or "adaptive" in plain:
        return True
    padding, ceil = step.option(3, "padding", 0), step.option(4, "ceil_mode", False)
    counted = step.option(5, "count_include_pad", True)
    padded = any(padding) if isinstance(padding, tuple | list) else bool(padding)
    return not ceil and not (padded and counted)
