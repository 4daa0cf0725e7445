"""Autograd trick: add a penalty's gradient without touching the caller's loss.

The outputs are returned as they are; on the way back, the penalty takes a gradient of one, just as
if it had been added to the loss. So a method that is a penalty needs no loop of its own.
"""

from typing import Any

import torch
from torch import Tensor, fx, nn


class _AddPenaltyGradient(torch.autograd.Function):
    """The identity on outputs; the penalty's gradient is one, whatever theirs is."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, penalty: Tensor) -> Tensor:
        ctx.save_for_backward(penalty)
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (penalty,) = ctx.saved_tensors
        return grads[0], torch.ones_like(penalty)


class Penalised(nn.Module):
    """A network whose penalty is added to the loss while it is in training mode.

    Attributes:
        network: The network itself; take it out when training is over.
    """

    def __init__(self, network: nn.Module, penalty: nn.Module) -> None:
        """Take a network, and what returns a number when it is called with the network."""
        super().__init__()
        self.network = network
        # No submodule: a penalty is no part of the model, and is not saved with it.
        self._penalty = (penalty,)

    @property
    def penalty(self) -> nn.Module:
        """What returns the penalty of a network, on the network's device."""
        reference = next(self.network.parameters())
        return self._penalty[0].to(reference.device)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the network returns."""
        outputs = self.network(x)
        # While the model is traced, outputs are no tensors, and the penalty is no part of it.
        is_traced = isinstance(outputs, fx.Proxy)
        if is_traced or not (self.training and torch.is_grad_enabled()):
            return outputs  # pyright: ignore[reportReturnType]
        return _AddPenaltyGradient.apply(outputs, self.penalty(self.network))
