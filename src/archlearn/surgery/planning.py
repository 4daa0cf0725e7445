"""`plan`: read the gates, and list what is narrowed, folded, merged and left out."""

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from archlearn.analysis.channel_graph import ChannelGraph
from archlearn.analysis.channel_labels import CONSTANT, FIXED, Labels, core
from archlearn.analysis.cost_model import count_positions
from archlearn.analysis.linear_ops import find_linear_ops
from archlearn.costs import COSTS, Costs
from archlearn.errors import InputError
from archlearn.gating.cost_counter import count_parameters
from archlearn.module_utils import (
    computed_names,
    computes_weights,
    evaluating,
    find_module,
    find_tensor,
    list_tensors,
    sharing_layers,
    weight_sources,
)
from archlearn.surgery.closed_channels import read_decision
from archlearn.surgery.decision import Decision
from archlearn.surgery.merging import PlannedSizes, count_apart, count_merged, plan_merges
from archlearn.surgery.plan import Fold, Narrowing, Plan
from archlearn.tracing.generated_forward import check_forwards, class_forwards, unwrap


@torch.inference_mode(False)
def plan(model: nn.Module, example_inputs: object = None, *, pay: str = "parameters") -> Plan:
    """Return what `compact` would do to a model. The model is not changed.

    Args:
        model: Any model, with gates or without.
        example_inputs: Arguments for one call. A model from `add_gates` or `compact` knows its own.
        pay: What a merge must lower to be made: "parameters" or "multiply_adds".

    Raises:
        GateError: If a gate is not a number in [0, 1].
        InputError: If a model without gates is given without example inputs, or `pay` is neither
            of the two.
        SurgeryError: If a gate placed by hand drops a channel that something still reads.
    """
    model = unwrap(model)
    if pay not in COSTS:
        raise InputError(f"pay is {pay!r}; say what a merge must lower: {' or '.join(COSTS)}")
    check_forwards(model, "plan")
    with class_forwards(model), evaluating(model):
        return write_plan(*read_decision(model, example_inputs), pay)


def write_plan(model: nn.Module, decision: Decision, pay: str) -> Plan:
    """Return the plan that follows from a decision, without running the model."""
    channel_graph, dropped = decision.learnable.channel_graph, decision.dropped
    gone = decision.gone_tensors()
    narrowings = tuple(n for n in _narrowings(channel_graph, dropped) if n.name not in gone)
    _check_tensors(model, channel_graph, narrowings)
    folds = tuple(_folds(model, decision)) if decision.folds is None else decision.folds
    sizes = PlannedSizes(model, channel_graph, narrowings, folds, decision.gone_calls(0), dropped)
    positions = count_positions(channel_graph, model)
    n_products = int(sum(find_tensor(model, name).numel() * n for name, n in positions.items()))
    n_products += sum(
        channel_graph.followed[0].other_multiply_adds.values()
    )  # of the run already made
    before = Costs.of(count_parameters(model), n_products)
    unpriced = Plan(
        widths={
            group.name: tuple(torch.nonzero(~dropped[group.channels]).flatten().tolist())
            for group in channel_graph.groups
        },
        narrowings=narrowings,
        folds=folds,
        linear=decision.linear,
        merges=plan_merges(decision.learnable.mergeable, decision.linear, sizes, pay),
        pay=pay,
        before=before,
        after=before,
        branches=decision.closed,
        removed=tuple(name for name in dict.fromkeys(sizes.names.values()) if name in gone),
    )
    return replace(unpriced, after=_predict(model, decision, unpriced, sizes))


