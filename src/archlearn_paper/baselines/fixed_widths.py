"""Any network at other widths: which it has, and a fresh one of those that are proposed."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from archlearn.errors import InputError
from archlearn.gating.attach import add_gates
from archlearn.gating.learn import Learn
from archlearn.gating.parameters import width_gates
from archlearn.surgery.compaction import compact
from archlearn_paper.baselines.from_scratch import start_anew


def find_widths(model: nn.Module, example: Tensor) -> dict[str, int]:
    """Return the widths that can be chosen, by layer.

    Channels that can only go together, as those of a convolution in groups, count as one.
    """
    return {name: len(gate) for name, gate in width_gates(_gate(model, example)).items()}


def start_at_widths(
    model: nn.Module, example: Tensor, widths: Mapping[str, int], seed: int
) -> nn.Module:
    """Return a fresh network like a model, but with these widths; layers left out stay as wide.

    Args:
        model: Any model; it is left alone.
        example: Inputs of one call.
        widths: From 1 to what the layer has.
        seed: Decides the weights.

    Raises:
        InputError: If a layer has no width to choose, or fewer channels than are asked for.
    """
    gated = _gate(model, example)
    gates = width_gates(gated)
    for name, width in widths.items():
        if name not in gates or not 1 <= width <= len(gates[name]):
            there = ", ".join(f"{key} (1 to {len(gate)})" for key, gate in gates.items())
            raise InputError(f"width {width} was asked for {name!r}; widths to choose: {there}")
    with torch.no_grad():
        for name, width in widths.items():
            gates[name][width:] = 0.0
    return start_anew(compact(gated), seed)


def _gate(model: nn.Module, example: Tensor) -> nn.Module:
    return add_gates(model, example, learn={"*": Learn.WIDTH}, width_start=1.0).eval()
