"""Restore weights, buffers and attributes that a call changes.

Some models move one network a little towards another at each call. A trace would pass over that,
so only a leaf may do it; what a leaf did while it was looked at is put back. So is what calls for
certificates and costs change.
"""

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from archlearn.errors import TracingError
from archlearn.module_utils import find_module, has_hooks
from archlearn.tracing.computed_weights import computes_weights
from archlearn.tracing.module_state import LEFT, ModuleState, holds
from archlearn.tracing.traces import Traces

_MOVE_STATISTICS: tuple[Any, ...] = (
    F.batch_norm, F.instance_norm, torch.batch_norm, torch.instance_norm,
)  # fmt: skip


_MANY = 2**12


@torch.no_grad()
def restore_weights_(copied: nn.Module, net: nn.Module, traces: Traces) -> None:
    """Give a copy that was traced and run the weights of the model it was made from.

    Raises:
        TracingError: If something else than a leaf has changed them.
    """
    own = dict(net.named_parameters())
    copies = {name: p for name, p in copied.named_parameters() if name in own}
    same = _find_same(copies, own)
    moved = [name for name, p in copies.items() if name not in same and _has_moved(p, own[name])]
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


def _find_same(now: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> set[str]:
    """Return the names of tensors on a GPU that have not moved: Python waits for it only once."""
    asked: dict[str, Tensor] = {}
    for name, x in now.items():
        was = before[name]
        is_like = x.shape == was.shape and x.dtype is was.dtype and x.device == was.device
        if x.is_cuda and x.layout is torch.strided and is_like:
            asked[name] = torch.ne(x, was).any()
    if not asked:
        return set()
    device = next(iter(asked.values())).device
    differ = torch.stack([each.to(device) for each in asked.values()]).tolist()
    return {name for name, differs in zip(asked, differ, strict=True) if not differs}


def _has_moved(now: Tensor, before: Tensor) -> bool:
    if _has_same_bits(now, before) or holds(now, before):
        return False
    return not torch.allclose(now, before, rtol=0, atol=0, equal_nan=True)


def _has_same_bits(one: Tensor, two: Tensor) -> bool:
    """Return at once whether two large tensors are the same, eight bytes at a time."""
    if one.numel() < _MANY or one.shape != two.shape or one.dtype is not two.dtype:
        return False
    parts = [one.detach(), two.detach()]
    if not all(map(_is_plain, parts)):
        return False
    first, second = (part.view(-1).view(torch.int64) for part in parts)
    return torch.equal(first, second)


def _is_plain(x: Tensor) -> bool:
    """Return whether a tensor is one piece of memory that can be read by eight bytes."""
    is_dense = type(x) is Tensor and x.layout is torch.strided and not x.is_meta
    if not is_dense or not x.is_floating_point() or not x.is_contiguous():
        return False
    return x.numel() * x.element_size() % 8 == 0 and x.storage_offset() == 0


def _leaves_of(graph: fx.Graph, net: nn.Module) -> set[str]:
    """Return the modules of a user's own that are called as they are."""
    called = {str(node.target) for node in graph.nodes if node.op == "call_module"}

    def is_torch(name: str) -> bool:
        module: Any = find_module(net, name)
        return type(module).__module__.startswith("torch.nn")

    return {name for name in called if not is_torch(name)}