def _check_tensors(
    model: nn.Module, channel_graph: ChannelGraph, narrowings: Iterable[Narrowing]
) -> None:
    """Refuse tensors that were tied, untied, taken away or given since gates were added."""
    retied = sharing_layers(model) ^ channel_graph.sharing
    called = {
        n.target for graph in channel_graph.graphs for n in graph.nodes if n.op == "call_module"
    }
    tensors = dict(list_tensors(model))
    names = [*(name for name, _ in channel_graph.dims), *channel_graph.elements]
    narrowed = {id(tensors.get(name)) for name in names}
    for name in [narrowing.name for narrowing in narrowings]:
        owner, _, key = name.rpartition(".")
        layer = find_module(model, owner)
        bias = layer._parameters.get("bias")
        what = ""
        if owner in retied:
            what = "was tied to another layer, or untied from it,"
        elif getattr(layer, key, None) is None:
            what = "is gone"
        elif bias is not None and owner in called and id(bias) not in narrowed:
            name, what = f"{owner}.bias", "is new"
        if what:
            raise InputError(
                f"{name!r} {what} since gates were added, so it cannot be cut as was found then; "
                "make it as it was (load_state_dict(..., assign=True) unties weights), or change "
                "the model before add_gates"
            )


def _narrowings(channel_graph: ChannelGraph, dropped: Tensor) -> list[Narrowing]:
    narrowings: list[Narrowing] = []
    kept_of: dict[int, tuple[int, ...]] = {}  # many dimensions have one tensor of channels
    for (name, dim), channels in channel_graph.dims.items():
        if id(channels) not in kept_of:
            kept_of[id(channels)] = tuple(torch.nonzero(~dropped[channels]).flatten().tolist())
        kept = kept_of[id(channels)]
        if len(kept) < len(channels):
            narrowings.append(Narrowing(name, dim, len(channels), kept))
    for name, channels in channel_graph.elements.items():
        gone = dropped[channels]
        for dim in range(gone.dim()):
            whole = gone.movedim(dim, 0).reshape(gone.shape[dim], -1).all(1)
            if bool(whole.any()):
                kept = tuple(torch.nonzero(~whole).flatten().tolist())
                narrowings.append(Narrowing(name, dim, len(whole), kept))
    return narrowings


def _folds(model: nn.Module, decision: Decision) -> list[Fold]:
    channel_graph, dropped = decision.learnable.channel_graph, decision.dropped
    folds: dict[str, Fold] = {}
    gone_calls = [decision.gone_calls(index) for index in range(len(channel_graph.graphs))]
    for layer, channels, constant in find_constant_inputs(model, channel_graph, gone_calls):
        gone = dropped[channels] & constant
        if bool(gone.any()):
            folds[layer] = Fold(layer, tuple(torch.nonzero(gone).flatten().tolist()))
    return list(folds.values())


def find_constant_inputs(
    model: nn.Module, channel_graph: ChannelGraph, gone_calls: Sequence[Container[str]] = ((), ())
) -> Iterable[tuple[str, Tensor, Tensor]]:
    """Yield the layers with inputs that are constant once dropped: their channels, and which."""
    for index, graph in enumerate(channel_graph.graphs):
        values = channel_graph.followed[index].values
        for node, op in find_linear_ops(graph, model):
            labels = values[node.all_input_nodes[0].name]
            if not op.takes_constants or node.name in gone_calls[index]:
                continue
            if (
                node.name in channel_graph.followed[index].passing
            ):  # what is summed over is no constant
                continue
            if not isinstance(labels, Labels):
                continue
            ids, state = core(labels.ids, labels.state, labels.ids.dim() + op.channel_dim)
            constant = state.amax(0) == CONSTANT
            read = channel_graph.followed[index].reads.get(node.name)
            if read is not None:  # through gates: nothing of it is left
                constant = constant & (read.ids == FIXED)
            if bool(constant.any()):
                yield op.layer, channel_graph.root[ids[0]], constant


