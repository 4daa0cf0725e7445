"""Rules: how channel labels pass each operation, one family a file.

Which rule an operation has is said by its entry in `op_table`; one without a rule is opaque.
"""

from functools import cache
from typing import Any

import torch
from torch import fx, nn

from archlearn.analysis.channel_labels import fixed_like
from archlearn.analysis.linear_ops import is_linear_op
from archlearn.analysis.propagation_rules import (
    elementwise,
    linear,
    normalization,
    pooling,
    products,
    reshape,
)
from archlearn.analysis.rule_api import OUTPUT, OpCall, Rule, opaque
from archlearn.module_utils import find_module, has_hooks
from archlearn.op_table import ACTIVATE, PRODUCT, spec_of
from archlearn.tracing.block_hooks import MARKS
from archlearn.tracing.example_inputs import CHECKS
from archlearn.tracing.output_types import is_construction, tensors_in

_MODULES = (elementwise, linear, normalization, pooling, products, reshape)
_HOMES = {module.__name__.rpartition(".")[2]: module for module in _MODULES}


@cache
def find_rule(name: str) -> Rule:
    """Return the function that an entry of the table names, such as `reshape.move`."""
    home, _, function = name.partition(".")
    return getattr(_HOMES[home], function) if name else opaque


def rule_for(node: fx.Node, net: nn.Module) -> Rule:
    """Return the rule for a call."""
    if is_linear_op(node, net):
        return linear.linear
    if node.target in CHECKS or node.target in MARKS:
        return reshape.number
    if is_construction(node.target):
        return _construct
    spec = spec_of(node, net)
    if spec is None or spec.rule == PRODUCT:
        return opaque
    if is_selection(node):
        return reshape.move
    if spec.rule != ACTIVATE and node.op == "call_module":
        return opaque if has_hooks(find_module(net, str(node.target))) else find_rule(spec.rule)
    return find_rule(spec.rule)


def is_selection(node: fx.Node) -> bool:
    """Return whether a call selects by an index of the model's own, as compact models do."""
    is_call = node.target is torch.index_select and len(node.args) == 3
    return is_call and isinstance(node.args[2], fx.Node) and node.args[2].op == "get_attr"


def _construct(step: OpCall) -> Any:
    """A container that `forward` returns, or gives to a leaf."""
    opaque(step, OUTPUT.text, OUTPUT.fix)
    return tuple(fixed_like(tensor) for tensor in tensors_in((step.real_args, step.real_kwargs)))
