"""What is known of each operation of torch: one `OpSpec` an operation, read by every other room.

A call is written as a user would write it: `nn.ReLU`, `F.relu`, `torch.relu`, `Tensor.relu`,
`operator.add`. One that ends with an underscore works in place; its twin is the same without.
Whether zero stays zero is not stated here: the rule of elementwise operations asks the operation.
"""

import builtins
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from archlearn.module_utils import find_module
from archlearn.nn.functional import linear_by_columns, with_items
from archlearn.nn.norms import LocalResponse, NarrowedLocalResponseNorm
from archlearn.nn.tristate_activation import TriState

ACTIVATE, PRODUCT = "elementwise.activate", "linear.linear"
CREATE, CREATE_LIKE = "elementwise.create", "elementwise.new"
LINEAR, CONV, TRANSPOSED = "linear", "convolution", "transposed convolution"
RECURRENT = "recurrent layer"
KIND, RANK, SIZES = 0, 1, 2
"""What a number that describes a tensor is about; the larger, the less is sure."""


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One operation.

    Attributes:
        calls: Every module class, function and method that is this operation.
        rule: Module and function in `analysis.propagation_rules` that follow channels through it;
            "" if none does, and so all channels that it reads stay.
        product: Of a product with a weight, its kind and number of spatial dimensions.
        squashing: An activation that often is a gate itself (squeeze-and-excite): it becomes a
            site only where its channels have no other.
        homogeneous: An activation with `op(s x) = s op(x)` for every s >= 0 of a channel.
        passes: It changes nothing in evaluation mode.
        foldable: In evaluation mode it scales and shifts each channel, so that the layer in front
            can do so instead.
        copies: What it returns never lies in the memory of what it reads.
        narrowed_by: Which function of `surgery.reshape_rewriter` writes it for fewer channels.
        sized_by: Attribute of the module that says how many channels it has.
        about: Of a number that describes a tensor, whether it is about its type and device, its
            rank or its sizes.
        unsaved: Why no file may hold it; "" if one may.
    """

    calls: tuple[str, ...]
    rule: str = ""
    product: tuple[str, int] | None = None
    squashing: bool = False
    homogeneous: bool = False
    passes: bool = False
    foldable: bool = False
    copies: bool = False
    narrowed_by: str = ""
    sized_by: str = ""
    about: int | None = None
    unsaved: str = ""

    def targets(self, *homes: str) -> Iterator[Any]:
        """Yield those of its classes or functions in these homes that this torch has."""
        for call in self.calls:
            home, _, name = call.rpartition(".")
            if home in homes and hasattr(HOMES[home], name):
                yield getattr(HOMES[home], name)

    @property
    def names(self) -> list[str]:
        """The names of its functions and methods, without their homes."""
        return [
            call.rpartition(".")[2] for call in self.calls if not call.startswith(("nn.", "math."))
        ]


HOMES: dict[str, Any] = {
    "nn": nn,
    "F": F,
    "torch": torch,
    "torch.linalg": torch.linalg,
    "torch.fft": torch.fft,
    "Tensor": Tensor,
    "operator": operator,
    "math": math,
    "builtins": builtins,
    "archlearn": SimpleNamespace(
        TriState=TriState,
        LocalResponse=LocalResponse,
        NarrowedLocalResponseNorm=NarrowedLocalResponseNorm,
        linear_by_columns=linear_by_columns,
        with_items=with_items,
    ),
}
_LIBRARIES = ("torch", "_operator", "builtins", "torchvision", "timm", "archlearn")
TORCH_HOMES = ("F", "torch", "torch.linalg", "torch.fft")
FUNCTION_HOMES = (*TORCH_HOMES, "operator", "math", "builtins", "archlearn")


def _op(calls: str, rule: str = "", **facts: Any) -> OpSpec:
    return OpSpec(tuple(calls.split()), rule, **facts)


def _alike(rule: str, *operations: str, **facts: Any) -> list[OpSpec]:
    """Return operations of which the same is known, one from each text of calls.

    `{n}` stands for the number of spatial dimensions: three operations.
    """
    spelt = [
        calls.format(n=n) for calls in operations for n in ((1, 2, 3) if "{" in calls else "0")
    ]
    return [_op(calls, rule, **facts) for calls in spelt]


def _both(names: str) -> list[str]:
    """Return functions that are methods of a tensor, too, by their names."""
    return [f"torch.{name} Tensor.{name}" for name in names.split()]


_OTHERS = """
torch.absolute torch.addbmm Tensor.addmm torch.addmm F.affine_grid Tensor.all torch.all
operator.and_ Tensor.any torch.any Tensor.argmax torch.argmax Tensor.argmin torch.argmin
Tensor.argsort torch.argsort
torch._assert torch.atleast_1d torch.atleast_2d torch.atleast_3d Tensor.baddbmm torch.baddbmm
F.bilinear nn.Bilinear torch.bilinear F.binary_cross_entropy
F.binary_cross_entropy_with_logits Tensor.bool torch.broadcast_tensors torch.bucketize torch.cdist
math.ceil torch.column_stack torch.concatenate Tensor.copy_ torch.cosh F.cosine_embedding_loss
F.cosine_similarity torch.cosine_similarity nn.CosineSimilarity torch.count_nonzero torch.cross
F.cross_entropy torch.cummax torch.cummin torch.diag torch.diag_embed Tensor.diagonal torch.diagonal
torch.complex torch.diff Tensor.dot torch.dot torch.dstack torch.embedding
Tensor.eq operator.eq torch.eq math.exp torch.feature_dropout Tensor.fill_ torch.finfo torch.fliplr
torch.flipud math.floor torch.floor_divide F.fold nn.Fold torch.frac Tensor.ge
operator.ge torch.ge torch.greater F.grid_sample nn.GRUCell Tensor.gt operator.gt torch.gt
torch.fft.fft torch.fft.fft2 torch.fft.fftn torch.fft.ifft torch.fft.ifft2 torch.fft.ifftn
torch.fft.irfft torch.fft.irfft2 torch.fft.irfftn torch.fft.rfft torch.fft.rfft2 torch.fft.rfftn
F.gumbel_softmax F.huber_loss torch.iinfo Tensor.index_copy torch.inner F.instance_norm
torch.instance_norm Tensor.int torch.inverse operator.invert torch.isfinite torch.isinf torch.isnan
Tensor.item F.kl_div torch.kron F.l1_loss Tensor.le operator.le torch.le torch.less math.log
torch.log10 torch.log2 torch.logaddexp torch.logical_and Tensor.logical_not torch.logical_not
torch.logical_or torch.logical_xor torch.logit Tensor.logsumexp torch.logsumexp Tensor.long
nn.LSTMCell Tensor.lt operator.lt torch.lt F.margin_ranking_loss torch.masked_select
F.max_unpool1d F.max_unpool2d F.max_unpool3d nn.MaxUnpool1d nn.MaxUnpool2d nn.MaxUnpool3d
torch.median torch.meshgrid operator.mod torch.moveaxis F.mse_loss
F.multi_head_attention_forward nn.MultiheadAttention torch.mv Tensor.ne operator.ne torch.ne
F.nll_loss torch.normal operator.not_ F.one_hot operator.or_ torch.outer
F.pairwise_distance nn.PairwiseDistance torch.polar operator.pos Tensor.prod math.prod torch.prod
torch.ravel torch.real nn.RNNCell torch.rot90 Tensor.scatter
Tensor.scatter_ torch.scatter operator.setitem torch.sinh F.smooth_l1_loss nn.Softmax2d Tensor.sort
torch.sort Tensor.split_with_sizes math.sqrt Tensor.squeeze_ torch.std_mean torch.take_along_dim
torch.tan torch.tensordot Tensor.topk torch.topk Tensor.tril torch.tril F.triplet_margin_loss
Tensor.triu torch.triu torch.trunc F.unfold Tensor.unfold nn.Unfold
Tensor.unsqueeze_ torch.var_mean operator.xor Tensor.zero_
torchvision.models.swin_transformer._get_relative_position_bias
torchvision.models.swin_transformer._patch_merging_pad
torchvision.models.swin_transformer.shifted_window_attention
"""

OPERATIONS: tuple[OpSpec, ...] = (
    # Activations: sites where gates may be.
    *_alike(
        ACTIVATE,
        "nn.ReLU F.relu F.relu_ torch.relu torch.relu_ Tensor.relu Tensor.relu_",
        "nn.LeakyReLU F.leaky_relu F.leaky_relu_",
        homogeneous=True,
    ),
    _op(
        "nn.PReLU F.prelu torch.prelu Tensor.prelu",
        ACTIVATE,
        homogeneous=True,
        sized_by="num_parameters",
    ),
    *_alike(
        ACTIVATE,
        "nn.ReLU6 F.relu6",
        "nn.RReLU F.rrelu torch.rrelu",
        "nn.ELU F.elu F.elu_",
        "nn.CELU F.celu torch.celu torch.celu_",
        "nn.SELU F.selu torch.selu torch.selu_",
        "nn.GELU F.gelu",
        "nn.SiLU F.silu",
        "nn.Mish F.mish",
        "nn.Hardswish F.hardswish",
        "nn.Hardtanh F.hardtanh F.hardtanh_",
        "nn.Tanh F.tanh torch.tanh torch.tanh_ Tensor.tanh Tensor.tanh_",
        "nn.Softplus F.softplus",
        "nn.Softsign F.softsign",
        "nn.GLU F.glu",
        "nn.Tanhshrink F.tanhshrink",
        "nn.Softshrink F.softshrink",
        "nn.Hardshrink F.hardshrink torch.hardshrink",
        "nn.Threshold F.threshold torch.threshold",
        "nn.LogSigmoid F.logsigmoid",
    ),
    *_alike(ACTIVATE, "archlearn.TriState", unsaved="it has gates; save the compact model"),
    *_alike(
        ACTIVATE,
        "nn.Sigmoid F.sigmoid torch.sigmoid torch.sigmoid_ Tensor.sigmoid Tensor.sigmoid_",
        "nn.Hardsigmoid F.hardsigmoid",
        squashing=True,
    ),
    # Functions of each element.
    *_alike(
        "elementwise.unary",
        "torch.abs operator.abs Tensor.abs Tensor.abs_",
        "torch.neg operator.neg Tensor.neg",
        *_both("exp sqrt rsqrt square sin cos log log1p erf floor ceil round sign"),
        *_both("clip clamp_min clamp_max"),
        "torch.clamp Tensor.clamp Tensor.clamp_",
        "torch.expm1",
        *_both("reciprocal"),
        "torch.pow operator.pow operator.ipow Tensor.pow Tensor.pow_",
        "torch.nan_to_num",
    ),
    *_alike(
        "elementwise.keep",
        "nn.Dropout F.dropout torch.dropout torch.dropout_",
        "nn.Dropout2d F.dropout2d",
        passes=True,
    ),
    *_alike(
        "elementwise.keep",
        "nn.Dropout1d F.dropout1d",
        "nn.Dropout3d F.dropout3d",
        "nn.AlphaDropout F.alpha_dropout",
        "nn.FeatureAlphaDropout F.feature_alpha_dropout",
        passes=True,
    ),
    *_alike(
        "elementwise.keep",
        "Tensor.to",
        "Tensor.float",
        "Tensor.double",
        "Tensor.half",
        "Tensor.bfloat16",
        "Tensor.type_as",
        "Tensor.cpu",
        "torchvision.ops.stochastic_depth.stochastic_depth",
    ),
    *_alike("elementwise.keep", "Tensor.cuda", unsaved="a file's reader may have no such device"),
    *_alike("elementwise.keep", "Tensor.type", unsaved="it takes the name of a type as text"),
    *_alike("elementwise.keep", "Tensor.requires_grad_", unsaved="it is no part of a forward pass"),
    *_alike("elementwise.keep", "timm.layers.drop.drop_path", unsaved="timm's own function"),
    # Functions of several elements at the same place.
    *_alike(
        "elementwise.product",
        "torch.mul operator.mul operator.imul Tensor.mul Tensor.mul_",
        "torch.multiply",
    ),
    *_alike(
        "elementwise.quotient",
        "torch.div Tensor.div Tensor.div_",
        "torch.divide",
        "torch.true_divide operator.truediv operator.itruediv",
    ),
    *_alike(
        "elementwise.total",
        "torch.add operator.add operator.iadd Tensor.add Tensor.add_",
        "torch.sub operator.sub operator.isub Tensor.sub Tensor.sub_",
        "torch.subtract",
        "torch.rsub",
        "torch.maximum",
        "torch.minimum",
    ),
    *_alike(
        "elementwise.mixed",
        "torch.hypot",
        "torch.atan2",
        "torch.fmod",
        "torch.remainder Tensor.remainder",
        "operator.floordiv operator.ifloordiv",
        "torch.lerp Tensor.lerp Tensor.lerp_",
        "torch.addcmul Tensor.addcmul Tensor.addcmul_",
        "torch.addcdiv Tensor.addcdiv Tensor.addcdiv_",
    ),
    _op("torch.where Tensor.where", "elementwise.where"),
    _op("torch.masked_fill Tensor.masked_fill Tensor.masked_fill_", "elementwise.where"),
    _op("torch.zeros_like", "elementwise.like"),
    _op("torch.ones_like", "elementwise.like"),
    _op("torch.full_like", "elementwise.like"),
    *_alike(
        "elementwise.draw",
        "torch.rand_like",
        "torch.randn_like",
        "torch.empty_like",
        "Tensor.normal_",
        "Tensor.uniform_",
        "Tensor.bernoulli_",
    ),
    # Reshaping, joining and indexing: the same is done to labels.
    *_alike(
        "reshape.move",
        "Tensor.view",
        "torch.reshape Tensor.reshape",
        "nn.Flatten torch.flatten Tensor.flatten",
        narrowed_by="reshape",
    ),
    *_alike("reshape.move", "nn.Identity", passes=True),
    *_alike("reshape.move", "Tensor.contiguous"),
    *_alike("reshape.move", "Tensor.view_as", "Tensor.reshape_as", narrowed_by="reshape"),
    *_alike(
        "reshape.move", "nn.Unflatten torch.unflatten Tensor.unflatten", narrowed_by="unflatten"
    ),
    *_alike(
        "reshape.move",
        "Tensor.expand",
        "torch.broadcast_to Tensor.broadcast_to",
        narrowed_by="expand",
    ),
    *_alike(
        "reshape.move",
        *_both("chunk split"),
        "torch.tensor_split",
        narrowed_by="split",
    ),
    *_alike(
        "reshape.move",
        *_both("permute transpose t squeeze unsqueeze unbind narrow select movedim"),
        *_both("swapaxes swapdims detach"),
    ),
    *_alike(
        "reshape.move",
        "Tensor.repeat",
        *_both("repeat_interleave tile"),
        copies=True,
        narrowed_by="repeat",
    ),
    *_alike(
        "reshape.move",
        "torch.cat",
        "torch.concat",
        "torch.stack",
        "torch.hstack",
        "torch.vstack",
        *_both("clone flip roll"),
        "nn.ChannelShuffle F.channel_shuffle torch.channel_shuffle",
        copies=True,
    ),
    *_alike(
        "reshape.shuffle_pixels",
        "nn.PixelShuffle F.pixel_shuffle torch.pixel_shuffle",
        "nn.PixelUnshuffle F.pixel_unshuffle torch.pixel_unshuffle",
        copies=True,
    ),
    _op("Tensor.expand_as", "reshape.expand_as", narrowed_by="expand"),
    _op("torch.view_as_complex", "reshape.view_as_complex"),
    _op("torch.view_as_real", "reshape.view_as_real"),
    *_alike(
        CREATE_LIKE,
        "Tensor.new_zeros",
        "Tensor.new_ones",
        "Tensor.new_full",
        "Tensor.new_empty",
        narrowed_by="new",
    ),
    _op("torch.index_select Tensor.index_select", "reshape.index_select"),
    _op("torch.gather Tensor.gather", "reshape.gather"),
    *_alike(
        "reshape.scatter",
        "torch.scatter_add Tensor.scatter_add Tensor.scatter_add_",
        "torch.scatter_reduce Tensor.scatter_reduce Tensor.scatter_reduce_",
        "torch.index_add Tensor.index_add Tensor.index_add_",
    ),
    _op("operator.getitem", "reshape.pick", narrowed_by="slice"),
    _op("builtins.getattr", "reshape.attribute"),
    *_alike("reshape.pad", "F.pad", "nn.ZeroPad{n}d", "nn.ConstantPad{n}d", narrowed_by="pad"),
    *_alike("reshape.pad", "nn.ReflectionPad{n}d", "nn.ReplicationPad{n}d", "nn.CircularPad{n}d"),
    *_alike("reshape.number", *_both("is_floating_point is_complex"), about=KIND),
    *_alike("reshape.number", "Tensor.dim", "Tensor.ndimension", about=RANK),
    *_alike(
        "reshape.number",
        "Tensor.size",
        "torch.numel Tensor.numel",
        "Tensor.nelement",
        about=SIZES,
    ),
    *_alike("reshape.number", "Tensor.__len__", "Tensor.stride", "Tensor.get_device"),
    *_alike(
        CREATE,
        "torch.zeros",
        "torch.ones",
        "torch.full",
        "torch.arange",
        "torch.rand",
        "torch.randn",
        "torch.linspace",
        "torch.eye",
        "torch.tensor",
        "torch.tril_indices",
        "torch.triu_indices",
    ),
    *_alike(CREATE, "torch.empty", unsaved="it holds whatever was in memory"),
    # Pooling, interpolation and reductions.
    *_alike(
        "pooling.pool",
        "nn.MaxPool{n}d F.max_pool{n}d F._max_pool{n}d",
        "nn.AvgPool{n}d F.avg_pool{n}d",
        "nn.AdaptiveAvgPool{n}d F.adaptive_avg_pool{n}d",
        "torch.max_pool1d",
        "torch.avg_pool1d",
        "torch.adaptive_avg_pool1d",
    ),
    *_alike(
        "pooling.pool",
        "nn.AdaptiveMaxPool{n}d F.adaptive_max_pool{n}d F._adaptive_max_pool{n}d",
        "nn.LPPool{n}d F.lp_pool{n}d",
    ),
    *_alike("pooling.resize", "nn.Upsample F.upsample", "F.interpolate"),
    *_alike("pooling.resize", "nn.UpsamplingNearest2d", "nn.UpsamplingBilinear2d"),
    *_alike("pooling.mean", *_both("mean nanmean amax amin")),
    *_alike("pooling.extreme", *_both("max min")),
    *_alike("pooling.reduce", *_both("sum norm std"), "torch.linalg.vector_norm"),
    *_alike("pooling.variance", "torch.var Tensor.var"),
    *_alike(
        "pooling.along_dim",
        "nn.Softmax F.softmax torch.softmax Tensor.softmax",
        "nn.LogSoftmax F.log_softmax torch.log_softmax Tensor.log_softmax",
        "nn.Softmin F.softmin",
        "torch.cumsum Tensor.cumsum",
        "torch.cumprod",
    ),
    # Normalisation.
    *_alike(
        "normalization.within_channel",
        "nn.BatchNorm{n}d",
        foldable=True,
        sized_by="num_features",
    ),
    *_alike(
        "normalization.within_channel",
        "nn.SyncBatchNorm",
        "nn.InstanceNorm{n}d",
        sized_by="num_features",
    ),
    _op("F.batch_norm torch.batch_norm", "normalization.within_channel"),
    *_alike(
        "normalization.across_channels",
        "nn.LayerNorm F.layer_norm torch.layer_norm",
        "nn.RMSNorm F.rms_norm torch.rms_norm",
    ),
    _op("nn.GroupNorm F.group_norm torch.group_norm", "normalization.group_norm"),
    _op("F.normalize", "normalization.unit_length"),
    _op("nn.Embedding F.embedding", "reshape.embedding"),
    _op("nn.EmbeddingBag F.embedding_bag", "reshape.embedding"),
    *_alike(
        "normalization.local_response",
        "nn.LocalResponseNorm F.local_response_norm",
        "archlearn.LocalResponse",
    ),
    _op(
        "archlearn.NarrowedLocalResponseNorm",
        "normalization.local_response",
        unsaved="built as a composite",
    ),
    # Products with a weight.
    _op("nn.Linear F.linear", PRODUCT, product=(LINEAR, 0)),
    _op("archlearn.linear_by_columns", PRODUCT, product=(TRANSPOSED, 0)),
    *(
        _op(f"nn.{name}{n}d F.{function}{n}d torch.{function}{n}d", PRODUCT, product=(kind, n))
        for name, function, kind in (
            ("Conv", "conv", CONV),
            ("ConvTranspose", "conv_transpose", TRANSPOSED),
        )
        for n in (1, 2, 3)
    ),
    _op("nn.LSTM nn.GRU nn.RNN", PRODUCT, product=(RECURRENT, 0)),
    # Products of two tensors.
    *_alike(
        "products.matmul",
        "torch.matmul operator.matmul Tensor.matmul",
        "torch.bmm Tensor.bmm",
        "torch.mm Tensor.mm",
    ),
    _op("torch.einsum", "products.einsum"),
    _op("F.scaled_dot_product_attention", "products.attention"),
    _op("archlearn.with_items", "reshape.assign", copies=True),
    # No rule follows channels through these: all that they read stay. A file may hold them.
    *map(_op, _OTHERS.split()),
)


@dataclass(frozen=True, slots=True)
class AttributeSpec:
    """One attribute that `forward` may read, of a tensor or of what a call returned.

    Attributes:
        about: As in `OpSpec`.
        describes: It says something of the tensor, and nothing of its numbers.
        views: It is the tensor itself, perhaps transposed.
        is_saved: Whether a file may hold it.
    """

    about: int | None = None
    describes: bool = False
    views: bool = False
    is_saved: bool = True


def _attributes(names: str, **facts: Any) -> dict[str, AttributeSpec]:
    return dict.fromkeys(names.split(), AttributeSpec(**facts))


ATTRIBUTES: dict[str, AttributeSpec] = {
    **_attributes("dtype device is_cuda is_nested", about=KIND, describes=True),
    **_attributes("layout is_sparse", about=KIND, describes=True, is_saved=False),
    **_attributes("ndim", about=RANK, describes=True),
    **_attributes("shape", about=SIZES, describes=True),
    **_attributes("requires_grad", describes=True),
    **_attributes("T mT", views=True),
    **_attributes("data", views=True, is_saved=False),
    **_attributes("real imag"),
    **_attributes("type", about=KIND),  # of devices
    **_attributes("values indices min max eps tiny"),  # of results with names, and of dtypes
}


def functions_with_rule(rule: str, home: str = "torch") -> list[str]:
    """Return the names of torch's functions, or of tensors' methods, that have a rule."""
    calls = [call for spec in OPERATIONS if spec.rule == rule for call in spec.calls]
    return [name for at, _, name in (call.rpartition(".") for call in calls) if at == home]


def spec_of(node: fx.Node, net: nn.Module) -> OpSpec | None:
    """Return what is known of the operation that a node of a graph calls, or None.

    Nothing is known of a module with a `forward` of its own, unless it is an activation.
    """
    if node.op == "call_module":
        module = find_module(net, str(node.target))
        spec = spec_of_class(type(module))
        is_own = "forward" in vars(module) and spec is not None and spec.rule != ACTIVATE
        return None if is_own else spec
    if node.op == "call_method":
        return _by_name().get(str(node.target))
    return spec_of_function(node.target) if node.op == "call_function" else None


def spec_of_function(target: Any) -> OpSpec | None:
    """Return what is known of a function; one of a known library may go by another path."""
    spec = _by_function().get(target)
    home = (getattr(target, "__module__", None) or "torch").split(".")[0]
    if spec is not None or home not in _LIBRARIES:
        return spec
    return _by_name().get(getattr(target, "__name__", ""))


def about_of(target: Any) -> int | None:
    """Return what the number is about that a function, or a method of this name, returns."""
    spec = _by_name().get(target) if isinstance(target, str) else _by_function().get(target)
    return None if spec is None else spec.about


def spec_of_class(cls: type[nn.Module]) -> OpSpec | None:
    """Return what is known of a class of modules, or of the one whose `forward` it has."""
    for base in cls.__mro__:
        spec = _by_class().get(base)
        if spec is not None and (spec.rule == ACTIVATE or cls.forward is base.forward):
            return spec
    return None


def saved_calls(*homes: str) -> dict[str, Any]:
    """Return what a file may hold of these homes, by how it is called, and in their order."""
    return {
        call: getattr(HOMES[home], name)
        for home in homes
        for spec in OPERATIONS
        for call in spec.calls
        if not spec.unsaved
        for at, _, name in [call.rpartition(".")]
        if at == home and hasattr(HOMES[home], name)
    }


@cache
def _twins() -> dict[Any, Any]:
    """Return functions that work in place, each with the one that does the same to a copy."""
    twins: dict[Any, Any] = {}
    for spec in OPERATIONS:
        for call in spec.calls:
            home, _, name = call.rpartition(".")
            plain = name.removesuffix("_") if home != "operator" else name.removeprefix("i")
            if home in FUNCTION_HOMES and plain != name and f"{home}.{plain}" in spec.calls:
                twins[getattr(HOMES[home], name)] = getattr(HOMES[home], plain)
    return twins


def works_in_place(target: Any) -> bool:
    """Return whether a function, or a method of this name, changes its first argument."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if name == "requires_grad_" or target in (operator.and_, operator.or_, operator.not_):
        return False
    trailing = name.endswith("_") and not name.endswith("__")
    return trailing or target in _twins() or target is operator.setitem


