"""Gates are put behind the activations of a copy of the user's model."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from archlearn import hard_concrete
from archlearn.binding import bind_graphs_, is_bound
from archlearn.classes import MODE_READERS
from archlearn.errors import InputError
from archlearn.following import follow_copy
from archlearn.graphs.block_hooks import warn_of_traced_hooks
from archlearn.graphs.contexts import without_autocast
from archlearn.graphs.cost_table import build_cost_table
from archlearn.graphs.lookups import find_reference
from archlearn.graphs.tracing import ExampleInputs, Leaf
from archlearn.inserting import insert_gates
from archlearn.learning import Learn
from archlearn.scaling import find_writers
from archlearn.stores import GateKind, GateStore, add_store_
from archlearn.tristate import DEPTH_START, WIDTH_START, TriState
from archlearn.wishes import (
    check_learn,
    check_leaves,
    check_net,
    check_rates,
    check_rows,
    check_starts,
)

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


@torch.inference_mode(False)
@without_autocast()
def add_gates(
    net: nn.Module,
    example_inputs: object,
    *,
    learn: Mapping[str, Learn] | None = None,
    leaves: Iterable[Leaf] = (),
    width_start: float | None = None,
    depth_start: float = DEPTH_START,
    kind: GateKind = "binary",
) -> nn.Module:
    """Return a copy of `net` with a gate for everything that can be learnt exactly.

    The copy is an instance of the user's class, computes what `net` computes while all gates
    are as they start, and has the same parameters under the same names, and the gates. They act
    when it is called; other methods of the class, and submodules on their own, run without them.

    Args:
        net: Any model that runs on `example_inputs`; it is left untouched.
        example_inputs: A tensor, a tuple of arguments or a dict of keyword arguments.
        learn: What to learn, by layer name or glob; what is not named is not learnt. Left out,
            everything that can be learnt is.
        leaves: Submodules, by name or class, that are not to be looked into.
        width_start: Where width gates start; at one half or above, a channel is kept. Left out,
            0.55, and 0.74 for gates that are drawn: even odds.
        depth_start: Where depth gates start; below one half, a layer is non-linear.
        kind: How width gates act. "binary" ones, the paper's, are 0 or 1. "l0" ones are drawn
            anew at every call in training mode (hard concrete, Louizos et al. 2018).

    Raises:
        InputError: If the inputs do not fit, `learn` names no layer, nothing can be learnt, or a
            real gate could not become part of the layer in front of it (kind "l0").
        TracingError: If the model's own `forward` depends on data.
    """
    start = _choose_start(kind, width_start)
    check_net(net)
    check_starts(start, depth_start)
    check_learn(learn)
    leaves = check_leaves(net, leaves)
    inputs = check_rows(ExampleInputs.of(example_inputs))
    gated, choice = follow_copy(net, inputs, learn, leaves)
    if kind == "l0":
        if not choice.blueprint.groups:
            raise InputError(
                "kind 'l0' is about width gates, but only depth is learnt here; ask for widths in "
                "learn=, or leave kind out"
            )
        find_writers(choice.blueprint, gated)
    store = GateStore(choice, start, depth_start, was_bound=is_bound(net), kind=kind)
    store.set_cost_table(build_cost_table(choice.blueprint, gated))
    reference = find_reference(gated)
    assert reference is not None  # or nothing could be learnt
    store.to(reference if reference.is_floating_point() else reference.real)
    add_store_(gated, store)
    graphs = [insert_gates(gated, store, place) for place in range(len(choice.blueprint.graphs))]
    blocks = choice.blueprint.traces.all_blocks
    warn_of_traced_hooks(blocks, gated)
    bind_graphs_(gated, graphs, "Gated", blocks)
    if choice.blueprint.traces.mode_readers:
        setattr(gated, MODE_READERS, choice.blueprint.traces.mode_readers)
    return gated


def width_gates(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the width gates of a model by the name of their group."""
    return dict(_gates(model, "width"))


def depth_gates(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the depth gates of a model by the name of their site."""
    return dict(_gates(model, "depth"))


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
    known = {id(gate) for gate in _all_gates(model)}
    return [p for p in model.parameters() if id(p) not in known]


def find_holders(model: nn.Module) -> list[GateStore | TriState]:
    """Return the parts of a model that hold gates. Once a step, so it must be quick.

    Raises:
        InputError: If there are none.
    """
    found: list[GateStore | TriState] = []
    waiting: list[nn.Module | None] = [model]
    seen: set[nn.Module | None] = set()
    for module in waiting:
        if module is None or module in seen:
            continue
        if isinstance(module, GateStore) or (isinstance(module, TriState) and module.gates()):
            found.append(module)
            seen.add(module)
        if module._modules:  # others need not be remembered
            seen.add(module)
            waiting.extend(module._modules.values())
    if not found:
        raise InputError("the model has no gates; call add_gates on it first")
    return found


def _all_gates(model: nn.Module) -> list[Tensor]:
    gates: list[Tensor] = [*width_gates(model).values(), *depth_gates(model).values()]
    if not gates:
        raise InputError("the model has no gates; call add_gates on it first")
    return gates


def _choose_start(kind: str, start: float | None) -> float:
    """Return where width gates start."""
    starts = {"binary": WIDTH_START, "l0": hard_concrete.START}
    if kind not in starts:
        raise InputError(f"kind is {kind!r}; choose one of {', '.join(map(repr, starts))}")
    return starts[kind] if start is None else start


def _gates(model: nn.Module, kind: str) -> Iterator[tuple[str, nn.Parameter]]:
    for name, module in model.named_modules():
        if isinstance(module, GateStore):
            yield from getattr(module, f"{kind}_gates")().items()
        elif isinstance(module, TriState) and getattr(module, kind) is not None:
            yield name, getattr(module, kind)
