"""Read off the weights of any network which channels and residual branches are closed."""

from collections.abc import Collection, Iterable, Mapping

from torch import Tensor, nn

from archlearn.analysis.channel_graph import ChannelGraph
from archlearn.errors import InputError, SurgeryError
from archlearn.gating.attach import check_net, check_rows, trace_copy
from archlearn.gating.cost_counter import EXAMPLE, known_inputs
from archlearn.gating.gate_container import (
    find_container,
    own_container,
    remove_container_,
)
from archlearn.gating.selection import LearnableSites
from archlearn.gating.weight_gates import WeightGates
from archlearn.gating.weight_groups import GateGroup, find_closed, list_gate_groups
from archlearn.module_utils import copy_model, find_module, find_tensor
from archlearn.nn.open_norms import is_open_form
from archlearn.nn.rms_norm_forms import read_rms_norm, scale_eps_, scale_weight_
from archlearn.surgery.constant_channels import find_constant_columns
from archlearn.surgery.decision import Decision, decide, has_gates
from archlearn.surgery.plan import Fold
from archlearn.tracing.symbolic_trace import ExampleInputs


def check_inputs(model: nn.Module, example_inputs: object) -> ExampleInputs:
    """Return example inputs, those given or those that a model knows; a plain one knows none."""
    is_known = has_gates(model) or find_container(model) is not None or hasattr(model, EXAMPLE)
    if example_inputs is None and not is_known:
        raise InputError(
            f"{type(model).__name__} has no gates, so what is closed is read off its weights, and "
            "for that it is followed through one call: give example_inputs, the arguments of one "
            "call (a tensor, a tuple or a dict of keyword arguments); or call add_gates on it first"
        )
    return known_inputs(model, example_inputs)


def read_decision(model: nn.Module, example_inputs: object = None) -> tuple[nn.Module, Decision]:
    """Return what the gates of a model say, or its weights where it has none.

    And the model that surgery starts from: one without gates is traced as a copy.
    """
    if has_gates(model):
        return model, decide(model, example_inputs)
    return read_closed(model, check_inputs(model, example_inputs))


def read_closed(net: nn.Module, inputs: ExampleInputs) -> tuple[nn.Module, Decision]:
    """Return a traced copy of a network without gates, and what its weights say is closed.

    The eps of RMSNorms of the copy is that over the channels left; their weights are to grow.
    """
    container = own_container(net)
    if container is not None and container.on_weights is not None:
        check_closed(net, container.on_weights)
        is_open_norm = {name for name, module in net.named_modules() if is_open_form(module)}
        net = copy_model(net)
        remove_container_(net)
    else:
        is_open_norm = set[str]()
    check_net(net)
    copied, learnable = trace_copy(net, check_rows(inputs), None, must_learn=False)
    decision = _decide(copied, learnable, is_open_norm)
    if decision.growths:  # a trace holds the eps of norms that are written by hand
        for name, growth in decision.growths.items():
            module = find_module(copied, name)
            form = read_rms_norm(module)
            assert form is not None  # or its channels were open
            scale_eps_(module, form, growth)
        copied, learnable = trace_copy(copied, inputs, None, must_learn=False)
        decision = _decide(copied, learnable, is_open_norm)
    return copied, decision


def check_closed(net: nn.Module, gates: WeightGates) -> None:
    """Raise if something else has written slices that gates hold at zero.

    Raises:
        SurgeryError: With the name of the parameter.
    """
    stray = gates.find_stray(net)
    if stray is not None:
        raise SurgeryError(
            f"{stray!r} is not zero where its gates are closed: something else has written it (a "
            "copied optimizer has lost its hooks), or these are averaged weights; step the model "
            "by the optimizer that GateOptimizer was given, and compact the model itself"
        )


def _decide(
    net: nn.Module, learnable: LearnableSites, open_norms: Collection[str] = ()
) -> Decision:
    """Return what weights say is closed; norms of these names are over open channels alone."""
    graph, groups = learnable.channel_graph, list_gate_groups(net, learnable)
    constants = find_constant_columns(net, graph, graph.inputs)
    can_go = {f"{name}.weight": column.can_go for name, column in constants.items()}
    is_closed = find_closed(net, groups, can_go, open_norms)
    n_width = len(graph.groups)
    gone = [
        _leave(is_closed[item.start : item.start + item.size], group.least)
        for item, group in zip(groups, graph.groups, strict=False)
    ]
    dropped = graph.find_dropped(gone)
    closed = tuple(item.name for item in groups[n_width:] if bool(is_closed[item.start]))
    gone = {layer: c.into_bias & dropped[c.channels] for layer, c in constants.items()}
    folds = tuple(
        Fold(layer, tuple(columns.nonzero().flatten().tolist()))
        for layer, columns in gone.items()
        if bool(columns.any())
    )
    growths = _find_growths(net, graph, dropped, groups)
    return Decision(learnable, dropped, (), closed, growths, folds)


def _leave(is_closed: Tensor, least: int) -> Tensor:
    """Return which channels of a group go: some stay, even if nobody reads them."""
    gone = is_closed.clone()
    missing = least - int((~gone).sum())
    if missing > 0:
        gone[gone.nonzero().flatten()[:missing]] = False
    return gone


def _find_growths(
    net: nn.Module, graph: ChannelGraph, dropped: Tensor, groups: Iterable[GateGroup]
) -> dict[str, float]:
    """Return n/m for each RMSNorm over n channels of which m are left."""
    growths: dict[str, float] = {}
    for name in dict.fromkeys(name for group in groups for name in group.norms):
        ids = graph.dims.get((f"{name}.weight", 0))
        is_rms = read_rms_norm(find_module(net, name)) is not None
        if is_rms and ids is not None and bool(dropped[ids].any()):
            growths[name] = len(ids) / int((~dropped[ids]).sum())
    return growths


def scale_rms_norms_(net: nn.Module, growths: Mapping[str, float]) -> None:
    """Let the weights of narrowed RMSNorms make up for the zeros that they no longer read."""
    for name, growth in growths.items():
        module = find_module(net, name)
        form = read_rms_norm(module)
        assert form is not None  # or its channels were open
        scale_weight_(find_tensor(module, "weight"), form, growth**0.5)
