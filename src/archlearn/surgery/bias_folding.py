"""Dropped channels that are constants shift the biases of the layers that read them."""

from typing import Any

import torch
from torch import Tensor, nn

from archlearn.module_utils import find_module
from archlearn.surgery.narrowing import read_shifts
from archlearn.surgery.plan import Plan
from archlearn.tracing.traces import ExampleInputs
from archlearn.verification.precision import exchanging, widen


def find_shifts(gated: nn.Module, plan: Plan, inputs: ExampleInputs) -> dict[str, Tensor]:
    """Return in double precision what constants of dropped channels add to biases."""
    if not plan.folds:
        return {}
    with exchanging(widen(gated)):
        wide = inputs.to(torch.float64, floating_only=True)
        return read_shifts(gated, plan.folds, _read_constants(gated, plan, wide))


def _read_constants(gated: nn.Module, plan: Plan, inputs: ExampleInputs) -> dict[str, Tensor]:
    """Return what each folding layer reads, one number a channel."""
    found: dict[str, Tensor] = {}
    handles: list[Any] = []
    for fold in plan.folds:

        def note(module: Any, args: tuple[Tensor, ...], layer: str = fold.layer) -> None:
            n_space = module.weight.dim() - 2
            lines = args[0].detach().movedim(-1 - n_space, -1)
            found[layer] = lines.reshape(-1, lines.shape[-1])[0]

        handles.append(find_module(gated, fold.layer).register_forward_pre_hook(note))
    try:
        if handles:
            with torch.no_grad():
                gated(*inputs.args, **inputs.kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return found
