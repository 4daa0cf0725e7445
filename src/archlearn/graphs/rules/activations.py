"""A site is the output of an activation: where width and depth gates may stand."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from archlearn.errors import with_article
from archlearn.graphs.labels import ZERO, Labels, pointwise
from archlearn.graphs.lookups import find_module
from archlearn.graphs.rules.elementwise import prelu, unary
from archlearn.graphs.step import Step, opaque
from archlearn.tristate import TriState

MODULES: tuple[type[nn.Module], ...] = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU,
    nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardtanh, nn.Tanh, nn.Softplus, nn.Softsign, nn.GLU,
    nn.Tanhshrink, nn.Softshrink, nn.Hardshrink, nn.Threshold, nn.LogSigmoid, TriState,
)  # fmt: skip
FUNCTIONS: tuple[Any, ...] = (
    F.relu, F.relu_, torch.relu, torch.relu_, F.relu6, F.leaky_relu, F.leaky_relu_, F.prelu,
    torch.prelu, F.rrelu, F.elu, F.elu_, F.celu, F.selu, F.gelu, F.silu, F.mish, F.hardswish,
    F.hardtanh, F.hardtanh_, F.tanh, torch.tanh, F.softplus, F.softsign, F.glu, F.threshold,
    F.logsigmoid, F.softshrink, F.hardshrink, F.tanhshrink,
)  # fmt: skip
METHODS = ("relu", "relu_", "tanh", "tanh_", "prelu")
# A squashing function often is a gate itself (squeeze-and-excite): it becomes a site only
# where its channels have no other.
SQUASHING_MODULES: tuple[type[nn.Module], ...] = (nn.Sigmoid, nn.Hardsigmoid)
SQUASHING_FUNCTIONS: tuple[Any, ...] = (F.sigmoid, torch.sigmoid, F.hardsigmoid)
SQUASHING_METHODS = ("sigmoid", "sigmoid_")


def is_site(node: fx.Node, net: nn.Module) -> bool:
    """Return whether a call is an activation."""
    return _is(node, net, MODULES, FUNCTIONS, METHODS) or is_squashing(node, net)


def is_squashing(node: fx.Node, net: nn.Module) -> bool:
    """Return whether a call is an activation that often is a gate itself."""
    return _is(node, net, SQUASHING_MODULES, SQUASHING_FUNCTIONS, SQUASHING_METHODS)


def has_activation(module: nn.Module) -> bool:
    """Return whether a layer and an activation are among a module's parts."""
    parts = list(module.modules())
    has_layer = any(isinstance(part, nn.Linear | nn.modules.conv._ConvNd) for part in parts)
    home = "transformers.activations"  # classes of its own, which call the functions
    return has_layer and any(isinstance(p, MODULES) or type(p).__module__ == home for p in parts)


def activation_name(node: fx.Node, net: nn.Module) -> str:
    """Return the activation's own name: ReLU, gelu."""
    if node.op == "call_module":
        module = find_module(net, str(node.target))
        inner = module.activation if isinstance(module, TriState) else module
        return type(inner).__name__
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "?")
    return name.rstrip("_")


def activate(step: Step) -> Any:
    """Follow an activation; where it is gated, a dropped channel is zero behind it."""
    out = _activate(step)
    if not step.gated or not isinstance(out, Labels):
        return out
    return Labels(out.ids, torch.tensor(ZERO).expand(out.shape))


def _activate(step: Step) -> Any:
    name = activation_name(step.node, step.net)
    module = step.module if step.node.op == "call_module" else None
    known = (*MODULES, *SQUASHING_MODULES, nn.Identity)
    if isinstance(module, TriState) and not isinstance(module.activation, known):
        return opaque(
            step,
            f"{step.node.target!r} wraps {with_article(name)}, which may mix channels",
            "wrap an activation that treats every element alike",
        )
    if name.lower() == "prelu":
        return prelu(step)
    return _glu(step) if name.lower() == "glu" else unary(step)


def _glu(step: Step) -> Any:
    dim = step.module.dim if step.node.op == "call_module" else step.argument(1, "dim", -1)
    if not isinstance(dim, int):
        return opaque(step)
    ids, gate_ids = step.x.ids.chunk(2, dim)
    state, gate_state = step.x.state.chunk(2, dim)
    step.ledger.tie(ids, gate_ids)
    return Labels(ids, pointwise(_gate_state, state, gate_state))


def _gate_state(state: Tensor, gate_state: Tensor) -> Tensor:
    return torch.where(state == ZERO, ZERO, torch.maximum(state, gate_state))


def _is(
    node: fx.Node, net: nn.Module, modules: Any, functions: Any, methods: tuple[str, ...]
) -> bool:
    if node.op == "call_module":
        module = find_module(net, str(node.target))
        return isinstance(module, modules)
    if node.op == "call_method":
        return node.target in methods
    return node.op == "call_function" and node.target in functions
