"""`add_gates`: check its arguments, trace a copy of the model, and give it gates."""

import difflib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from archlearn.analysis.cost_model import build_cost_table
from archlearn.analysis.trace_check import IN_HALF, check_trace, is_half
from archlearn.errors import (
    LARGEST,
    InputError,
    TracingError,
    check_kind,
    lies_in,
    with_article,
)
from archlearn.gating.gate_container import (
    GateContainer,
    add_container_,
    attach_container_,
    find_container,
)
from archlearn.gating.insertion import insert_gates
from archlearn.gating.learn import Learn
from archlearn.gating.selection import LearnableSites, select_sites
from archlearn.gating.weight_gates import WeightGates, open_norms_
from archlearn.gating.weight_groups import GateGroup, list_gate_groups
from archlearn.module_utils import (
    check_numbers,
    copy_model,
    find_reference,
    list_tensors,
    noticing_calls,
)
from archlearn.nn.tristate_activation import DEPTH_START, WIDTH_START, TriState
from archlearn.tracing.block_hooks import warn_of_traced_hooks
from archlearn.tracing.generated_forward import (
    MODE_READERS,
    bind_graphs_,
    check_forwards,
    is_bound,
    remove_wrapper_,
    unwrap,
    without_graph_module,
)
from archlearn.tracing.module_state import check_weights
from archlearn.tracing.position_ids import with_position_ids
from archlearn.tracing.pretrained_methods import methods_of_gated, warn_of_checkpointing
from archlearn.tracing.symbolic_trace import ExampleInputs, Leaf
from archlearn.tracing.trace_context import without_autocast
from archlearn.tracing.transformer_blocks import (
    BLOCKS,
    disable_caches_,
    has_blocks,
    with_attention_mask,
)


def check_net(net: Any) -> None:
    """Raise if gates cannot be put on this."""
    if unwrap(net) is not net:
        raise InputError(
            f"the model is wrapped in {with_article(type(net).__name__)}; give the model as it was "
            "before torch.compile or DDP, and wrap the gated copy"
        )
    if isinstance(net, torch.jit.ScriptModule):
        raise InputError(
            f"the model is compiled by torch.jit ({type(net).__name__}), and its forward cannot be "
            "followed; give the model as it was before, and script or export the compact one"
        )
    if "eval" in vars(net) and isinstance(net, fx.GraphModule):
        raise InputError(
            "the model comes from torch.export, and has no modes; give the model as it was before, "
            "and export the compact one"
        )
    for name, module in net.named_modules():
        if any(hasattr(module, packed) for packed in ("_packed_params", "_all_weight_values")):
            raise InputError(
                f"{name!r} is quantised ({type(module).__name__}), which no gradient passes; give "
                "the model as it was before, and quantise the compact one"
            )
    check_forwards(net, "add_gates", may_be_wrapped=False)
    if find_container(net) is not None or any(isinstance(m, TriState) for m in net.modules()):
        raise InputError("the model has gates already; call add_gates on the model without them")


def check_learn(learn: Any) -> None:
    """Raise if this says of no layer what is to be learnt there."""
    if learn is not None:
        advice = 'give a dict from layer names to Learn, such as {"fc*": Learn.WIDTH}'
        check_kind("learn", learn, Mapping, advice)
    for key in learn or ():
        if not isinstance(key, str):
            raise InputError(f"learn has the key {key!r}; layers are named by strings")


def check_leaves(net: nn.Module, leaves: Any) -> tuple[Leaf, ...]:
    """Return the leaves as a tuple."""
    if isinstance(leaves, str | type) or not isinstance(leaves, Iterable):
        raise InputError(
            f"leaves is {leaves!r}; give a list of names and classes"
            + ("" if leaves is None else f": [{leaves!r}]")
        )
    requested = tuple(leaves)
    names = [name for name, _ in net.named_modules() if name]
    for leaf in requested:
        if isinstance(leaf, str):
            exists, label = leaf in names, repr(leaf)
        elif isinstance(leaf, type):
            exists, label = any(isinstance(m, leaf) for m in net.modules()), leaf.__name__
        else:
            raise InputError(
                f"leaves holds {leaf!r}; give names of submodules or classes of modules"
            )
        if not exists:
            close = difflib.get_close_matches(str(leaf), names, n=3)
            hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise InputError(
                f"leaves holds {label}, but {type(net).__name__} has no such submodule{hint}"
            )
    return requested


