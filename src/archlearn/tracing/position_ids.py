"""`with_position_ids`: let a language model take the positions that `generate` gives it.

`generate` of transformers counts the positions of each row from its first token that is not padding
and gives them to a `forward` that takes `position_ids`. A trace without them would count padding.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from archlearn.module_utils import evaluating
from archlearn.tracing.example_inputs import ExampleInputs
from archlearn.tracing.module_state import preserve_state
from archlearn.tracing.output_types import tensors_in
from archlearn.tracing.rng import preserve_rng
from archlearn.tracing.trace_context import frozen
from archlearn.tracing.transformer_blocks import generation_arguments


def with_position_ids(net: nn.Module, inputs: ExampleInputs) -> ExampleInputs:
    """Return the example of a language model with the positions of its tokens.

    Nothing is added for a model that does not count positions from 0 where they are left out, such
    as OPT: what it reads off the attention mask is in the trace.
    """
    arguments = generation_arguments(net, inputs)
    is_decoder = not getattr(getattr(net, "config", None), "is_encoder_decoder", False)
    if arguments is None or "position_ids" not in arguments or not is_decoder:
        return inputs
    tokens = arguments["input_ids"]
    counted = torch.arange(tokens.shape[1], device=tokens.device).repeat(len(tokens), 1)
    positions = arguments["position_ids"]
    if positions is not None and positions.shape != counted.shape:
        return inputs
    if not _counts_from_zero(net, inputs, arguments | {"position_ids": counted}):
        return inputs
    kwargs = inputs.kwargs if positions is not None else {**inputs.kwargs, "position_ids": counted}
    return replace(inputs, kwargs=kwargs, may_count_positions=True)


def _counts_from_zero(net: nn.Module, inputs: ExampleInputs, arguments: dict[str, Any]) -> bool:
    """Return whether outputs for rows that begin with padding are those for these positions."""
    mask = torch.ones_like(arguments["input_ids"])
    mask[:, : mask.shape[1] // 2] = 0
    counted = {k: v for k, v in arguments.items() if v is not None} | {"attention_mask": mask}
    left_out = {k: v for k, v in counted.items() if k != "position_ids"}
    with preserve_rng(inputs), preserve_state(net), evaluating(net), frozen(net), torch.no_grad():
        try:
            pairs = zip(
                *(tensors_in(net(**example)) for example in (left_out, counted)), strict=True
            )
            return all(torch.allclose(x, y, equal_nan=True) for x, y in pairs)
        except Exception:  # whatever is wrong is told by the trace
            return False
