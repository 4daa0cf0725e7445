"""Gates become a plan: which channels stay, which constants move, which layers merge."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archlearn.analysis.channel_graph import Blueprint
from archlearn.analysis.cost_model import count_positions
from archlearn.analysis.labels import CONSTANT, Labels, core
from archlearn.analysis.linear_ops import is_linear_op, read_linear_op
from archlearn.costs import Costs, count_parameters
from archlearn.errors import InputError
from archlearn.module_modes import evaluating
from archlearn.module_utils import find_module, find_tensor, first_names
from archlearn.surgery.gate_readout import Decision, decide
from archlearn.surgery.merge_planning import merged_costs, plan_merges, separate_costs
from archlearn.surgery.plan import Fold, Merge, Narrowing, Plan
from archlearn.tracing.binding import unwrap
from archlearn.tracing.computed_weights import computed_names, computes_weights, weight_sources
from archlearn.tracing.instance_forward import check_forwards, class_forwards

PAYS = ("parameters", "multiply_adds")


@torch.inference_mode(False)
def plan(model: nn.Module, example_inputs: object = None, *, pay: str = "parameters") -> Plan:
    """Return what `compact` would do to a model with gates. The model is not changed.

    Args:
        model: A model from `add_gates`, or one with `TriState` activations placed by hand.
        example_inputs: Needed only where gates were placed by hand.
        pay: What a merge must lower to be made: "parameters" or "multiply_adds".

    Raises:
        GateError: If a gate is not a number in [0, 1].
        InputError: If the model has no gates, or `pay` is neither of the two.
        SurgeryError: If a gate placed by hand drops a channel that something still reads.
    """
    model = unwrap(model)
    if pay not in PAYS:
        raise InputError(f"pay is {pay!r}; say what a merge must lower: {' or '.join(PAYS)}")
    check_forwards(model, "plan")
    with class_forwards(model), evaluating(model):
        return write_plan(model, decide(model, example_inputs), pay)


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan whose costs have not been counted yet."""

    narrowings: tuple[Narrowing, ...]
    folds: tuple[Fold, ...]
    merges: tuple[Merge, ...]
    sizes: "PlannedSizes"


def draft(model: nn.Module, decision: Decision, pay: str) -> Draft:
    """Return what follows from a decision, without running the model."""
    blueprint, dropped = decision.choice.blueprint, decision.dropped
    narrowings = tuple(_narrowings(blueprint, dropped))
    folds = tuple(_folds(model, blueprint, dropped))
    sizes = PlannedSizes(model, blueprint, narrowings, folds)
    merges = plan_merges(decision.choice.links, decision.linear, sizes, pay)
    return Draft(narrowings, folds, merges, sizes)


def write_plan(model: nn.Module, decision: Decision, pay: str) -> Plan:
    """Return the plan that follows from a decision."""
    made = draft(model, decision, pay)
    widths = {
        group.name: tuple(torch.nonzero(~decision.dropped[group.channels]).flatten().tolist())
        for group in decision.choice.blueprint.groups
    }
    before = Costs(count_parameters(model), _count_multiply_adds(model, decision, made.sizes))
    after = _predict(model, made, before)
    after = Costs(
        after.parameters - _count_left_out(model, decision, made.sizes), after.multiply_adds
    )
    return Plan(
        widths, made.narrowings, made.folds, decision.linear, made.merges, pay, before, after
    )


class PlannedSizes:
    """Shapes of parameters as they will be, and how often each weight is applied."""

    def __init__(
        self,
        model: nn.Module,
        blueprint: Blueprint,
        narrowings: tuple[Narrowing, ...] = (),
        folds: tuple[Fold, ...] = (),
    ) -> None:
        self.model = model
        self.kept = {(n.name, n.dim): len(n.kept) for n in narrowings}
        self.positions = count_positions(blueprint, model)
        self.names = first_names(model)
        self.new_biases = {
            f.layer for f in folds if getattr(find_module(model, f.layer), "bias", None) is None
        }

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape after narrowing."""
        name = self.names.get(name, name)
        shape = find_tensor(self.model, name).shape
        return tuple(self.kept.get((name, dim), size) for dim, size in enumerate(shape))

    def has_bias(self, layer: str) -> bool:
        """Return whether a layer will have a bias."""
        old = getattr(find_module(self.model, layer), "bias", None)
        return old is not None or layer in self.new_biases

    def applied(self, layer: str) -> int:
        """Return at how many places a layer's weight is applied."""
        return self.positions.get(f"{layer}.weight", 0)


