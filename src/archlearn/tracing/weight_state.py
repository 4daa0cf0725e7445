"""Restore weights, buffers and attributes that a call changes.

Some models move one network a little towards another at each call. A trace would pass over that,
so only a leaf may do it; what a leaf did while it was looked at is put back. So is what calls for
certificates and costs change.
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from archlearn.errors import TracingError
from archlearn.module_utils import find_module, has_hooks
from archlearn.tracing.computed_weights import computes_weights
from archlearn.tracing.module_state import LEFT, ModuleState, holds
from archlearn.tracing.symbolic_trace import Traces

_MOVE_STATISTICS: tuple[Any, ...] = (
    F.batch_norm, F.instance_norm, torch.batch_norm, torch.instance_norm,
)  # fmt: skip


@torch.no_grad()
def restore_weights_(copied: nn.Module, net: nn.Module, traces: Traces) -> None:
    """Give a copy that was traced and run the weights of the model it was made from.

    Raises:
        TracingError: If something else than a leaf has changed them.
    """
    own = dict(net.named_parameters())
    copies = {name: p for name, p in copied.named_parameters() if name in own}
    moved = [name for name, p in copies.items() if _has_moved(p, own[name])]
    leaves = [f"{name}." for graph in traces.graphs for name in _leaves_of(graph, copied)]
    for name in moved:
        if not any(name.startswith(leaf) for leaf in leaves):
            raise TracingError(
                f"cannot follow the forward of {type(net).__name__}: {LEFT.format(name=name)}. A "
                "submodule of its own that is named in leaves=[...] may do it"
            )
        copies[name].data.copy_(own[name])


def mutable_modules(traces: Traces, net: nn.Module) -> tuple[str, ...]:
    """Return the modules that may change when a model is called, "" for the whole of it."""
    if any(has_hooks(m) or computes_weights(m) for m in net.modules()):
        return ("",)  # whatever they do
    names: set[str] = set()
    for graph in traces.graphs:
        moves = any(node.target in _MOVE_STATISTICS for node in graph.nodes)
        names |= {""} if moves else _leaves_of(graph, net) | _learning_norms(graph, net)
    return tuple(sorted(names))


def _learning_norms(graph: fx.Graph, net: nn.Module) -> set[str]:
    """Return modules that are in training mode, maybe in every mode of the model: they may move."""
    called = {str(node.target) for node in graph.nodes if node.op == "call_module"}
    found = {name: find_module(net, name) for name in called}
    return {name for name, module in found.items() if module.training and module._buffers}


@contextmanager
def preserve_weights(net: nn.Module, names: Iterable[str] = ("",)) -> Generator[None]:
    """Put back whatever calls change in modules: weights, buffers, attributes.

    Args:
        net: A model.
        names: Those that may change.
    """
    known = dict(net.named_modules())
    modules = {m: None for name in names if name in known for m in known[name].modules()}
    weights = [p for m in modules for p in m._parameters.values() if p is not None]
    numbers = [p.detach().clone() for p in weights]
    before = ModuleState(modules)
    try:
        yield
    finally:
        before.put_back()
        for weight, held in zip(weights, numbers, strict=True):
            if _has_moved(weight.detach(), held):
                weight.data.copy_(held)


def _has_moved(now: Tensor, before: Tensor) -> bool:
    if holds(now, before):
        return False
    return not torch.allclose(now, before, rtol=0, atol=0, equal_nan=True)


def _leaves_of(graph: fx.Graph, net: nn.Module) -> set[str]:
    """Return the modules of a user's own that are called as they are."""
    called = {str(node.target) for node in graph.nodes if node.op == "call_module"}

    def is_torch(name: str) -> bool:
        module: Any = find_module(net, name)
        return type(module).__module__.startswith("torch.nn")

    return {name for name in called if not is_torch(name)}
