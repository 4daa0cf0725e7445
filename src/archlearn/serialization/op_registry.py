"""Operations that a file may call; others are neither written nor read."""

import math
import operator
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F

from archlearn.errors import FileError
from archlearn.nn.functional import linear_by_columns
from archlearn.tracing.example_inputs import (
    check_argument,
    check_given,
    check_keywords,
    check_kind,
    ones_if_left_out,
)

Operation = Callable[..., Any]

_OPERATORS = """
add sub mul truediv floordiv mod matmul neg pos pow abs getitem setitem eq ne lt le gt ge and_ or_
xor invert not_ iadd isub imul itruediv
"""

_MATHS = "sqrt ceil floor log exp prod"

_TORCH = """
_assert abs absolute add addbmm addcdiv addcmul addmm adaptive_avg_pool1d all amax amin any arange
argmax argmin atleast_1d atleast_2d atleast_3d avg_pool1d baddbmm batch_norm bilinear bmm
broadcast_tensors broadcast_to bucketize cat cdist ceil celu celu_ channel_shuffle chunk clamp
clamp_max clamp_min clip clone column_stack concat concatenate conv1d conv2d conv3d conv_transpose1d
conv_transpose2d conv_transpose3d cos cosh cosine_similarity count_nonzero cross cummax cummin
cumprod cumsum diag diag_embed diagonal diff div divide dot dropout dropout_ dstack einsum elu_
embedding empty_like eq erf exp expm1 eye feature_dropout finfo flatten flip fliplr flipud floor
floor_divide fmod frac full full_like gather ge greater group_norm gt hardshrink hstack index_select
inner instance_norm inverse iinfo is_floating_point isfinite isinf isnan kron layer_norm le lerp
less linspace log log10 log1p log2 log_softmax logaddexp logical_and logical_not logical_or
logical_xor logit logsumexp lt masked_fill masked_select matmul max max_pool1d maximum mean median
meshgrid min minimum mm movedim moveaxis mul multiply mv nan_to_num narrow ne neg norm normal numel
ones ones_like outer permute pixel_shuffle pixel_unshuffle polar pow prelu prod rand rand_like randn
randn_like ravel real reciprocal relu relu_ remainder repeat_interleave reshape rms_norm roll rot90
round rrelu rsqrt rsub scaled_dot_product_attention scatter scatter_add select selu selu_ sigmoid
sigmoid_ sign sin sinh softmax sort split sqrt square squeeze stack std std_mean sub subtract sum
swapaxes swapdims t take_along_dim tan tanh tanh_ tensor_split tensordot threshold tile topk
transpose tril triu true_divide trunc unbind unflatten unsqueeze var var_mean vstack where zeros
zeros_like index_add scatter_reduce
"""

_FUNCTIONAL = """
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_max_pool1d
adaptive_max_pool1d _adaptive_max_pool2d adaptive_max_pool2d _adaptive_max_pool3d
adaptive_max_pool3d affine_grid alpha_dropout avg_pool1d avg_pool2d avg_pool3d batch_norm bilinear
binary_cross_entropy binary_cross_entropy_with_logits celu channel_shuffle conv1d conv2d conv3d
conv_transpose1d conv_transpose2d conv_transpose3d cosine_embedding_loss cosine_similarity
cross_entropy dropout dropout1d dropout2d dropout3d elu embedding feature_alpha_dropout fold gelu
glu grid_sample group_norm gumbel_softmax hardshrink hardsigmoid hardswish hardtanh huber_loss
instance_norm interpolate kl_div l1_loss layer_norm leaky_relu leaky_relu_ linear
local_response_norm log_softmax logsigmoid lp_pool1d lp_pool2d lp_pool3d margin_ranking_loss
_max_pool1d max_pool1d _max_pool2d max_pool2d _max_pool3d max_pool3d max_unpool1d max_unpool2d
max_unpool3d mish mse_loss multi_head_attention_forward nll_loss normalize one_hot pad
pairwise_distance pixel_shuffle pixel_unshuffle prelu relu relu6 relu_ rms_norm rrelu
scaled_dot_product_attention selu sigmoid silu smooth_l1_loss softmax softmin softplus softshrink
softsign tanh tanhshrink threshold triplet_margin_loss unfold upsample
"""

