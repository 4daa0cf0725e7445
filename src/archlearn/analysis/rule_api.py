"""What a rule sees of a call (`OpCall`), and what it does with calls it does not know."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map

from archlearn.analysis.channel_labels import Labels, SiteChannels, fixed_like, varying
from archlearn.analysis.constraints import ChannelConstraints, Reason
from archlearn.module_utils import find_module, has_hooks
from archlearn.tracing.fx_utils import call_node, leaves_of, map_leaves, source_of


@dataclass(frozen=True, slots=True)
class OpCall:
    """One call while labels are followed through a network.

    Attributes:
        args: Positional arguments, tensors replaced by their labels.
        real_args: The same as they were in the run on the example inputs, which returned `out`.
        gated: Whether this call is a site whose channels are to be gated.
        may_gate_reads: Whether a gate may stand in front of this call.
        reads: Where this call is to read channels through their gates, found by its rule.
        passing: The channels along another dimension that a layer is applied to one by one.
        repeated: Factors that have the same channels for every head, found by its rule.
        products: The products that this call consists of: what share of its multiply-adds each
            has, and the channels that they are proportional to.
    """

    node: fx.Node
    net: nn.Module
    constraints: ChannelConstraints
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    real_args: tuple[Any, ...]
    real_kwargs: dict[str, Any]
    out: Any
    gated: bool = False
    may_gate_reads: bool = False
    labels: list[Labels] = field(init=False)
    reads: list[SiteChannels] = field(default_factory=list[SiteChannels], init=False)
    passing: list[Tensor] = field(default_factory=list[Tensor], init=False)
    repeated: list[Labels] = field(default_factory=list[Labels], init=False)
    products: list[tuple[int, Tensor | None]] = field(
        default_factory=list[tuple[int, Tensor | None]], init=False
    )

    def __post_init__(self) -> None:
        labels = [leaf for leaf in leaves_of((self.args, self.kwargs)) if isinstance(leaf, Labels)]
        object.__setattr__(self, "labels", labels)

    @property
    def module(self) -> nn.Module:
        """The module that a `call_module` node calls."""
        return find_module(self.net, str(self.node.target))

    @property
    def x(self) -> Labels:
        """The labels of the call's input."""
        return self.labels[0]

    @property
    def name(self) -> str:
        """The name of the module's class, of the function or of the method that is called."""
        return type(self.module).__name__ if self.is_module else name_of(self.node)

    @property
    def is_module(self) -> bool:
        """Whether a module is called, and not a function or a method."""
        return self.node.op == "call_module"

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument given by position or by keyword."""
        if len(self.args) > position:
            return self.args[position]
        return self.kwargs.get(name, default)

    def option(self, position: int, name: str, default: Any = None) -> Any:
        """Return a setting: an attribute of a module, an argument of a function."""
        if self.is_module:
            return getattr(self.module, name, default)
        return self.argument(position, name, default)

    def gate_read(self, dim: int, ids: Tensor) -> None:
        """Ask for gates in front of this call, on its input's channels; `FIXED` has none."""
        self.reads.append(SiteChannels(dim - self.x.ids.dim(), ids))

    def call(self, args: Any, kwargs: Any) -> Any:
        """Make the same call with other arguments."""
        return call_node(self.node, self.net, args, kwargs)


Rule = Callable[[OpCall], Any]
FEW = 3  # a gate for one of so many heads or groups would take a third of a layer or more
OUTPUT = Reason("part of the model's output, which keeps its size")


def fixed_out(out: Any) -> Any:
    """Return labels of which nothing may go for all that a call returned."""
    return tree_map(lambda leaf: fixed_like(leaf) if isinstance(leaf, Tensor) else leaf, out)


_OF_PRODUCTS = "make it an nn.Linear where one factor is a weight"
_OF_ATTENTION = (
    "write it as nn.Linear layers for queries, keys, values and output around "
    "F.scaled_dot_product_attention, which is followed"
)
_PRODUCTS = ("matmul", "mm", "bmm", "mv", "einsum", "addmm", "addbmm", "baddbmm", "tensordot")


def opaque(step: OpCall, text: str | None = None, fix: str | None = None) -> Any:
    """Keep every channel that a call reads, and know nothing of what it returns."""
    hooked = hooked_reason(step.node, step.net)
    if text is None and hooked is not None:
        text, fix = hooked.text, hooked.fix
    read = step.labels if text else [labels for labels in step.labels if _is_read(step, labels)]
    for labels in read:
        step.constraints.block(
            labels.ids,
            text or f"read by {describe_call(step.node)}, which may mix channels",
            fix or _advise(step),
        )
    return fixed_out(step.out)


def _advise(step: OpCall) -> str:
    """Return what lets the channels go that an unknown call reads, or ''."""
    if step.is_module and isinstance(step.module, nn.MultiheadAttention):  # adds keys, say
        return _OF_ATTENTION
    return _OF_PRODUCTS if step.name in _PRODUCTS else ""


def _is_read(step: OpCall, labels: Labels) -> bool:
    """Return whether a leaf or a function reads a tensor, and does not ask for its type alone.

    So do rotary embeddings of transformers and masks of torchvision's Swin, which have no weights.
    They give the same if the tensor has one channel, and that is NaN.
    """
    dims = varying(labels.ids)
    has_weights = step.is_module and any(True for _ in step.module.parameters())
    is_function = isinstance(step.node.target, FunctionType) and step.node.op == "call_function"
    if has_weights or not dims or not (step.is_module or is_function):
        return True
    real = (step.real_args, step.real_kwargs)
    arguments = zip(leaves_of((step.args, step.kwargs)), leaves_of(real), strict=True)
    x = next(tensor for other, tensor in arguments if other is labels)
    first = tuple(slice(1 if dim in dims else None) for dim in range(x.dim()))
    try:
        nan = torch.full_like(x[first], torch.nan)
        outs = step.call(*map_leaves(lambda leaf: nan if leaf is x else leaf, real)), step.out
    except Exception:  # whatever it does with such a tensor, or with such numbers
        return True
    one, two = map(leaves_of, outs)
    is_tensor = all(isinstance(leaf, Tensor) for leaf in one + two)
    return not (is_tensor and len(one) == len(two) and all(map(torch.equal, one, two)))


def hooked_reason(node: fx.Node, net: nn.Module) -> Reason | None:
    """Return why a module with forward hooks is not learnt, or None if it has none."""
    if node.op != "call_module" or not has_hooks(find_module(net, str(node.target))):
        return None
    return Reason(
        f"{node.target!r} has a forward hook, which may change what it reads or returns",
        "remove the hook before add_gates, and register it on the model that add_gates returns",
    )


def describe_call(node: fx.Node) -> str:
    """Return a call as its user would name it."""
    if node.op == "call_module":
        return f"{node.target!r}"
    source = source_of(node)
    return f"{name_of(node)}() at {source}" if source else f"{name_of(node)}()"


def name_of(node: fx.Node) -> str:
    """Return the name of the function or method that a node calls."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "?")
