"""LayerNorm and GroupNorm over the open channels of a stream, in place of torch's own.

A module becomes one of these by its class alone: parameters, hooks and the keys of `state_dict`
stay. While all channels are open it computes what torch's own does.
"""

from typing import Any

import torch
from torch import Tensor, nn

from archlearn.nn.norms import masked_group_norm, masked_layer_norm, weigh_channels

_OPEN = "archlearn_open"


class OpenLayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` over the channels that are open."""

    archlearn_open: Tensor | None

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return the input normalised over its last dimension; closed channels are zero."""
        if self.archlearn_open is None:
            return super().forward(input)
        opened = weigh_channels(self.archlearn_open)
        return masked_layer_norm(input, opened, self.weight, self.bias, self.eps)


class OpenGroupNorm(nn.GroupNorm):
    """`nn.GroupNorm`, each group over its channels that are open."""

    archlearn_open: Tensor | None

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return the input normalised; closed channels are zero."""
        if self.archlearn_open is None:
            return super().forward(input)
        grouped = self.archlearn_open.view(self.num_groups, -1)
        # Of a group that is closed as a whole nobody reads anything, so that any numbers will do.
        counted = torch.where(grouped.any(1, keepdim=True), grouped, 1.0).view(-1)
        opened = weigh_channels(counted, self.num_groups)
        return masked_group_norm(input, opened, self.weight, self.bias, self.eps, self.num_groups)


_OPEN_FORMS: dict[type[nn.Module], Any] = {nn.LayerNorm: OpenLayerNorm, nn.GroupNorm: OpenGroupNorm}
_PLAIN_FORMS: dict[type[nn.Module], Any] = {new: old for old, new in _OPEN_FORMS.items()}


def has_open_form(module: nn.Module) -> bool:
    """Return whether a norm can be over its open channels alone."""
    weight = module._parameters.get("weight")
    return type(module) in _OPEN_FORMS and weight is not None and weight.dim() == 1


def is_open_form(module: nn.Module) -> bool:
    """Return whether a norm is over its open channels alone."""
    return type(module) in _PLAIN_FORMS


def open_form_(module: nn.Module) -> None:
    """Let a norm be one over its open channels, which all are."""
    module.__class__ = _OPEN_FORMS[type(module)]
    module.register_buffer(_OPEN, None, persistent=False)


def plain_form_(module: nn.Module) -> None:
    """Let a norm be torch's own again."""
    if type(module) in _PLAIN_FORMS:
        module.__class__ = _PLAIN_FORMS[type(module)]
        module._buffers.pop(_OPEN, None)
        module._non_persistent_buffers_set.discard(_OPEN)


def set_open_(module: nn.Module, is_open: Tensor) -> None:
    """Say which channels of a norm are open; a norm of open channels alone stays torch's own."""
    buffer: Tensor | None = module._buffers[_OPEN]
    if buffer is not None:
        buffer.copy_(is_open)
    elif not bool(is_open.all()):
        weight: Tensor = module.weight  # pyright: ignore[reportAssignmentType]
        number_format = torch.promote_types(weight.dtype, torch.float32)
        module._buffers[_OPEN] = is_open.to(weight.device, number_format)
