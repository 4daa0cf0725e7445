"""Rules of pooling, interpolation, softmax and reductions."""

from typing import Any

import torch
from torch import Tensor

from archlearn.analysis.channel_labels import (
    CONSTANT,
    FIXED,
    UNKNOWN,
    ZERO,
    Labels,
    along,
    replaced,
    varying,
)
from archlearn.analysis.rule_api import OpCall, describe_call, fixed_out, opaque

# Where the dimensions and keepdim stand in a call, if not second and third.
_PLACES = {"var": (1, 3), "std": (1, 3), "norm": (2, 3), "linalg_vector_norm": (2, 3)}


def pool(step: OpCall) -> Any:
    """Pool over space; zero stays zero, and a constant stays one unless zeros are counted in."""
    if not isinstance(step.out, Tensor):
        return opaque(step)
    n_space = _n_space(step)
    dim = step.x.ids.dim() - 1 - n_space
    if dim < 0:
        return opaque(step)
    ids, state = step.ledger.read(step.x, dim)
    if not _keeps_constants(step):
        state = replaced(state, CONSTANT, UNKNOWN)
    return along(ids, state, step.out.shape, dim)


def resize(step: OpCall) -> Any:
    """Interpolate over space, for (batch, channels, space...)."""
    ids, state = step.ledger.read(step.x, 1)
    return along(ids, state, step.out.shape, 1)


def mean(step: OpCall) -> Any:
    """Reduce over dimensions within a channel; a constant stays one."""
    return _reduce(step, keeps_constants=True)


def reduce(step: OpCall) -> Any:
    """Reduce over dimensions within a channel; only zero is sure to stay what it was."""
    return _reduce(step, keeps_constants=False)


def along_dim(step: OpCall) -> Any:
    """A function along one dimension (softmax, cumsum) that channels must not lie along.

    A sum of constants differs from place to place, and a softmax of them with the image's size.
    """
    if not step.labels or not isinstance(step.out, Tensor) or step.out.shape != step.x.shape:
        return opaque(step)
    dim = getattr(step.module, "dim", None) if step.node.op == "call_module" else None
    dim = step.argument(1, "dim", dim)
    n = step.x.ids.dim()
    if not isinstance(dim, int) or dim % n in varying(step.x.ids):
        return opaque(step)
    state = step.x.state
    if "soft" in _name_of(step).lower():
        state = replaced(state, ZERO, UNKNOWN)
    return Labels(step.x.ids, replaced(state, CONSTANT, UNKNOWN))


def _reduce(step: OpCall, keeps_constants: bool) -> Any:
    of_dims, of_keepdim = _PLACES.get(_name_of(step), (1, 2))
    dims = step.argument(of_dims, "dim", step.kwargs.get("axis"))
    keepdim = bool(step.argument(of_keepdim, "keepdim", False))
    if not isinstance(step.out, Tensor) or not _are_dims(dims):
        return opaque(step)
    n = step.x.ids.dim()
    chosen = {dim % n for dim in (dims if isinstance(dims, tuple | list) else (dims,))}
    ids, state = step.x.ids, step.x.state
    dims = set(varying(ids))
    if chosen & dims:
        if len(dims - chosen) != 1:
            return _over_channels(step)
        (dim,) = dims - chosen  # tensors that were stacked, channel by channel
        labels = along(*step.ledger.read(step.x, dim), step.x.shape, dim)
        ids, state = labels.ids, labels.state
    for dim in sorted(chosen, reverse=True):
        ids = ids.narrow(dim, 0, 1) if keepdim else ids.select(dim, 0)
        state = state.narrow(dim, 0, 1) if keepdim else state.select(dim, 0)
    if not keeps_constants:
        state = replaced(state, CONSTANT, UNKNOWN)
    return Labels(ids, state)


def _over_channels(step: OpCall) -> Any:
    """A sum or norm over channels: those that are zero may go. A mean is taken over open channels.

    Where no gate may stand in front of it, it divides by the channels there were.
    """
    text = f"{describe_call(step.node)} is taken over its channels"
    fix = "put an activation in front of it, or leave these channels as they are"
    dims = varying(step.x.ids)
    if not _leaves_zeros_out(step):
        return opaque(step, text)
    if len(dims) > 1:
        return opaque(step, text, fix)
    ids, state = step.ledger.read(step.x, dims[0])
    is_counted = step.may_gate_reads and _name_of(step) == "mean"
    is_read = (ids != FIXED) & ((state != ZERO) | is_counted)
    if step.may_gate_reads and bool(is_read.any()):
        step.gate_read(dims[0], torch.where(is_read, ids, FIXED))
    else:
        step.ledger.block(ids[is_read], text, fix)
    return fixed_out(step.out)


def _leaves_zeros_out(step: OpCall) -> bool:
    name = _name_of(step)
    if name in ("norm", "linalg_vector_norm"):
        order = step.argument(1, "p" if name == "norm" else "ord", 2)
        return order in (None, "fro") or (isinstance(order, int | float) and order > 0)
    return name in ("sum", "mean")


def _are_dims(dims: Any) -> bool:
    each = dims if isinstance(dims, tuple | list) else (dims,)
    return len(each) > 0 and all(type(dim) is int for dim in each)


def _name_of(step: OpCall) -> str:
    if step.node.op == "call_module":
        return type(step.module).__name__
    return getattr(step.node.target, "__name__", str(step.node.target))


def _n_space(step: OpCall) -> int:
    name = _name_of(step)
    for n in (1, 2, 3):
        if f"{n}d" in name:
            return n
    return step.x.ids.dim() - 2


def _keeps_constants(step: OpCall) -> bool:
    if step.node.op == "call_module":
        module = step.module
        padding = getattr(module, "padding", 0)
        counted = getattr(module, "count_include_pad", True)
        ceil = getattr(module, "ceil_mode", False)
    else:
        padding = step.argument(3, "padding", 0)
        counted = step.argument(5, "count_include_pad", True)
        ceil = step.argument(4, "ceil_mode", False)
    plain = _name_of(step).lower().replace("_", "")
    if "lp" in plain:
        return False
    if "avg" not in plain or "adaptive" in plain:
        return True
    padded = any(padding) if isinstance(padding, tuple | list) else bool(padding)
    return not ceil and not (padded and counted)