def check_rows(inputs: ExampleInputs) -> ExampleInputs:
    """Return example inputs, unless there is nothing in them to look at."""
    for tensor in inputs.tensors():
        if not tensor.numel():
            raise InputError(
                f"example_inputs hold a tensor of shape {tuple(tensor.shape)}, without a number; "
                "give at least one example"
            )
    return inputs


def check_rates(**rates: Any) -> None:
    """Raise if a rate is no number from 0 on; None is left out."""
    for name, rate in rates.items():
        if rate is not None and not lies_in(rate, 0, LARGEST):
            raise InputError(f"{name} is {rate!r}; a rate is a number from 0 on")


_log = logging.getLogger(__name__)


def trace_copy(
    net: nn.Module,
    inputs: ExampleInputs,
    learn: Mapping[str, Learn] | None,
    leaves: tuple[Leaf, ...] = (),
    *,
    must_learn: bool = True,
) -> tuple[nn.Module, LearnableSites]:
    """Return a copy, and what is learnt in it; torch's own blocks are followed where they can be.

    Their fused kernel may compute something else than their layers, and so may a subclass.
    """
    check_numbers(list_tensors(net))
    inputs = with_position_ids(net, with_attention_mask(net, inputs))
    copied, learnable = _follow_and_check(net, inputs, learn, leaves, must_learn=must_learn)
    for name, why in learnable.channel_graph.traces.opaque.items():
        if has_blocks(copied.get_submodule(name)):
            _log.warning("%s was not looked into: %s", name, why)
    return copied, learnable


def _follow_and_check(
    net: nn.Module,
    inputs: ExampleInputs,
    learn: Mapping[str, Learn] | None,
    leaves: tuple[Leaf, ...] = (),
    *,
    must_learn: bool = True,
) -> tuple[nn.Module, LearnableSites]:
    copied = copy_model(without_graph_module(net))
    for module in copied.modules():
        remove_wrapper_(module)
    disable_caches_(copied)
    try:
        learnable = select_sites(copied, inputs, learn, leaves, must_learn=must_learn)
        if not is_bound(net):
            _check_copy(net, copied, learnable)
    except TracingError:
        if not has_blocks(net) or BLOCKS[0] in leaves:
            raise
        if is_half(net):
            _log.warning("transformer blocks of torch are not looked into. %s", IN_HALF)
        leaves = *leaves, *BLOCKS
        return _follow_and_check(net, inputs, learn, leaves, must_learn=must_learn)
    return copied, learnable


def _check_copy(net: nn.Module, copied: nn.Module, learnable: LearnableSites) -> None:
    """Run a copy and its graphs, which must do the same."""
    traces = learnable.channel_graph.traces
    with noticing_calls(net) as called:
        check_trace(copied, traces, learnable.channel_graph.inputs)
    if called:
        raise TracingError(
            f"a copy of {type(net).__name__} still calls {called[0]!r} of the model itself: "
            "something that is not copied holds it, such as a lambda or a hook made from it; "
            "let that use the module that it is called with (self), or remove it"
        )
    check_weights(copied, net)


