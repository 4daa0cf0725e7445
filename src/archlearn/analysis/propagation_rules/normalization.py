"""Rules of BatchNorm, LayerNorm, GroupNorm and local response normalisation."""

from typing import Any

import torch
from torch import Tensor, nn

from archlearn.analysis.channel_labels import (
    CONSTANT,
    FIXED,
    UNKNOWN,
    ZERO,
    Labels,
    along,
    constant,
    plane_along,
    replaced,
    varying,
)
from archlearn.analysis.rule_api import OpCall, describe_call, opaque
from archlearn.module_utils import has_hooks
from archlearn.op_table import spec_of_class

_TENSORS = ("weight", "bias", "running_mean", "running_var")


def within_channel(step: OpCall) -> Any:
    """BatchNorm and InstanceNorm: a dropped channel becomes a constant."""
    is_computed = any(labels.name is None for labels in step.labels[1:])
    if not isinstance(step.out, Tensor) or step.out.shape != step.x.shape or is_computed:
        return opaque(step)
    n_space = {"1d": 1, "2d": 2, "3d": 3}.get(step.name[-2:], 0)
    is_batched = step.x.ids.dim() > n_space + 1 or "Batch" in step.name or n_space == 0
    ids, _ = step.constraints.read(step.x, 1 if is_batched else 0)
    _tie_tensors(step, ids)
    return Labels(step.x.ids, replaced(step.x.state, ZERO, CONSTANT))


def _tie_tensors(step: OpCall, ids: Tensor) -> None:
    """The tensors of a norm, its module's or those that it is given, go with its channels."""
    for labels in step.labels[1:]:
        step.constraints.tie(labels.ids.reshape(-1), ids)
    for attribute in _TENSORS if step.is_module else ():
        if getattr(step.module, attribute, None) is not None:
            step.constraints.tie_dim(f"{step.node.target}.{attribute}", 0, ids)


def may_need_batch(module: nn.Module, x: Any) -> bool:
    """Return whether a norm would give a tensor like `x`, but fails in training on one row."""
    spec = spec_of_class(type(module))
    if spec is None or spec.rule != "normalization.within_channel" or has_hooks(module):
        return False
    fits = isinstance(x, Tensor) and x.is_floating_point() and x.dim() > 1
    return module.training and fits and x.shape[1] == getattr(module, spec.sized_by)


def across_channels(step: OpCall) -> Any:
    """LayerNorm and RMSNorm read through gates: statistics over what stays, nothing for the rest.

    Where channels lie along other dimensions, each is normalised by itself.
    """
    shape = step.option(1, "normalized_shape")
    dim, n_normalised = step.x.ids.dim() - 1, len(shape) if isinstance(shape, tuple | list) else 1
    normalised = range(dim + 1 - n_normalised, dim + 1)
    dims = varying(step.x.ids)
    if not set(dims) & set(normalised):
        return Labels(step.x.ids, constant(UNKNOWN, step.x.shape))
    if n_normalised > 1 or not step.may_gate_reads:
        return _keep_normalised(step)
    ids, _ = step.constraints.read(step.x, dim)
    _tie_tensors(step, ids)
    step.gate_read(dim, ids)
    return along(ids, torch.where(ids == FIXED, UNKNOWN, ZERO), step.out.shape, dim)


def group_norm(step: OpCall) -> Any:
    """GroupNorm loses whole groups, or equally many channels of every group.

    Whichever leaves the finer choice. Whole groups leave the others as they were; of parts the
    statistics are taken over what stays, through gates.
    """
    n_groups = step.option(1, "num_groups")
    if not isinstance(n_groups, int) or step.x.ids.dim() < 2:
        return _keep_normalised(step)
    ids, state = step.constraints.read(step.x, 1)
    size = len(ids) // n_groups
    is_finer = n_groups >= size or not step.may_gate_reads
    in_parts = not step.constraints.whole_groups.setdefault(step.node.name, is_finer)
    atoms = step.constraints.new_atoms(size if in_parts else n_groups)
    step.constraints.tie(atoms.repeat(n_groups) if in_parts else atoms.repeat_interleave(size), ids)
    _tie_tensors(step, ids)
    if in_parts:
        step.gate_read(1, ids)
        return along(ids, torch.where(ids == FIXED, UNKNOWN, ZERO), step.out.shape, 1)
    worst = state.reshape(n_groups, -1).amax(1).repeat_interleave(size)
    return along(ids, torch.where(worst == ZERO, CONSTANT, UNKNOWN), step.out.shape, 1)


def unit_length(step: OpCall) -> Any:
    """`F.normalize`: a length over the open channels, or over those of each head that are open."""
    order, dim = step.argument(1, "p", 2.0), step.argument(2, "dim", 1)
    is_known = isinstance(order, int | float) and order > 0 and isinstance(dim, int)
    if not is_known or step.out.shape != step.x.shape:
        return opaque(step)
    dim, dims = dim % step.x.ids.dim(), varying(step.x.ids)
    if dim not in dims:  # a length within each channel
        return Labels(step.x.ids, replaced(step.x.state, CONSTANT, UNKNOWN))
    if len(dims) == 2 and step.may_gate_reads:
        return _unit_length_of_heads(step, dim, next(other for other in dims if other != dim))
    if len(dims) > 1:
        return _keep_normalised(step)
    ids, state = step.constraints.read(step.x, dim)
    is_read = (ids != FIXED) & (state != ZERO)
    if bool(is_read.any()):
        if not step.may_gate_reads:
            return _keep_normalised(step)
        step.gate_read(dim, torch.where(is_read, ids, FIXED))
    state = torch.where((ids != FIXED) & ~is_read, ZERO, UNKNOWN)
    return along(ids, state, step.out.shape, dim)


def _unit_length_of_heads(step: OpCall, dim: int, heads: int) -> Labels:
    """The same channel of each head is left out of the length of each; heads pass."""
    cells = plane_along(step.x.ids, (heads, dim))
    rows, columns = map(step.constraints.new_atoms, cells.shape)
    step.constraints.note_grid(cells, rows, columns)
    step.gate_read(dim, columns)
    return Labels(step.x.ids, constant(UNKNOWN, step.x.shape))


def _keep_normalised(step: OpCall) -> Any:
    return opaque(
        step,
        f"normalised together with other channels by {describe_call(step.node)}",
        "learn the layers inside the block (hidden units), or use BatchNorm there",
    )


def local_response(step: OpCall) -> Any:
    """Neighbours are summed at their original distance, so a channel that is zero may go."""
    step.constraints.block(
        step.x.ids[step.x.state != ZERO],
        f"its neighbours are normalised by it in {describe_call(step.node)}",
        "put the activation in front of the local response normalisation",
    )
    dim = 1 if step.x.ids.dim() > 2 else 0
    step.constraints.read(step.x, dim)
    return Labels(step.x.ids, step.x.state)
