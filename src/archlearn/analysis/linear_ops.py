"""Linear layers and convolutions, called as modules or as functions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from archlearn.module_utils import find_module, has_hooks
from archlearn.nn.functional import linear_by_columns

LINEAR, CONV, TRANSPOSED = "linear", "convolution", "transposed convolution"


_MODULES: dict[type[nn.Module], tuple[str, int]] = {
    nn.Linear: (LINEAR, 0),
    nn.Conv1d: (CONV, 1),
    nn.Conv2d: (CONV, 2),
    nn.Conv3d: (CONV, 3),
    nn.ConvTranspose1d: (TRANSPOSED, 1),
    nn.ConvTranspose2d: (TRANSPOSED, 2),
    nn.ConvTranspose3d: (TRANSPOSED, 3),
}


_FUNCTIONS: dict[Callable[..., Any], tuple[str, int]] = {
    F.linear: (LINEAR, 0),
    F.conv1d: (CONV, 1),
    F.conv2d: (CONV, 2),
    F.conv3d: (CONV, 3),
    torch.conv1d: (CONV, 1),
    torch.conv2d: (CONV, 2),
    torch.conv3d: (CONV, 3),
    linear_by_columns: (TRANSPOSED, 0),
    F.conv_transpose1d: (TRANSPOSED, 1),
    F.conv_transpose2d: (TRANSPOSED, 2),
    F.conv_transpose3d: (TRANSPOSED, 3),
}


_CONV_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


_TRANSPOSED_ARGUMENTS = (
    "input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LinearOp:
    """One call that multiplies by a weight.

    Attributes:
        layer: Name of the module, or of the weight's owner for a functional call.
        weight: Name of the weight.
        bias: Name of the bias, or None.
        n_space: Number of spatial dimensions.
        padded: Whether zeros are put around the input.
        is_module: Whether the layer is a module of torch (and not a functional call).
    """

    node: str
    layer: str
    weight: str
    bias: str | None
    kind: str
    n_space: int
    groups: int
    padded: bool
    is_module: bool

    @property
    def in_dim(self) -> int:
        """The weight's dimension that meets the input."""
        return 0 if self.kind == TRANSPOSED else 1

    @property
    def out_dim(self) -> int:
        """The weight's dimension that makes the output."""
        return 1 - self.in_dim

    @property
    def channel_dim(self) -> int:
        """The dimension of input and output that holds channels, counted from the end."""
        return -1 - self.n_space


def is_linear_op(node: fx.Node, net: nn.Module) -> bool:
    """Return whether a call multiplies by a weight."""
    if node.op == "call_module":
        return _module_kind(find_module(net, str(node.target))) is not None
    return node.op == "call_function" and node.target in _FUNCTIONS


def read_linear_op(node: fx.Node, net: nn.Module) -> LinearOp | None:
    """Return the linear op that a node is, or None if its weight is not a plain one."""
    if node.op == "call_module":
        return _from_module(node, find_module(net, str(node.target)))
    return _from_function(node)


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of a functional linear op by name."""
    kind, _ = _FUNCTIONS[node.target]  # pyright: ignore[reportArgumentType]
    names = _TRANSPOSED_ARGUMENTS if kind == TRANSPOSED else _CONV_ARGUMENTS
    return dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def layer_of(node: fx.Node) -> str:
    """Return the name of the layer that a linear node calls."""
    if node.op == "call_module":
        return str(node.target)
    weight = arguments_of(node).get("weight")
    if isinstance(weight, fx.Node) and weight.op == "get_attr":
        return str(weight.target).removesuffix(".weight")
    return node.name


def is_called_again(node: fx.Node) -> bool:
    """Return whether the module that a node calls is called elsewhere, too."""
    calls = node.graph.find_nodes(op="call_module", sort=False)
    return [call.target for call in calls].count(node.target) > 1


def _module_kind(module: nn.Module) -> tuple[str, int] | None:
    exact = _MODULES.get(type(module))
    if exact is not None:
        return None if has_hooks(module) else exact
    for known, kind in _MODULES.items():
        if isinstance(module, known):
            plain = not has_hooks(module)
            return kind if plain and type(module).forward is known.forward else None
    return None


def _from_module(node: fx.Node, module: nn.Module) -> LinearOp | None:
    found = _module_kind(module)
    if found is None:
        return None
    kind, n_space = found
    layer = str(node.target)
    padding: Any = getattr(module, "padding", 0)
    zeros = getattr(module, "padding_mode", "zeros") == "zeros"
    return LinearOp(
        node=node.name,
        layer=layer,
        weight=f"{layer}.weight",
        bias=None if getattr(module, "bias", None) is None else f"{layer}.bias",
        kind=kind,
        n_space=n_space,
        groups=int(getattr(module, "groups", 1)),
        padded=zeros and _pads(padding, module),
        is_module=True,
    )


def _from_function(node: fx.Node) -> LinearOp | None:
    kind, n_space = _FUNCTIONS[node.target]  # pyright: ignore[reportArgumentType]
    arguments = arguments_of(node)
    weight, bias = arguments.get("weight"), arguments.get("bias")
    groups = arguments.get("groups", 1)
    if not (isinstance(weight, fx.Node) and weight.op == "get_attr" and isinstance(groups, int)):
        return None
    if bias is not None and not (isinstance(bias, fx.Node) and bias.op == "get_attr"):
        return None
    return LinearOp(
        node=node.name,
        layer=layer_of(node),
        weight=str(weight.target),
        bias=None if bias is None else str(bias.target),
        kind=kind,
        n_space=n_space,
        groups=groups,
        padded=arguments.get("padding", 0) not in (0, "valid", (0,) * n_space, [0] * n_space),
        is_module=False,
    )


def _pads(padding: Any, module: nn.Module) -> bool:
    if padding == "same":
        kernel: Any = module.kernel_size
        return any(size > 1 for size in kernel)
    if padding == "valid":
        return False
    return any(padding) if isinstance(padding, tuple | list) else bool(padding)