@torch.inference_mode(False)
@without_autocast()
def add_gates(
    net: nn.Module,
    example_inputs: object,
    *,
    learn: Mapping[str, Learn] | None = None,
    leaves: Iterable[Leaf] = (),
    width_start: float = WIDTH_START,
    depth_start: float = DEPTH_START,
    on: Literal["activations", "weights"] = "activations",
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
        width_start: Where width gates start; at one half or above, a channel is kept.
        depth_start: Where depth gates start; below one half, a layer is non-linear.
        on: What gates act on: "activations", by a `forward` that is generated; or "weights", the
            coming default: `forward` and the keys of `state_dict` stay the user's own, and gates
            act by the hooks of the optimiser that `GateOptimizer` is given. Depth is not learnt
            there yet.

    Raises:
        InputError: If the inputs do not fit, `learn` names no layer, or nothing can be learnt.
        TracingError: If the model's own `forward` depends on data.
    """
    check_net(net)
    for name, value in (("width_start", width_start), ("depth_start", depth_start)):
        if not lies_in(value, 0, 1):
            raise InputError(f"{name} is {value!r}; a gate lies in [0, 1]")
    check_learn(learn)
    leaves = check_leaves(net, leaves)
    inputs = check_rows(ExampleInputs.of(example_inputs))
    if on not in ("activations", "weights"):
        raise InputError(f"on is {on!r}; choose 'activations' or 'weights'")
    gated, learnable = trace_copy(net, inputs, learn, leaves)
    if on == "weights":
        return attach_weight_gates(gated, learnable, width_start)
    container = GateContainer(learnable, width_start, depth_start, was_bound=is_bound(net))
    warn_of_traced_hooks(learnable.channel_graph.traces.all_blocks, gated)
    warn_of_checkpointing(gated)
    bind_gates_(gated, container)
    return gated


def find_gate_groups(net: nn.Module, example_inputs: object) -> tuple[GateGroup, ...]:
    """Return all groups of channels and residual branches of a network, learnt or not.

    Args:
        net: Any model that runs on `example_inputs`; it is left untouched.
        example_inputs: A tensor, a tuple of arguments or a dict of keyword arguments.
    """
    check_net(net)
    inputs = check_rows(ExampleInputs.of(example_inputs))
    return list_gate_groups(*trace_copy(net, inputs, None, must_learn=False))


def attach_weight_gates(gated: nn.Module, learnable: LearnableSites, start: float) -> nn.Module:
    """Return a copy of a model with gates that act on its weights, and nothing else changed."""
    groups = learnable.channel_graph.groups  # every head keeps the same of its channels
    graph = replace(
        learnable.channel_graph, groups=tuple(replace(group, heads=None) for group in groups)
    )
    learnable = replace(learnable, channel_graph=graph, mergeable={})
    if not groups and not learnable.branches:
        raise InputError(
            "only depth can be learnt here, which gates on weights do not learn yet; leave on= out"
        )
    container = GateContainer(learnable, start, DEPTH_START, was_bound=is_bound(gated))
    container.set_cost_table(build_cost_table(graph, gated))
    container.on_weights = WeightGates(list_gate_groups(gated, learnable))
    open_norms_(gated, container.on_weights.groups)
    reference = find_reference(gated)
    if reference is not None:
        container.to(reference.device)
    attach_container_(gated, container)
    return gated


def bind_gates_(net: nn.Module, container: GateContainer) -> None:
    """Give a model its gates, and a `forward` in which they act."""
    container.set_cost_table(build_cost_table(container.channel_graph, net))
    reference = find_reference(net)
    assert reference is not None  # or nothing could be learnt
    add_container_(net, container)
    _bind_forward_(net, container)
    container.to(reference if reference.is_floating_point() else reference.real)
    if container.channel_graph.traces.mode_readers:
        setattr(net, MODE_READERS, container.channel_graph.traces.mode_readers)


def _bind_forward_(net: nn.Module, container: GateContainer) -> None:
    channel_graph = container.channel_graph
    graphs = [insert_gates(net, container, index) for index in range(len(channel_graph.graphs))]
    blocks = channel_graph.traces.all_blocks
    bind_graphs_(net, graphs, "Gated", blocks, **methods_of_gated(net))


def let_stand_(net: nn.Module, container: GateContainer, flags: Tensor) -> None:
    """Let a model's `forward` pass over the gates that are flagged, and all others act again."""
    container.stand_still_(flags)
    held: Any = type(net).forward  # by Accelerate and torch.compile
    _bind_forward_(net, container)
    container.to(container.gates()[0].device)
    new_class: Any = type(net)
    new_class.forward = held