def find_sliceable(model: nn.Module, channel_graph: ChannelGraph) -> Tensor:
    """Return which channels leave nothing behind when they go, in either mode.

    A BatchNorm behind a gate makes a dropped channel a constant, another one in training than in
    evaluation; weights that are computed (weight_norm) become plain ones. Both can wait.
    """
    sliceable = torch.ones(len(channel_graph.root), dtype=torch.bool, device="cpu")
    for _, channels, constant in find_constant_inputs(model, channel_graph):
        sliceable[channel_graph.parents[:, channels[constant]]] = False
    for (name, _), channels in channel_graph.dims.items():
        owner, _, key = name.rpartition(".")
        if key in computed_names(find_module(model, owner)):
            sliceable[channel_graph.parents[:, channels]] = False
    return sliceable


def _count_cut(decision: Decision, gone: set[str]) -> int:
    """Return the multiply-adds that products lose with the channels that go."""
    channel_graph = decision.learnable.channel_graph
    return sum(
        n * int(decision.dropped[channel_graph.root[ids]].sum()) // len(ids)
        for name, parts in channel_graph.followed[0].products.items()
        for n, ids in parts
        if name not in gone
    )


def _count_left_out(model: nn.Module, decision: Decision, sizes: PlannedSizes) -> int:
    """Return the parameters of activations (PReLU) all of whose calls have become linear."""
    calls: dict[str, list[bool]] = {}
    gone_calls = decision.gone_calls(0)
    for site in decision.learnable.channel_graph.sites[0]:
        if site.module and site.node not in gone_calls:
            calls.setdefault(site.module, []).append(site.name in decision.linear)
    gone = [name for name, linear in calls.items() if all(linear)]
    return sum(
        math.prod(sizes.shape(f"{name}.{key}"))
        for name in gone
        for key, _ in find_module(model, name).named_parameters()
        if key not in ("width", "depth")
    )


def computed_tensors(model: nn.Module, plan: Plan) -> list[str]:
    """Return the weights that are computed (weight_norm) and become plain ones."""
    if not any(map(computes_weights, model.modules())):
        return []
    touched = [n.name for n in plan.narrowings] + [f"{f.layer}.weight" for f in plan.folds]
    touched += [f"{layer}.weight" for m in plan.merges if m.made for layer in m.layers]
    names: dict[str, None] = {}
    for owner in dict.fromkeys(name.rpartition(".")[0] for name in touched):
        module = find_module(model, owner)
        names |= {f"{owner}.{key}": None for key in computed_names(module)}
    return list(names)


def _predict(model: nn.Module, decision: Decision, plan: Plan, sizes: PlannedSizes) -> Costs:
    """Return the costs of the compact network."""
    gone, gone_calls = decision.gone_tensors(), decision.gone_calls(0)
    computed = computed_tensors(model, plan)
    narrowed = {name for name, _ in sizes.kept}
    parameters = count_parameters(model) - _count_left_out(model, decision, sizes)
    parameters -= sum(p.numel() for name, p in model.named_parameters() if name in gone)
    for owner in {name.rpartition(".")[0] for name in computed}:
        sources = weight_sources(find_module(model, owner))
        parameters -= sum(source.numel() for source in sources.values())
    for name in narrowed:
        tensor = find_tensor(model, name)
        if isinstance(tensor, nn.Parameter):
            parameters += math.prod(sizes.shape(name)) - tensor.numel()
    parameters += sum(math.prod(sizes.shape(name)) for name in computed)
    parameters += sum(sizes.shape(f"{layer}.weight")[0] for layer in sizes.new_biases)
    others = decision.learnable.channel_graph.followed[0].other_multiply_adds
    multiply_adds = sum(n for name, n in others.items() if name not in gone_calls)
    multiply_adds -= _count_cut(decision, gone_calls)
    multiply_adds += int(sum(math.prod(sizes.shape(w)) * n for w, n in sizes.positions.items()))
    for merge in plan.merges:
        if merge.made:
            old, new = count_apart(merge, sizes), count_merged(merge, sizes)
            parameters += new[0] - old[0]
            multiply_adds += new[1] - old[1]
    return Costs.of(parameters, multiply_adds)