def out_of_place(function: Any) -> Any:
    """Return the function that leaves its input alone, or the same if it has no such twin."""
    return _twins().get(function, function)


_HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "heads", "nhead")


def can_learn(module: nn.Module) -> bool:
    """Return whether a layer and an activation are among a module's parts, or attention is."""
    parts = list(module.modules())
    has_layer = any(isinstance(part, nn.Linear | nn.modules.conv._ConvNd) for part in parts)
    counts = [getattr(part, name, None) for part in parts for name in _HEAD_COUNTS]
    has_heads = any(isinstance(count, int) for count in counts)
    return has_layer and (has_heads or any(map(_is_activation, parts)))


def _is_activation(module: nn.Module) -> bool:
    """Return whether a module is an activation, torch's or one of transformers' own classes."""
    spec = spec_of_class(type(module))
    is_known = spec is not None and spec.rule == ACTIVATE and not spec.squashing
    return is_known or type(module).__module__ == "transformers.activations"


@cache
def _by_class() -> dict[type, OpSpec]:
    return {cls: spec for spec in OPERATIONS for cls in spec.targets("nn", "archlearn")}


@cache
def _by_function() -> dict[Any, OpSpec]:
    return {function: spec for spec in OPERATIONS for function in spec.targets(*FUNCTION_HOMES)}


@cache
def _by_name() -> dict[str, OpSpec]:
    return {name: spec for spec in reversed(OPERATIONS) for name in spec.names}
