"""What models of Hugging Face transformers need: no caches, and what their `config` says."""

import inspect as python_inspect
from typing import Any

import torch
from torch import Tensor, nn

from archlearn.tracing.example_inputs import ExampleInputs

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

    `generate` gives a mask or none, as it sees fit; without one and without a cache, `forward`
    looks at the numbers of the positions to see where sequences begin.
    """
    parameters = list(python_inspect.signature(net.forward).parameters)
    may_generate = is_pretrained(net) and getattr(net, "generation_config", None) is not None
    given = dict(zip(parameters, inputs.args, strict=False)) | inputs.kwargs
    tokens = given.get("input_ids")
    has_mask = "attention_mask" in given or "attention_mask" not in parameters
    if not may_generate or has_mask or not isinstance(tokens, Tensor) or tokens.dim() != 2:
        return inputs
    kwargs = {**inputs.kwargs, "attention_mask": torch.ones_like(tokens)}
    return ExampleInputs(inputs.args, kwargs, inputs.are_real)
