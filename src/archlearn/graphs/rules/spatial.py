"""Calls that work within each channel: pooling, resizing, means over space."""

from typing import Any

from torch import Tensor

from archlearn.graphs.labels import CONSTANT, UNKNOWN, ZERO, Labels, along, replaced, varying
from archlearn.graphs.step import Step, opaque


def pool(step: Step) -> Any:
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


def resize(step: Step) -> Any:
    """Interpolate over space, for (batch, channels, space...)."""
    ids, state = step.ledger.read(step.x, 1)
    return along(ids, state, step.out.shape, 1)


def mean(step: Step) -> Any:
    """Reduce over dimensions within a channel; a constant stays one."""
    return _reduce(step, keeps_constants=True)


def reduce(step: Step) -> Any:
    """Reduce over dimensions within a channel; only zero is sure to stay what it was."""
    return _reduce(step, keeps_constants=False)


def along_dim(step: Step) -> Any:
    """A function along one dimension (softmax, cumsum) that channels must not lie along."""
    if not step.labels or not isinstance(step.out, Tensor) or step.out.shape != step.x.shape:
        return opaque(step)
    dim = getattr(step.module, "dim", None) if step.node.op == "call_module" else None
    dim = step.argument(1, "dim", dim)
    n = step.x.ids.dim()
    if not isinstance(dim, int) or dim % n in varying(step.x.ids):
        return opaque(step)
    return Labels(step.x.ids, replaced(step.x.state, ZERO, CONSTANT))


def _reduce(step: Step, keeps_constants: bool) -> Any:
    dims = step.argument(1, "dim", step.kwargs.get("axis"))
    keepdim = bool(step.argument(2, "keepdim", False))
    if not isinstance(step.out, Tensor) or dims is None or isinstance(dims, Labels):
        return opaque(step)
    n = step.x.ids.dim()
    chosen = {dim % n for dim in (dims if isinstance(dims, tuple | list) else (dims,))}
    if chosen & set(varying(step.x.ids)):
        return opaque(step)
    ids, state = step.x.ids, step.x.state
    for dim in sorted(chosen, reverse=True):
        ids = ids.narrow(dim, 0, 1) if keepdim else ids.select(dim, 0)
        state = state.narrow(dim, 0, 1) if keepdim else state.select(dim, 0)
    if not keeps_constants:
        state = replaced(state, CONSTANT, UNKNOWN)
    return Labels(ids, state)


def _n_space(step: Step) -> int:
    name = type(step.module).__name__ if step.node.op == "call_module" else ""
    name = name or getattr(step.node.target, "__name__", str(step.node.target))
    for n in (1, 2, 3):
        if f"{n}d" in name:
            return n
    return step.x.ids.dim() - 2


def _keeps_constants(step: Step) -> bool:
    if step.node.op == "call_module":
        module = step.module
        name = type(module).__name__
        padding = getattr(module, "padding", 0)
        counted = getattr(module, "count_include_pad", True)
        ceil = getattr(module, "ceil_mode", False)
    else:
        name = getattr(step.node.target, "__name__", str(step.node.target))
        padding = step.argument(3, "padding", 0)
        counted = step.argument(5, "count_include_pad", True)
        ceil = step.argument(4, "ceil_mode", False)
    plain = name.lower().replace("_", "")
    if "lp" in plain:
        return False
    if "avg" not in plain or "adaptive" in plain:
        return True
    padded = any(padding) if isinstance(padding, tuple | list) else bool(padding)
    return not ceil and not (padded and counted)
