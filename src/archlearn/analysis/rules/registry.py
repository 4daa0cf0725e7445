"""Which rule an operation has; one that is not listed here is opaque."""

import functools
import operator
from typing import Any

from torch import fx, nn

from archlearn.analysis.labels import fixed_like
from archlearn.analysis.linear_ops import is_linear_op
from archlearn.analysis.rule_api import OpCall, Rule, fixed_out, opaque
from archlearn.analysis.rules import elementwise, indexing, normalization, pooling, reshape
from archlearn.analysis.rules.activations import activate, is_site
from archlearn.analysis.rules.embedding import embedding
from archlearn.analysis.rules.linear import linear
from archlearn.module_utils import find_module, has_hooks
from archlearn.nn.local_response_norm import LocalResponse, NarrowedLocalResponseNorm
from archlearn.tracing.block_hooks import MARKS
from archlearn.tracing.example_inputs import CHECKS
from archlearn.tracing.output_types import is_construction, tensors_in


def _number(step: OpCall) -> Any:
    return step.out


def _construct(step: OpCall) -> Any:
    """A container that `forward` returns, or gives to a leaf."""
    opaque(step, "part of the model's output", "the output is never narrowed")
    return tuple(fixed_like(tensor) for tensor in tensors_in((step.real_args, step.real_kwargs)))


def _creation(step: OpCall) -> Any:
    return fixed_out(step.out)


_MOVES = [
    "view",
    "reshape",
    "flatten",
    "permute",
    "transpose",
    "t",
    "squeeze",
    "unsqueeze",
    "contiguous",
    "expand",
    "chunk",
    "split",
    "tensor_split",
    "unbind",
    "narrow",
    "select",
    "cat",
    "concat",
    "stack",
    "flip",
    "movedim",
    "swapaxes",
    "swapdims",
    "pixel_shuffle",
    "pixel_unshuffle",
    "channel_shuffle",
    "repeat",
    "repeat_interleave",
    "tile",
    "unflatten",
    "clone",
    "detach",
    "view_as",
    "reshape_as",
    "broadcast_to",
    "hstack",
    "vstack",
    "roll",
]
_UNARY = [
    "abs",
    "neg",
    "exp",
    "sqrt",
    "rsqrt",
    "square",
    "sin",
    "cos",
    "log",
    "log1p",
    "expm1",
    "erf",
    "clamp",
    "clip",
    "clamp_min",
    "clamp_max",
    "floor",
    "ceil",
    "round",
    "sign",
    "reciprocal",
    "pow",
    "nan_to_num",
    "sigmoid",
    "hardsigmoid",
    "softplus",
]
_KEEP = [
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
    "to", "float", "double", "half", "bfloat16", "type", "type_as", "cuda", "cpu",
    "stochastic_depth", "drop_path", "requires_grad_", "data",
]  # fmt: skip
_PRODUCT = ["mul", "multiply", "imul", "mul_"]
_QUOTIENT = ["div", "divide", "truediv", "true_divide", "itruediv", "div_"]
_TOTAL = ["add", "iadd", "add_", "sub", "subtract", "isub", "sub_", "rsub", "maximum", "minimum"]
_WHERE = ["where", "masked_fill", "masked_fill_"]
_LIKE = ["zeros_like", "ones_like"]
_NEW = ["new_zeros", "new_ones", "new_full", "new_empty"]
_LERP = ["lerp", "lerp_"]
_PLUS_PRODUCT = ["addcmul", "addcmul_", "addcdiv", "addcdiv_"]
_MIXED = ["hypot", "atan2", "fmod", "remainder", "floordiv"]
_POOLS = [
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "boolean_dispatch",
    "fn",
]
_MEANS = ["mean", "amax", "amin", "nanmean"]
_REDUCTIONS = ["sum", "norm", "linalg_vector_norm", "std", "var"]
_SCATTER = [
    "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_", "index_add", "index_add_",
]  # fmt: skip
_ALONG = ["softmax", "log_softmax", "softmin", "cumsum", "cumprod", "normalize"]
_NUMBERS = [
    "__len__", "size", "dim", "numel", "stride", "is_floating_point", "get_device", "nelement",
    "ndimension",
]  # fmt: skip
_CREATION = [
    "zeros", "ones", "full", "arange", "empty", "rand", "randn", "tensor", "linspace", "eye",
]  # fmt: skip