_METHODS = """
__len__ abs abs_ add add_ addcdiv addcdiv_ addcmul addcmul_ addmm all amax amin any argmax argmin
baddbmm bernoulli_ bfloat16 bmm bool broadcast_to ceil chunk clamp clamp_ clamp_max clamp_min clip
clone contiguous copy_ cos cpu cumsum detach diagonal dim div div_ dot double eq erf exp expand
expand_as fill_ flatten flip float floor gather ge gelu gt half index_add index_copy index_select
int is_floating_point item le lerp lerp_ log log1p log_softmax logical_not logsumexp long lt
masked_fill masked_fill_ matmul max mean min mm movedim mul mul_ narrow ndimension ne neg nelement
new_empty new_full new_ones new_zeros norm normal_ numel permute pow pow_ prelu prod relu relu_
repeat repeat_interleave reshape reshape_as roll round rsqrt scatter scatter_ scatter_add
scatter_add_ select sigmoid sigmoid_ sign sin size softmax sort split split_with_sizes sqrt square
squeeze squeeze_ std sub sub_ sum swapaxes swapdims t tanh tanh_ tile to topk transpose tril triu
type_as unbind unflatten unfold uniform_ unsqueeze unsqueeze_ var view view_as where zero_
index_add_ scatter_reduce scatter_reduce_
"""
METHODS = frozenset(_METHODS.split())

ATTRIBUTES = frozenset({
    "shape", "dtype", "device", "ndim", "T", "mT", "is_cuda", "is_nested", "requires_grad",
    "values", "indices", "min", "max", "eps", "tiny",
})  # fmt: skip

# Functions that torchvision marks as leaves of a trace; looked up only where it can be imported.
_TORCHVISION = {
    "torchvision.ops.stochastic_depth": "stochastic_depth",
    "torchvision.models.swin_transformer": (
        "_get_relative_position_bias _patch_merging_pad shifted_window_attention"
    ),
}


def name_operation(target: object) -> str:
    """Return the name under which a function of the graph is written.

    Raises:
        FileError: If the function is not on the list.
    """
    home = str(getattr(target, "__module__", None))
    listed = torchvision_operations() if home.startswith("torchvision.") else all_operations()
    for name, operation in listed.items():
        if operation is target:
            return name
    label = getattr(target, "__qualname__", repr(target))
    raise FileError(
        f"the model calls {home}.{label}, which is not an operation that a file may name; put the "
        "call into a submodule, mark that as a leaf and pass its class in modules={'name': Class}"
    )


def find_operation(name: object) -> Operation:
    """Return the function that a file names.

    Raises:
        FileError: If the name is not on the list.
    """
    if name in _torchvision_names():  # whatever else a file names, nothing is imported for it
        listed, hint = torchvision_operations(), "; it may be there once torchvision is installed"
    else:
        listed, hint = all_operations(), ""
    if isinstance(name, str) and name in listed:
        return listed[name]
    raise FileError(
        f"it calls {str(name)[:80]!r}, which is not an operation that a file may name{hint}"
    )


@cache
def all_operations() -> dict[str, Operation]:
    """Return every function that a file may name, by the name it has there."""
    listed: dict[str, Operation] = {
        "getattr": getattr,
        "collections.OrderedDict": OrderedDict,
        "archlearn.check_argument": check_argument,
        "archlearn.check_kind": check_kind,
        "archlearn.check_given": check_given,
        "archlearn.check_keywords": check_keywords,
        "archlearn.ones_if_left_out": ones_if_left_out,
        "archlearn.linear_by_columns": linear_by_columns,
    }
    listed |= _collect("operator", operator, _OPERATORS)
    listed |= _collect("math", math, _MATHS)
    listed |= _collect("F", F, _FUNCTIONAL)
    listed |= _collect("torch", torch, _TORCH)
    listed |= _collect("torch.linalg", torch.linalg, "vector_norm")
    return listed


@cache
def _torchvision_names() -> list[str]:
    return [f"{home}.{name}" for home, names in _TORCHVISION.items() for name in names.split()]


def torchvision_operations() -> dict[str, Operation]:
    """Return torchvision's functions, if it can be imported; it is only when one is met."""
    listed: dict[str, Operation] = {}
    for home, names in _TORCHVISION.items():
        try:
            listed |= _collect(home, import_module(home), names)
        except (ImportError, RuntimeError):  # RuntimeError: built for another torch
            continue
    return listed


def _collect(prefix: str, home: object, names: str) -> dict[str, Operation]:
    """Return those names that this version of the library has."""
    found = [name for name in names.split() if hasattr(home, name)]
    return {f"{prefix}.{name}": getattr(home, name) for name in found}
