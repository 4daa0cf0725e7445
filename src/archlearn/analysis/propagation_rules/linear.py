"""Rule of Linear and convolution layers: they end channels and begin new ones.

Channels along another dimension than the one that is summed over pass (the token-mixing layers of
an MLP-Mixer): each is multiplied by itself, and goes by itself.
"""

from collections.abc import Callable
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
    constant,
    line_along,
    varying,
)
from archlearn.analysis.constraints import Reason
from archlearn.analysis.linear_ops import LinearOp, is_called_again, read_linear_op
from archlearn.analysis.rule_api import FEW, OpCall, describe_call, opaque
from archlearn.module_utils import find_tensor
from archlearn.op_table import RECURRENT, TRANSPOSED
from archlearn.tracing.fx_utils import leaves_of, map_leaves


def linear(step: OpCall) -> Any:
    """Read the input's channels and return those of the weight's rows."""
    op = read_linear_op(step.node, step.net)
    if op is None:
        reason = computed_weight(step.node)
        return opaque(step, reason.text, reason.fix)
    dim = step.x.ids.dim() + op.channel_dim
    if op.kind == RECURRENT:
        return _recurrent(step, op, dim)
    passing = _find_passing(step, op, dim)
    if passing is not None:
        return _pass(step, op, dim, *passing)
    ids, state = step.constraints.read(step.x, dim)
    rule = _dense if op.groups == 1 else _choose_rule(step, op)
    rows, out_state = rule(step, op, ids, state)
    _tie_bias(step, op, rows)
    return along(rows, out_state, step.out.shape, dim)


def _tie_bias(step: OpCall, op: LinearOp, rows: Tensor) -> None:
    if op.bias is not None:
        step.constraints.tie_dim(op.bias, 0, rows, op.bias_rows)


