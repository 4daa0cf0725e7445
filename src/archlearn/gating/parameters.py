"""Parameters of a gated model: its gates, its weights, and groups for an optimiser."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from archlearn.errors import InputError
from archlearn.gating.attach import check_rates
from archlearn.gating.gate_container import CONTAINER, GateContainer, find_container
from archlearn.nn.tristate_activation import TriState
from archlearn.tracing.generated_forward import unwrap

_NO_MOMENTUM: dict[str, Any] = {"momentum": 0.0}
_ADAPTIVE = ("eps", "betas", "etas")
"""Settings of optimisers that divide a gradient by its own size: Adam, RMSprop, Lion, Rprop."""


class _GateGroup(dict[str, Any]):
    """A group of parameters that an adaptive optimiser refuses to take."""

    def setdefault(self, key: str, default: Any = None, /) -> Any:
        """Give a setting its default, as `torch.optim.Optimizer` does when it takes a group."""
        if key in _ADAPTIVE:
            raise InputError(
                "an optimiser such as Adam moves every gate by its whole rate at each step, "
                "however weak the force, and closes nearly all; give it archlearn.weights(model), "
                "and learn the gates by archlearn.GateOptimizer, or by torch.optim.SGD on the "
                "second group"
            )
        return super().setdefault(key, default)


def width_gates(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the width gates of a model by the name of their group."""
    return dict(_gates(model, "width"))


def depth_gates(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the depth gates of a model by the name of their site."""
    return dict(_gates(model, "depth"))


def branch_gates(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the gates of residual branches by the name of their block; from one half on open."""
    return dict(_gates(model, "branch"))


def clip_gates_(model: nn.Module) -> None:
    """Bring every gate back into [0, 1]; call this after each step of the optimiser."""
    gates = [gate for holder in find_holders(model) for gate in holder.gates()]
    with torch.no_grad():
        if gates[0].is_cuda:  # two launches for all gates
            torch._foreach_clamp_min_(gates, 0.0)
            torch._foreach_clamp_max_(gates, 1.0)
        else:
            for gate in gates:
                gate.clamp_(0.0, 1.0)


def parameter_groups(
    model: nn.Module,
    lr: float,
    *,
    gate_lr: float | None = None,
    weight_decay: float | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Return weights and gates as two groups for any optimiser of torch.

    Gates have their own rate and neither weight decay nor momentum: a gate's binary value may
    flip back within a step or two, and momentum would carry it past.

    An adaptive optimiser (Adam) divides each gradient by its own size, so a gate would move by its
    rate at every step, however weak the force: it refuses the second group. Give it the first one,
    and the second to `torch.optim.SGD`; or learn the gates by `GateOptimizer`.

    Args:
        model: A model with gates.
        lr: The rate of the weights.
        gate_lr: The rate of the gates; left out, 15 times that of the weights.
        weight_decay: The weights' decay; left out, that of the optimiser.
        options: Further options for both groups.
    """
    if "params" in options:
        raise InputError("'params' are the weights and the gates; give other options only")
    check_rates(lr=lr, gate_lr=gate_lr, weight_decay=weight_decay)
    rate = 15 * lr if gate_lr is None else gate_lr
    decay = {} if weight_decay is None else {"weight_decay": weight_decay}
    return [
        {"params": weights(model), "lr": lr, **decay, **options},
        _GateGroup(
            {"params": _all_gates(model), "lr": rate, "weight_decay": 0.0} | options | _NO_MOMENTUM
        ),
    ]


def weights(model: nn.Module) -> list[nn.Parameter]:
    """Return all parameters of a model but its gates, for any optimiser.

    Gates learn by `GateOptimizer`.
    """
    container = find_container(unwrap(model))
    if container is not None and container.on_weights is not None:
        return list(model.parameters())
    learnt: set[int] = set()
    for holder in find_holders(model):
        learnt |= {id(gate) for gate in holder.gates()}
        if isinstance(holder, GateContainer):
            learnt |= {id(probe) for probe in holder.probes().values()}
    return [p for p in model.parameters() if id(p) not in learnt]


def find_holders(model: nn.Module) -> list[GateContainer | TriState]:
    """Return the parts of a model that hold gates. Once a step, so it must be quick."""
    holders: list[GateContainer | TriState] = []
    waiting: list[nn.Module | None] = [unwrap(model)]
    seen: set[nn.Module | None] = set()
    for module in waiting:
        if module is None or module in seen:
            continue
        if isinstance(module, GateContainer) or (isinstance(module, TriState) and module.gates()):
            holders.append(module)
            seen.add(module)
        if module._modules:  # others need not be remembered
            seen.add(module)
            waiting.extend(module._modules.values())
    if not holders and find_container(unwrap(model)) is not None:
        raise InputError(
            "the model's gates act on its weights, and are no parameters; they learn by "
            "archlearn.GateOptimizer(model, optimizer, total_steps=...)"
        )
    if not holders:
        raise InputError("the model has no gates; call add_gates on it first")
    return holders


def _all_gates(model: nn.Module) -> list[Tensor]:
    return [gate for kind in ("width", "depth", "branch") for _, gate in _gates(model, kind)]


def _gates(model: nn.Module, kind: str) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield gates by name; where several parts have some, with the name of the part in front."""
    modules = list(unwrap(model).named_modules())
    n_parts = sum(isinstance(module, GateContainer) for _, module in modules)
    for name, module in modules:
        if isinstance(module, GateContainer):
            part = name.removesuffix(CONTAINER) if n_parts > 1 else ""
            for name_in_part, gate in getattr(module, f"{kind}_gates")().items():
                yield part + name_in_part, gate
        elif isinstance(module, TriState) and getattr(module, kind, None) is not None:
            yield name, getattr(module, kind)
