"""Rule of activations, the sites where gates may be."""

from typing import Any

import torch
from torch import Tensor, fx, nn

from archlearn.analysis.channel_labels import ZERO, Labels, pointwise
from archlearn.analysis.propagation_rules.elementwise import prelu, unary
from archlearn.analysis.rule_api import OpCall, name_of, opaque
from archlearn.errors import with_article
from archlearn.module_utils import find_module
from archlearn.nn.tristate_activation import TriState
from archlearn.op_table import ACTIVATE, spec_of_class


def activation_name(node: fx.Node, net: nn.Module) -> str:
    """Return the activation's own name: ReLU, gelu."""
    if node.op == "call_module":
        module = find_module(net, str(node.target))
        inner = module.activation if isinstance(module, TriState) else module
        return type(inner).__name__
    return name_of(node).rstrip("_")


def activate(step: OpCall) -> Any:
    """Follow an activation; where it is gated, a dropped channel is zero behind it."""
    out = _activate(step)
    if not step.gated or not isinstance(out, Labels):
        return out
    return Labels(out.ids, torch.tensor(ZERO).expand(out.shape))


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
    return Labels(ids, pointwise(_gate_state, state, gate_state))


def _gate_state(state: Tensor, gate_state: Tensor) -> Tensor:
    return torch.where(state == ZERO, ZERO, torch.maximum(state, gate_state))
