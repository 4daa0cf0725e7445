"""A GPU works lists of tensors off in equal shares, so large tensors go to it in pieces.

Otherwise the one large tensor that small networks have keeps most of the GPU waiting.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from archlearn.optim.gate_optimizer import GateOptimizer

_SMALLEST_PIECE, _MOST_PIECES = 1 << 14, 40


def cut_evenly(*lists: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return lists of tensors of the same shapes with large ones in pieces, all cut alike."""
    total = sum(tensor.numel() for tensor in lists[0])
    size = max(_SMALLEST_PIECE, total // _MOST_PIECES)
    pieces: list[list[Tensor]] = [[] for _ in lists]
    for tensors in zip(*lists, strict=True):
        whole = tensors[0].numel() <= size or not all(t.is_contiguous() for t in tensors)
        for found, tensor in zip(pieces, tensors, strict=True):
            found.extend([tensor] if whole else tensor.view(-1).split(size))
    return pieces


@torch.no_grad()
def update_(optimiser: torch.optim.Optimizer) -> None:
    """Do an optimiser's step; what SGD does at once on a GPU is done in even pieces."""
    if isinstance(optimiser, GateOptimizer):
        optimiser.observe_()  # it decides outside of the captured step
        return
    if not _can_cut(optimiser):
        optimiser.step()
        return
    scale = getattr(optimiser, "grad_scale", None)
    for group in optimiser.param_groups:
        parameters = [p for p in group["params"] if p.grad is not None]
        buffers = [optimiser.state[p]["momentum_buffer"] for p in parameters]
        lists = cut_evenly(parameters, [p.grad for p in parameters], buffers)
        torch._fused_sgd_(
            *lists,
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=group["dampening"],
            nesterov=group["nesterov"],
            maximize=group["maximize"],
            is_first_step=False,
            grad_scale=scale,
        )


def _can_cut(optimiser: torch.optim.Optimizer) -> bool:
    """Return whether it is SGD with momentum, fused, and past its first step."""
    if not isinstance(optimiser, torch.optim.SGD) or not optimiser.defaults["fused"]:
        return False
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    states = (optimiser.state.get(p, {}) for p in parameters if p.grad is not None)
    return all(isinstance(state.get("momentum_buffer"), Tensor) for state in states)