_BY_NAME: dict[str, Rule] = {
    **dict.fromkeys(_MOVES, reshape.move),
    **dict.fromkeys(_UNARY, elementwise.unary),
    **dict.fromkeys(_KEEP, elementwise.keep),
    **dict.fromkeys(_PRODUCT, elementwise.product),
    **dict.fromkeys(_QUOTIENT, elementwise.quotient),
    **dict.fromkeys(_TOTAL, elementwise.total),
    **dict.fromkeys(_MIXED, elementwise.mixed),
    **dict.fromkeys(_LERP, elementwise.lerp),
    **dict.fromkeys(_PLUS_PRODUCT, elementwise.plus_product),
    **dict.fromkeys(_WHERE, elementwise.where),
    **dict.fromkeys(_LIKE, elementwise.like),
    **dict.fromkeys(_NEW, elementwise.new),
    **dict.fromkeys(_SCATTER, indexing.scatter),
    **dict.fromkeys(_POOLS, pooling.pool),
    **dict.fromkeys(_MEANS, pooling.mean),
    **dict.fromkeys(_REDUCTIONS, pooling.reduce),
    **dict.fromkeys(_ALONG, pooling.along_dim),
    **dict.fromkeys(_NUMBERS, _number),
    **dict.fromkeys(_CREATION, _creation),
    **dict.fromkeys([check.__name__ for check in (*CHECKS, *MARKS)], _number),
    "index_select": indexing.index_select,
    "gather": indexing.gather,
    "expand_as": reshape.expand_as,
    "getitem": reshape.pick,
    "getattr": reshape.attribute,
    "pad": reshape.pad,
    "interpolate": pooling.resize,
    "upsample": pooling.resize,
    "batch_norm": normalization.functional_batch_norm,
    "layer_norm": normalization.across_channels,
    "group_norm": normalization.group_norm,
    "embedding": embedding,
    "rms_norm": normalization.across_channels,
    "local_response_norm": normalization.local_response,
}

_POOL_MODULES = tuple(
    getattr(nn, f"{kind}Pool{n}d")
    for kind in ("Max", "Avg", "AdaptiveAvg", "AdaptiveMax", "LP")
    for n in (1, 2, 3)
    if hasattr(nn, f"{kind}Pool{n}d")
)
_PAD_MODULES = tuple(
    getattr(nn, f"{kind}Pad{n}d")
    for kind in ("Zero", "Constant", "Reflection", "Replication", "Circular")
    for n in (1, 2, 3)
    if hasattr(nn, f"{kind}Pad{n}d")
)
_BATCH_NORMS = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm,
    nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
)  # fmt: skip
_BY_CLASS: list[tuple[Any, Rule]] = [
    ((nn.Identity, nn.Flatten, nn.Unflatten), reshape.move),
    ((nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle), reshape.move),
    ((nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), elementwise.keep),
    ((nn.AlphaDropout, nn.FeatureAlphaDropout), elementwise.keep),
    ((nn.Sigmoid, nn.Hardsigmoid), elementwise.unary),
    (_POOL_MODULES, pooling.pool),
    (_PAD_MODULES, reshape.pad),
    (nn.Upsample, pooling.resize),
    ((nn.Softmax, nn.LogSoftmax, nn.Softmin), pooling.along_dim),
    (_BATCH_NORMS, normalization.within_channel),
    ((nn.LayerNorm, nn.RMSNorm), normalization.across_channels),
    (nn.GroupNorm, normalization.group_norm),
    (nn.Embedding, embedding),
    (
        (nn.LocalResponseNorm, LocalResponse, NarrowedLocalResponseNorm),
        normalization.local_response,
    ),
]
_HOMES = ("torch", "_operator", "builtins", "torchvision", "timm", "archlearn")


def rule_for(node: fx.Node, net: nn.Module) -> Rule:
    """Return the rule for a call."""
    if is_linear_op(node, net):
        return linear
    if is_site(node, net):
        return activate
    if node.op == "call_module":
        return _rule_for_module(find_module(net, str(node.target)))
    if node.op == "call_method":
        return _BY_NAME.get(str(node.target), opaque)
    if node.target in (operator.getitem, getattr):
        return _BY_NAME["getattr" if node.target is getattr else "getitem"]
    if is_construction(node.target):
        return _construct
    name = getattr(node.target, "__name__", "")
    home = (getattr(node.target, "__module__", None) or "torch").split(".")[0]
    return _BY_NAME.get(name, opaque) if home in _HOMES else opaque


def _rule_for_module(module: nn.Module) -> Rule:
    return opaque if has_hooks(module) else _rule_for_class(type(module), type(module).forward)


@functools.lru_cache(maxsize=256)
def _rule_for_class(cls: type[nn.Module], forward: Any) -> Rule:
    for classes, rule in _BY_CLASS:
        known = classes if isinstance(classes, tuple) else (classes,)
        if issubclass(cls, known) and any(forward is k.forward for k in known):
            return rule
    return opaque
