"""Narrow grouped convolutions, norms, attention and means over channels."""

import operator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from archlearn.analysis.channel_labels import (
    Labels,
    line_along,
    pointwise,
    varying,
    without_repeats,
)
from archlearn.analysis.linear_ops import is_called_again, is_linear_op, read_linear_op
from archlearn.analysis.propagation_rules import rule_for
from archlearn.analysis.propagation_rules.normalization import across_channels, group_norm
from archlearn.analysis.propagation_rules.products import attention
from archlearn.module_utils import find_module
from archlearn.nn.norms import NarrowedLocalResponseNorm
from archlearn.op_table import spec_of_class

_WINDOW = ("size", "alpha", "beta", "k")


@dataclass(frozen=True, slots=True)
class Seen:
    """The labels of a call's input and output, before anything was dropped.

    Attributes:
        is_gated: Whether it reads its input through gates.
        is_whole: Whether it loses whole groups, and not parts of each.
    """

    source: Any
    out: Any
    root: Tensor
    is_gated: bool
    is_whole: bool


def narrow_call_(
    net: nn.Module, seen: Seen, node: fx.Node, dropped: Tensor, done: set[str]
) -> bool:
    """Narrow a call in place; return whether the graph itself had to change."""
    if not isinstance(seen.source, Labels) or not isinstance(seen.out, Labels):
        return False
    if is_linear_op(node, net):
        return _set_groups_(net, seen, node, dropped, done)
    module = find_module(net, str(node.target)) if node.op == "call_module" else None
    is_local = isinstance(module, nn.LocalResponseNorm | NarrowedLocalResponseNorm)
    if is_local or node.target is F.local_response_norm:
        return _narrow_local_response_(net, seen, node, dropped)
    if node.target in (torch.mean, "mean"):
        return not seen.is_gated and _narrow_mean_(seen, node, dropped)
    rule = rule_for(node, net)
    last = seen.source.ids.dim() - 1
    if rule in (across_channels, attention) and last not in varying(
        pointwise(seen.root.__getitem__, seen.source.ids)
    ):
        return False  # heads lie along another dimension
    if rule is across_channels:
        ids = line_along(seen.out.ids, last)
        return _set_size_(net, node, "normalized_shape", ids, seen, dropped)
    if rule is group_norm:
        return _set_size_(net, node, "num_groups", line_along(seen.out.ids, 1), seen, dropped)
    if rule is attention:
        return _keep_scale_(seen, node, dropped)
    spec = None if module is None else spec_of_class(type(module))
    if spec is not None and spec.rule == "normalization.within_channel":
        ids = line_along(seen.out.ids, 1)
        setattr(module, spec.sized_by, int((~dropped[seen.root[ids]]).sum()))
    return False


def _keep_scale_(seen: Seen, node: fx.Node, dropped: Tensor) -> bool:
    """Let attention divide by the root of as many channels of a query as there were."""
    ids = line_along(seen.source.ids, seen.source.ids.dim() - 1)
    is_whole = not bool(dropped[seen.root[ids]].any())
    if is_whole or len(node.args) > 6 or node.kwargs.get("scale") is not None:
        return False
    node.update_kwarg("scale", len(ids) ** -0.5)
    return True


def _narrow_mean_(seen: Seen, node: fx.Node, dropped: Tensor) -> bool:
    """Divide a mean over channels by as many as there were: those that went were zero."""
    shares = [_share_left(labels.ids, seen.root, dropped) for labels in (seen.source, seen.out)]
    if shares[0] == shares[1]:
        return False
    with node.graph.inserting_after(node):
        scaled = node.graph.call_function(operator.mul, (node, float(shares[0] / shares[1])))
    node.replace_all_uses_with(scaled, delete_user_cb=lambda user: user is not scaled)
    return True


def _share_left(ids: Tensor, root: Tensor, dropped: Tensor) -> Fraction:
    stays = ~dropped[root[without_repeats(ids)]]
    return Fraction(int(stays.sum()), max(1, stays.numel()))


def _set_size_(
    net: nn.Module, node: fx.Node, name: str, ids: Tensor, seen: Seen, dropped: Tensor
) -> bool:
    """Set the size of a norm, or its number of groups; return whether the graph had to change."""
    n_kept = int((~dropped[seen.root[ids]]).sum())
    if n_kept == len(ids):
        return False
    if node.op == "call_module":
        module: Any = find_module(net, str(node.target))
        if name == "normalized_shape":
            module.normalized_shape = (n_kept,)
        elif module.num_channels != n_kept:
            if seen.is_whole:
                module.num_groups = module.num_groups * n_kept // module.num_channels
            module.num_channels = n_kept
        return False
    if name == "num_groups" and not seen.is_whole:
        return False
    given: Any = node.args[1] if len(node.args) > 1 else node.kwargs[name]
    size: Any = (n_kept,) if name == "normalized_shape" else given * n_kept // len(ids)
    _set_argument_(node, 1, name, size)
    return True


def _set_argument_(node: fx.Node, place: int, name: str, value: Any) -> None:
    """Give a call another argument, by position where it was given so."""
    if len(node.args) > place:
        node.update_arg(place, value)
    else:
        node.update_kwarg(name, value)


def _set_groups_(
    net: nn.Module, seen: Seen, node: fx.Node, dropped: Tensor, done: set[str]
) -> bool:
    op = read_linear_op(node, net)
    if op is None or op.groups == 1 or op.layer in done:
        return False
    stays = ~dropped[seen.root[line_along(seen.out.ids, op.channel_dim)]]
    groups = int(stays.reshape(op.groups, -1).any(1).sum())
    if not op.is_module:
        _set_argument_(node, 6, "groups", groups)
        return groups != op.groups
    module: Any = find_module(net, op.layer)
    module.groups = groups
    done.add(op.layer)
    return False


def _narrow_local_response_(net: nn.Module, seen: Seen, node: fx.Node, dropped: Tensor) -> bool:
    """Put in a normalisation of fewer channels, each with the number that it had at first."""
    stays = ~dropped[seen.root[line_along(seen.source.ids, 1)]]
    n_original, kept = len(stays), torch.nonzero(stays).flatten().tolist()
    if len(kept) == n_original:
        return False
    given: dict[str, Any] = {"alpha": 1e-4, "beta": 0.75, "k": 1.0}
    if node.op == "call_module":
        old: Any = find_module(net, str(node.target))
        given = {name: getattr(old, name) for name in _WINDOW}
        if isinstance(old, NarrowedLocalResponseNorm):
            n_original, kept = old.n_original, old.kept[kept].tolist()
    else:
        given |= dict(zip(_WINDOW, node.args[1:], strict=False)) | dict(node.kwargs)
    window = [given[name] for name in _WINDOW]
    made = NarrowedLocalResponseNorm(*window, n_original=n_original, kept=kept)
    made.to(next((p.device for p in net.parameters()), None))
    if node.op == "call_module" and not is_called_again(node):
        net.set_submodule(str(node.target), made)
        return False
    name = f"archlearn_norm_{sum(n.startswith('archlearn_norm_') for n in net._modules)}"
    net.add_module(name, made)
    with node.graph.inserting_before(node):
        fresh = node.graph.call_module(name, (node.all_input_nodes[0],))
    node.replace_all_uses_with(fresh)
    node.graph.erase_node(node)
    return True
