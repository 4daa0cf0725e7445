"""What transformers need: torch's own layers are followed, Hugging Face's models have no caches."""

import inspect as python_inspect
import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.flop_counter import FlopCounterMode

from archlearn.module_utils import has_hooks, is_weight_hook
from archlearn.tracing.example_inputs import ExampleInputs

Call = tuple[tuple[Any, ...], dict[str, Any]]
BLOCKS = (
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoder,
    nn.TransformerDecoderLayer,
)
ASKS_FOR_TENSOR: Any = F._none_or_dtype.__code__  # what they ask of a mask
_HINTS: dict[type[nn.Module], tuple[str, int]] = {
    nn.TransformerEncoder: ("is_causal", 3),
    nn.TransformerDecoder: ("tgt_is_causal", 6),
}


def without_hint(m: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> Call:
    """Return the arguments with which a stack of layers takes its mask as it is given.

    Left alone, it compares the numbers of the mask with those of a causal one, to choose a faster
    kernel for the same function.
    """
    for kind, (name, position) in _HINTS.items():
        if not isinstance(m, kind) or type(m).forward is not kind.forward:
            continue
        if len(args) <= position and kwargs.get(name) is None:
            kwargs = {**kwargs, name: False}
        elif len(args) > position and args[position] is None:
            args = (*args[:position], False, *args[position + 1 :])
    return tuple(args), kwargs


def multihead_attention(m: nn.Module) -> Any:
    """Return a forward of plain layers for `nn.MultiheadAttention`, or None for other modules.

    The module itself cannot hold fewer heads, for it takes their size from that of its input.
    """
    if not isinstance(m, nn.MultiheadAttention) or has_hooks(m):
        return None
    if type(m).forward is not nn.MultiheadAttention.forward or "forward" in vars(m):
        return None
    is_computed = any(map(parametrize.is_parametrized, m.modules()))
    is_plain = m.bias_k is None and not m.add_zero_attn and not is_computed
    return partial(_attend, m) if is_plain else None


def _attend(
    m: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """What `nn.MultiheadAttention.forward` computes.

    Results lie in memory as its own do, so that dropout draws the same numbers for them.
    """
    if query.dim() != 3:
        raise ValueError("nn.MultiheadAttention is followed with a batch of sequences only")
    parts = _project(m, query, key, value)
    q, k, v = (y.unflatten(-1, (m.num_heads, m.head_dim)).permute(1, 2, 0, 3) for y in parts)
    is_causal = is_causal and key_padding_mask is None and not need_weights
    mask = None if is_causal or attn_mask is None else _to_bias(attn_mask, query)
    if mask is not None and mask.dim() == 3:  # one for each head
        mask = mask.unflatten(0, (-1, m.num_heads))
    if key_padding_mask is not None:
        hidden = _to_bias(key_padding_mask, query)[:, None, None]
        mask = hidden if mask is None else mask + hidden
    rate = m.dropout if m.dropout and m.training else 0.0
    weights = None
    if need_weights:
        scores = (q * m.head_dim**-0.5) @ k.transpose(-2, -1)
        shares = F.dropout(F.softmax(scores if mask is None else scores + mask, dim=-1), rate)
        y = shares @ v
        weights = shares.mean(1) if average_attn_weights else shares
    else:
        y = F.scaled_dot_product_attention(q, k, v, mask, rate, is_causal)
    y = F.linear(y.permute(2, 0, 1, 3).flatten(2), m.out_proj.weight, m.out_proj.bias)
    return y.transpose(0, 1) if m.batch_first else y, weights


def _project(m: Any, query: Tensor, key: Tensor, value: Tensor) -> Sequence[Tensor]:
    """Return queries, keys and values: as many products as the module itself makes."""

    def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x.transpose(0, 1) if m.batch_first else x, weight, bias)

    is_one = m._qkv_same_embed_dim and key is value
    if is_one and query is key:
        return multiply(query, m.in_proj_weight, m.in_proj_bias).chunk(3, -1)
    sizes = [m.embed_dim, 2 * m.embed_dim] if is_one else [m.embed_dim] * 3
    biases = [None] * 3 if m.in_proj_bias is None else m.in_proj_bias.split(sizes)
    weights = m.q_proj_weight, m.k_proj_weight, m.v_proj_weight
    if m._qkv_same_embed_dim:
        weights = m.in_proj_weight.split(sizes)
    queries, keys = multiply(query, weights[0], biases[0]), multiply(key, weights[1], biases[1])
    if is_one:
        return queries, *keys.chunk(2, -1)
    return queries, keys, multiply(value, weights[2], biases[2])


def _to_bias(mask: Tensor, like: Tensor) -> Tensor:
    """Return a mask as what is added to scores; of bools, True hides."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, float("-inf"))


def describe_fix(m: nn.Module, reason: str) -> str:
    """Return what makes a block followable that decides by its padding mask, or for want of one."""
    if "masking_utils.py" in reason:  # of transformers: without a mask it looks for packed rows
        return "; put an attention_mask into example_inputs"
    if any(map(is_weight_hook, m._forward_pre_hooks.values())):
        return (
            "; a hook computes its weight: use weight_norm and spectral_norm of "
            "torch.nn.utils.parametrizations, or make the weight a plain one (prune.remove)"
        )
    if not isinstance(m, nn.TransformerEncoder) or not m.use_nested_tensor:
        return ""
    return (
        "; with a padding mask, only one made with enable_nested_tensor=False is followed: set "
        "its use_nested_tensor to False, which nn.Transformer leaves at True"
    )


def has_blocks(net: nn.Module) -> bool:
    """Return whether some part of a model is a block."""
    return any(isinstance(module, BLOCKS) for module in net.modules())


@contextmanager
def count_flops() -> Generator[Any]:
    """Yield torch's counter of operations, attention on a CPU and recurrent layers among them.

    Attention runs step by step meanwhile: nobody can count what a fused kernel does.
    """
    aten = torch.ops.aten
    counts = {
        aten._scaled_dot_product_flash_attention_for_cpu: _count_attention,
        aten.mkldnn_rnn_layer: _count_recurrent_layer,
        aten._cudnn_rnn: _count_recurrent,
    }
    was_fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with FlopCounterMode(display=False, custom_mapping=counts) as counter:
            yield counter
    finally:
        torch.backends.mha.set_fastpath_enabled(was_fused)


def _count_attention(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    """Count both products; each head of a query has one of keys and values."""
    *batch, n_queries, size = q
    return 2 * math.prod(batch) * n_queries * k[-2] * (size + v[-1])


def _count_recurrent(x: Any, weights: Any, *_: Any, **__: Any) -> int:
    """Count the product of each matrix with every step of every sequence."""
    return 2 * math.prod(x[:-1]) * sum(math.prod(w) for w in weights if len(w) == 2)


def _count_recurrent_layer(x: Any, *weights: Any, **__: Any) -> int:
    return _count_recurrent(x, weights[:2])


_FLAGS = ("use_cache", "return_dict", "output_attentions", "output_hidden_states")


def is_pretrained(net: nn.Module) -> bool:
    """Return whether a model is one of transformers', without importing that."""
    return any(base.__name__ == "PreTrainedModel" for base in type(net).__mro__)


def config_flags(net: nn.Module) -> dict[str, bool]:
    """Return what a model's `config` says of arguments that are left out."""
    config: Any = getattr(net, "config", None) if is_pretrained(net) else None
    flags = {name: getattr(config, name, None) for name in _FLAGS}
    return {name: value for name, value in flags.items() if isinstance(value, bool)}


def disable_caches_(net: nn.Module) -> None:
    """Let a language model keep no keys and values between calls, as in `config.use_cache = False`.

    A cache is an object that grows from call to call, which no trace holds.
    """
    if not is_pretrained(net):
        return
    held = [getattr(module, "config", None) for module in net.modules()]
    for config in (*held, getattr(net, "generation_config", None)):
        if getattr(config, "use_cache", None):
            setattr(config, "use_cache", False)  # noqa: B010


def with_attention_mask(net: nn.Module, inputs: ExampleInputs) -> ExampleInputs:
    """Return the example of a language model with an attention mask that hides no token.

    `generate` gives a mask or none, as it sees fit; without one and without a cache, `forward` of a
    decoder looks at the numbers of the positions to see where sequences begin.
    """
    arguments = _token_arguments(net, inputs)
    if arguments is None or arguments.get("attention_mask", 0) is not None:
        return inputs
    is_decoder = getattr(
        getattr(net, "config", None), "is_decoder", True
    )  # BERT says that it is not
    if not (_may_generate(net) or (is_decoder and "past_key_values" in arguments)):
        return inputs
    mask = torch.ones_like(arguments["input_ids"])
    return replace(inputs, kwargs={**inputs.kwargs, "attention_mask": mask})


def generation_arguments(net: nn.Module, inputs: ExampleInputs) -> dict[str, Any] | None:
    """Return all arguments of `forward` by name, or None if the model cannot `generate` from them.

    What the example leaves out is None.
    """
    return _token_arguments(net, inputs) if _may_generate(net) else None


def _may_generate(net: nn.Module) -> bool:
    return getattr(net, "generation_config", None) is not None


def _token_arguments(net: nn.Module, inputs: ExampleInputs) -> dict[str, Any] | None:
    """Return all arguments of `forward` by name, or None if it is no model of rows of tokens."""
    parameters = python_inspect.signature(net.forward).parameters
    arguments = dict(zip(parameters, inputs.args, strict=False)) | inputs.kwargs
    tokens = arguments.get("input_ids")
    if not is_pretrained(net) or not isinstance(tokens, Tensor) or tokens.dim() != 2:
        return None
    return dict.fromkeys(parameters) | arguments
