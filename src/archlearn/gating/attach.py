"""Gates are put behind the activations of a copy of the user's model."""

from collections.abc import Iterable, Mapping

import torch
from torch import nn

from archlearn.analysis.cost_model import build_cost_table
from archlearn.errors import InputError
from archlearn.gating.container import GateKind, GateStore, add_store_
from archlearn.gating.insertion import insert_gates
from archlearn.gating.l0_folding import find_writers
from archlearn.gating.learn import Learn
from archlearn.gating.trace_copy import follow_copy
from archlearn.gating.validation import (
    check_learn,
    check_leaves,
    check_net,
    check_rows,
    check_starts,
)
from archlearn.module_utils import find_reference
from archlearn.nn import hard_concrete
from archlearn.nn.tristate import DEPTH_START, WIDTH_START
from archlearn.tracing.binding import bind_graphs_, is_bound
from archlearn.tracing.block_hooks import warn_of_traced_hooks
from archlearn.tracing.generated_forward import MODE_READERS
from archlearn.tracing.trace_context import without_autocast
from archlearn.tracing.traces import ExampleInputs, Leaf

"""Settings of optimisers that divide a gradient by its own size: Adam, RMSprop, Lion, Rprop."""


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


def _choose_start(kind: str, start: float | None) -> float:
    """Return where width gates start."""
    starts = {"binary": WIDTH_START, "l0": hard_concrete.START}
    if kind not in starts:
        raise InputError(f"kind is {kind!r}; choose one of {', '.join(map(repr, starts))}")
    return starts[kind] if start is None else start