def _narrowings(blueprint: Blueprint, dropped: Tensor) -> list[Narrowing]:
    found: list[Narrowing] = []
    known: dict[int, tuple[int, ...]] = {}  # many dimensions have one tensor of channels
    for (name, dim), channels in blueprint.dims.items():
        if id(channels) not in known:
            known[id(channels)] = tuple(torch.nonzero(~dropped[channels]).flatten().tolist())
        kept = known[id(channels)]
        if len(kept) < len(channels):
            found.append(Narrowing(name, dim, len(channels), kept))
    for name, channels in blueprint.elements.items():
        gone = dropped[channels]
        for dim in range(gone.dim()):
            whole = gone.movedim(dim, 0).reshape(gone.shape[dim], -1).all(1)
            if bool(whole.any()):
                kept = tuple(torch.nonzero(~whole).flatten().tolist())
                found.append(Narrowing(name, dim, len(whole), kept))
    return found


def _folds(model: nn.Module, blueprint: Blueprint, dropped: Tensor) -> list[Fold]:
    found: dict[str, Fold] = {}
    for place, graph in enumerate(blueprint.graphs):
        values = blueprint.followed[place].values
        for node in graph.nodes:
            if not (node.op == "call_module" and is_linear_op(node, model)):
                continue
            op = read_linear_op(node, model)
            labels = values[node.all_input_nodes[0].name]
            if op is None or not isinstance(labels, Labels) or op.groups > 1:
                continue
            ids, state = core(labels.ids, labels.state, labels.ids.dim() + op.channel_dim)
            constant = state.amax(0) == CONSTANT
            if not bool(constant.any()):
                continue
            gone = dropped[blueprint.root[ids[0]]] & constant
            if bool(gone.any()):
                columns = tuple(torch.nonzero(gone).flatten().tolist())
                found[op.layer] = Fold(op.layer, columns)
    return list(found.values())


def _count_multiply_adds(model: nn.Module, decision: Decision, sizes: PlannedSizes) -> int:
    """Return the multiply-adds of one run on the example inputs, from the run already made."""
    layers = sum(find_tensor(model, name).numel() * n for name, n in sizes.positions.items())
    return layers + decision.choice.blueprint.followed[0].other_multiply_adds


def _count_left_out(model: nn.Module, decision: Decision, sizes: PlannedSizes) -> int:
    """Return the parameters of activations (PReLU) all of whose calls have become linear."""
    calls: dict[str, list[bool]] = {}
    for site in decision.choice.blueprint.sites[0]:
        if site.module:
            calls.setdefault(site.module, []).append(site.name in decision.linear)
    gone = [name for name, linear in calls.items() if all(linear)]
    return sum(
        math.prod(sizes.shape(f"{name}.{key}"))
        for name in gone
        for key, _ in find_module(model, name).named_parameters()
        if key not in ("width", "depth")
    )


def computed_tensors(model: nn.Module, draft: Draft | Plan) -> list[str]:
    """Return the weights that are computed (weight_norm) and become plain ones."""
    if not any(map(computes_weights, model.modules())):
        return []
    touched = [n.name for n in draft.narrowings] + [f"{f.layer}.weight" for f in draft.folds]
    touched += [f"{layer}.weight" for m in draft.merges if m.made for layer in m.layers]
    names: dict[str, None] = {}
    for owner in dict.fromkeys(name.rpartition(".")[0] for name in touched):
        module = find_module(model, owner)
        names |= {f"{owner}.{key}": None for key in computed_names(module)}
    return list(names)


def _count_computed(model: nn.Module, draft: Draft) -> int:
    owners = {name.rpartition(".")[0] for name in computed_tensors(model, draft)}
    parts = [find_module(model, owner) for owner in owners]
    return sum(p.numel() for part in parts for p in weight_sources(part).values())


def _predict(model: nn.Module, made: Draft, before: Costs) -> Costs:
    sizes, merges = made.sizes, made.merges
    parameters = before.parameters
    multiply_adds = before.multiply_adds
    changed = {name for name, _ in sizes.kept}
    parameters -= _count_computed(model, made)
    for name in changed:
        tensor = find_tensor(model, name)
        if isinstance(tensor, nn.Parameter):
            parameters += math.prod(sizes.shape(name)) - tensor.numel()
    for name in computed_tensors(model, made):
        parameters += math.prod(sizes.shape(name))
    for name in changed & sizes.positions.keys():
        lost = find_tensor(model, name).numel() - math.prod(sizes.shape(name))
        multiply_adds -= lost * sizes.positions[name]
    for layer in sizes.new_biases:
        parameters += sizes.shape(f"{layer}.weight")[0]
    for merge in merges:
        if merge.made:
            old, new = separate_costs(merge, sizes), merged_costs(merge, sizes)
            parameters += new.parameters - old.parameters
            multiply_adds += new.multiply_adds - old.multiply_adds
    return Costs(parameters, multiply_adds)
