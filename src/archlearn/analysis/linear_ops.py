"""Linear layers, convolutions and recurrent layers, called as modules or as functions."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from archlearn.module_utils import find_module, find_tensor, has_hooks
from archlearn.op_table import LINEAR, RECURRENT, TRANSPOSED, spec_of, spec_of_function
from archlearn.tracing.fx_utils import call_node, find_parameter

_CONV_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED_ARGUMENTS = (
    "input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation",
)  # fmt: skip
_ALL = slice(None)


@dataclass(frozen=True, slots=True)
class LinearOp:
    """One call that multiplies by a weight.

    Attributes:
        layer: Name of the module, or of the weight's owner for a functional call.
        weight_rows: The rows that it takes of the parameter `weight`: mostly all, `slice(None)`.
        bias_rows: The same of `bias`.
        n_space: Number of spatial dimensions.
        padded: Whether zeros are put around the input.
        is_module: Whether the layer is a module of torch (and not a functional call).
        others: Weights of a recurrent layer that are applied at every step beside the first.
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
    weight_rows: slice = field(default_factory=lambda: _ALL)
    bias_rows: slice = field(default_factory=lambda: _ALL)
    others: tuple[str, ...] = ()

    @property
    def is_part(self) -> bool:
        """Whether it takes some rows of its weight alone, as cross-attention does."""
        return self.weight_rows != _ALL

    @property
    def in_dim(self) -> int:
        """The weight's dimension that meets the input."""
        return 0 if self.kind == TRANSPOSED else 1

    @property
    def out_dim(self) -> int:
        """The weight's dimension that makes the output."""
        return 1 - self.in_dim

    @property
    def output_dim(self) -> tuple[str, int]:
        """The weight and its dimension that have an index for each channel of the output.

        Those of a recurrent layer are its units, which have several rows each.
        """
        return (self.others[0], 1) if self.kind == RECURRENT else (self.weight, self.out_dim)

    @property
    def takes_constants(self) -> bool:
        """Whether what constants of dropped channels add to the output can become its bias."""
        return self.is_module and self.groups == 1 and self.kind != RECURRENT

    @property
    def channel_dim(self) -> int:
        """The dimension of input and output that holds channels, counted from the end."""
        return -1 - self.n_space


def is_linear_op(node: fx.Node, net: nn.Module) -> bool:
    """Return whether a call multiplies by a weight."""
    return _kind_of(node, net) is not None


def read_linear_op(node: fx.Node, net: nn.Module) -> LinearOp | None:
    """Return the linear op that a node is, or None if its weight is not a plain one."""
    kind = _kind_of(node, net)
    if kind is None:
        return None
    if node.op == "call_module":
        module = find_module(net, str(node.target))
        is_recurrent = isinstance(module, nn.RNNBase)
        return _from_recurrent(node, module) if is_recurrent else _from_module(node, module, *kind)
    return _from_function(node, net, *kind)


def find_linear_ops(graph: fx.Graph, net: nn.Module) -> Iterator[tuple[fx.Node, LinearOp]]:
    """Yield the calls that multiply by a plain weight."""
    for node in graph.nodes:
        op = read_linear_op(node, net)
        if op is not None:
            yield node, op


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of a functional linear op by name."""
    spec = spec_of_function(node.target)
    is_transposed = spec is not None and spec.product is not None and spec.product[0] == TRANSPOSED
    names = _TRANSPOSED_ARGUMENTS if is_transposed else _CONV_ARGUMENTS
    return dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def layer_of(node: fx.Node) -> str:
    """Return the name of the layer that a linear node calls."""
    if node.op == "call_module":
        return str(node.target)
    weight = arguments_of(node).get("weight")
    whole = find_parameter(weight) if isinstance(weight, fx.Node) else None
    return node.name if whole is None else str(whole.target).removesuffix(".weight")


def is_called_again(node: fx.Node) -> bool:
    """Return whether the module that a node calls is called elsewhere, too."""
    calls = node.graph.find_nodes(op="call_module", sort=False)
    return [call.target for call in calls].count(node.target) > 1


def _kind_of(node: fx.Node, net: nn.Module) -> tuple[str, int] | None:
    """Return the kind of a linear op and its number of spatial dimensions."""
    spec = None if node.op == "call_method" else spec_of(node, net)
    if spec is None or spec.product is None:
        return None
    is_hooked = node.op == "call_module" and has_hooks(find_module(net, str(node.target)))
    is_turned = not node.args and next(iter(node.kwargs), "") == "hx"  # a state before the input
    return None if is_hooked or is_turned else spec.product


def _from_module(node: fx.Node, module: nn.Module, kind: str, n_space: int) -> LinearOp:
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


def _from_recurrent(node: fx.Node, module: nn.RNNBase) -> LinearOp | None:
    """Return a layer that reads its input by the first of its weights, those of all directions."""
    names = module._flat_weights_names
    if not module._parameters.keys() >= set(names):
        return None
    layer = str(node.target)
    weights = [f"{layer}.{name}" for name in names if name.startswith("weight")]
    bias = f"{layer}.bias_ih_l0" if module.bias else None
    return LinearOp(
        node.name, layer, weights[0], bias, RECURRENT, 0, 1, False, True,
        others=tuple(weights[1:]),
    )  # fmt: skip


def _from_function(node: fx.Node, net: nn.Module, kind: str, n_space: int) -> LinearOp | None:
    arguments = arguments_of(node)
    weight, bias = (_find_rows(arguments.get(name), net) for name in ("weight", "bias"))
    groups = arguments.get("groups", 1)
    if weight is None or not isinstance(groups, int):
        return None
    if bias is None and arguments.get("bias") is not None:
        return None
    if kind != LINEAR and (weight[1] != _ALL or (bias is not None and bias[1] != _ALL)):
        return None
    return LinearOp(
        node=node.name,
        layer=layer_of(node),
        weight=weight[0],
        bias=None if bias is None else bias[0],
        kind=kind,
        n_space=n_space,
        groups=groups,
        padded=arguments.get("padding", 0) not in (0, "valid", (0,) * n_space, [0] * n_space),
        is_module=False,
        weight_rows=weight[1],
        bias_rows=_ALL if bias is None else bias[1],
    )


def _find_rows(node: Any, net: nn.Module) -> tuple[str, slice] | None:
    """Return the parameter that an argument is, and which of its rows; None if it is computed."""
    whole = find_parameter(node) if isinstance(node, fx.Node) else None
    if whole is None:
        return None
    name = str(whole.target)
    if node is whole:
        return name, _ALL
    tensor = find_tensor(net, name)
    places = torch.arange(len(tensor), device="cpu").view(-1, *[1] * (tensor.dim() - 1))
    places = _take_rows(node, places).flatten()
    return (name, slice(int(places[0]), int(places[-1]) + 1)) if len(places) else None


def _take_rows(node: fx.Node, whole: torch.Tensor) -> Any:
    if node.op == "get_attr":
        return whole
    source = _take_rows(node.all_input_nodes[0], whole)
    return call_node(node, nn.Module(), (source, *node.args[1:]), node.kwargs)


def _pads(padding: Any, module: nn.Module) -> bool:
    if padding == "same":
        kernel: Any = module.kernel_size
        return any(size > 1 for size in kernel)
    if padding == "valid":
        return False
    return any(padding) if isinstance(padding, tuple | list) else bool(padding)