def _recurrent(step: OpCall, op: LinearOp, dim: int) -> Any:
    """Tie unit i of all layers and directions of a recurrent module, and read the input's channels.

    A gate multiplies the columns by which the next step and the next layer read a unit; what else
    a closed one computes is its own. Those that are projected (`proj_size`) have gates behind that.
    """
    ids, state = step.constraints.read(step.x, dim)
    _check_reader(step, op, ids, state)
    module: Any = step.module
    units = step.constraints.new_atoms(module.hidden_size)
    states = step.constraints.new_atoms(module.proj_size) if module.proj_size else units
    others = states.repeat(1 + module.bidirectional)
    columns = {"weight_hr": units, "weight_hh": states, "weight_ih": others}
    for name in module._flat_weights_names:
        tensor, full = getattr(module, name), f"{op.layer}.{name}"
        rows = states if name.startswith("weight_hr") else units.repeat(len(tensor) // len(units))
        step.constraints.tie_dim(full, 0, rows)
        if tensor.dim() > 1:
            is_first = name.removesuffix("_reverse") == "weight_ih_l0"
            step.constraints.tie_dim(full, 1, ids if is_first else columns[name[:9]])
    _keep_units(step, op, states, units)
    lines = iter((states, states, units))

    def follow(leaf: Tensor) -> Labels:
        line = next(lines)
        line = line.repeat(leaf.shape[-1] // len(line))
        return along(line, constant(UNKNOWN, [len(line)]), leaf.shape, leaf.dim() - 1)

    return map_leaves(follow, step.out)


def _keep_units(step: OpCall, op: LinearOp, states: Tensor, units: Tensor) -> None:
    """Tie units to the states that they start from; keep those that cannot go."""
    for state, unit_ids in zip(leaves_of(step.argument(1, "hx")), (states, units), strict=False):
        ids = torch.tensor([FIXED], device="cpu")
        if isinstance(state, Labels):
            ids, _ = step.constraints.read(state, state.ids.dim() - 1)
        if state is not None and bool((ids == FIXED).any()):
            text = f"{op.layer!r} starts from a state hx that is given, or of numbers written down"
            fix = "leave hx out, or make it a parameter, a buffer or x.new_zeros(...) in forward"
            step.constraints.block(unit_ids, text, fix)
        elif state is not None:
            step.constraints.tie(ids, unit_ids)
    if states is not units:
        step.constraints.block(units, f"{op.layer!r} projects them", "leave proj_size out")
    if not step.may_gate_reads:
        step.constraints.block(
            states,
            f"{op.layer!r} reads them at every step, where no gate of this kind can stand",
            "use add_gates with kind='binary'",
        )


def _find_passing(step: OpCall, op: LinearOp, dim: int) -> tuple[int, Tensor, Tensor] | None:
    """Return the other dimension that channels lie along, theirs, and those that are summed over.

    None if all lie along the one that is summed over, or along several others.
    """
    others = [other for other in varying(step.x.ids) if other != dim]
    # It must do the same at each place, and read nothing beside.
    kernel = find_tensor(step.net, op.weight).shape[2:]
    before, after = ([n for at, n in enumerate(x.shape) if at != dim] for x in (step.x, step.out))
    is_whole = op.groups == 1 and not op.is_part
    is_pointwise = is_whole and not op.padded and kernel.numel() == 1 and before == after
    if len(others) != 1 or not step.may_gate_reads or not is_pointwise:
        return None
    (other,) = others
    if dim not in varying(step.x.ids):
        ids = line_along(step.x.ids, other)
        return other, ids, torch.full((step.x.shape[dim],), FIXED, device="cpu")
    lines = step.constraints.lines_of(step.x.ids)
    line_of = {tuple(varying(line)): line for line in lines or ()}
    if line_of.keys() != {(other,), (dim,)}:
        return None
    return other, line_along(line_of[other,], other), line_along(line_of[dim,], dim)


def _pass(
    step: OpCall, op: LinearOp, dim: int, other: int, passing: Tensor, summed: Tensor
) -> Labels:
    unknown = torch.tensor(UNKNOWN, device="cpu")
    rows, _ = _dense(step, op, summed, unknown.expand(len(summed)))
    _tie_bias(step, op, rows)
    step.passing.append(passing)
    cells = step.constraints.new_matrix(passing, rows)
    shape = step.out.shape
    view = [size if at in (dim, other) else 1 for at, size in enumerate(shape)]
    cells = (cells if other < dim else cells.T).reshape(view)
    return Labels(cells.expand(shape), unknown.expand(shape))


def computed_weight(node: fx.Node) -> Reason:
    """Return why channels stay in front of a layer, and behind it, whose weight is computed."""
    return Reason(
        f"{describe_call(node)} has a weight or bias that forward computes",
        "use it as it is, or compute it in a parametrization (torch.nn.utils.parametrize)",
    )


def _choose_rule(step: OpCall, op: LinearOp) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the rule of a grouped convolution: it loses whole groups, parts of each, or both.

    Both where there are many of both (ResNeXt), or else whichever leaves the finer choice: a
    depthwise convolution has groups of one channel, AlexNet's had two groups of many.
    """
    sides = step.x.ids, step.out
    size = min(side.shape[side.dim() + op.channel_dim] for side in sides) // op.groups
    is_many, is_finer = min(op.groups, size) > FEW, op.groups >= size
    decisions, name = step.constraints.whole_groups, step.node.name
    if decisions.setdefault(f"{name}/2", is_many):
        return _groups_and_parts
    return _whole_groups if decisions.setdefault(name, is_finer) else _within_groups


def _dense(step: OpCall, op: LinearOp, ids: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    step.constraints.tie_dim(op.weight, op.in_dim, ids)
    _check_reader(step, op, ids, state)
    rows = step.constraints.dim(op.weight, op.out_dim)[op.weight_rows]
    return rows, constant(UNKNOWN, [len(rows)])


def _whole_groups(step: OpCall, op: LinearOp, ids: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    n_out = step.out.shape[step.out.dim() + op.channel_dim]
    groups = step.constraints.new_atoms(op.groups)
    n_in = len(ids) // op.groups
    step.constraints.tie(groups.repeat_interleave(n_in), ids)
    rows = groups.repeat_interleave(n_out // op.groups)
    first = step.constraints.dim(op.weight, 0)
    step.constraints.tie(groups.repeat_interleave(len(first) // op.groups), first)
    worst = state.reshape(op.groups, n_in).amax(1)
    out = torch.where(worst == ZERO, ZERO if op.bias is None else CONSTANT, UNKNOWN)
    if not op.padded and op.kind != TRANSPOSED:
        out = torch.where(worst == CONSTANT, CONSTANT, out)
    return rows, out.repeat_interleave(n_out // op.groups)


def _groups_and_parts(
    step: OpCall, op: LinearOp, ids: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """A channel goes with its group, or with its place in all groups, as those of heads do."""
    n_out = step.out.shape[step.out.dim() + op.channel_dim]
    first, second = step.constraints.dim(op.weight, 0), step.constraints.dim(op.weight, 1)
    if op.kind == TRANSPOSED:
        step.constraints.tie(first, ids)
        rows, within = step.constraints.new_atoms(n_out), second
        columns = step.constraints.new_atoms(len(ids) // op.groups)
    else:
        rows, columns = first, second
        within = step.constraints.new_atoms(n_out // op.groups)
    groups = step.constraints.new_atoms(op.groups)
    for cells, places in ((ids, columns), (rows, within)):
        step.constraints.note_grid(cells.reshape(op.groups, -1), groups, places)
    # Groups have their gates behind: in front, too, a closed one would have no gradient.
    state = torch.full_like(state, UNKNOWN) if step.may_gate_reads else state
    _check_reader(step, op, columns.repeat(op.groups), state)
    return rows, constant(UNKNOWN, [len(rows)])


def _within_groups(step: OpCall, op: LinearOp, ids: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    n_out = step.out.shape[step.out.dim() + op.channel_dim]
    first, second = step.constraints.dim(op.weight, 0), step.constraints.dim(op.weight, 1)
    if op.kind == TRANSPOSED:
        columns = first[: len(first) // op.groups]
        step.constraints.tie(columns.repeat(op.groups), first)
        rows = second.repeat(op.groups)
    else:
        columns = second
        rows = first[: n_out // op.groups].repeat(op.groups)
        step.constraints.tie(rows, first)
    step.constraints.tie(columns.repeat(op.groups), ids)
    _check_reader(step, op, ids, state)
    return rows, constant(UNKNOWN, [len(rows)])


def _check_reader(step: OpCall, op: LinearOp, ids: Tensor, state: Tensor) -> None:
    if bool((state == ZERO).all()):
        return
    is_padded = op.padded or op.kind == TRANSPOSED
    is_shared = is_called_again(step.node) or op.layer in step.constraints.sharing
    takes_constants = op.takes_constants and not (is_padded or is_shared)
    is_read = (state != ZERO) if not takes_constants else (state == UNKNOWN)
    is_read = is_read & (ids != FIXED)
    if step.may_gate_reads and bool(is_read.any()):
        step.gate_read(step.x.ids.dim() + op.channel_dim, torch.where(is_read, ids, FIXED))
        return
    step.constraints.block(
        ids[state == UNKNOWN],
        f"read by {op.layer!r} with no activation in between",
        f"put an activation in front of {op.layer!r}",
    )
    if is_padded:
        text = f"a dropped channel becomes a constant that {op.layer!r} reads with zero padding"
        fix = f"put the normalisation in front of the activation, or use padding=0 in {op.layer!r}"
    else:
        text = f"a dropped channel becomes a constant that {op.layer!r} cannot take into a bias"
        fix = "put the normalisation in front of the activation"
    step.constraints.block(ids[is_read & (state == CONSTANT)], text, fix)
