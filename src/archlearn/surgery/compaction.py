"""`compact`: apply a plan to a copy of the model, and certify the result."""

import logging
from contextlib import suppress
from dataclasses import replace

import torch
from torch import fx, nn

from archlearn.analysis.original_channels import KEPT
from archlearn.analysis.trace_check import forward_matches_graph, try_graph
from archlearn.costs import unit_of
from archlearn.errors import ArchlearnError, InputError, SurgeryError, check_kind, first_line
from archlearn.gating.cost_counter import EXAMPLE, place_inputs
from archlearn.gating.gate_container import CONTAINER, find_container, remove_container_
from archlearn.gating.insertion import copy_with_marks, leave_out_branches_
from archlearn.module_utils import (
    check_numbers,
    check_unsharded,
    copy_model,
    evaluating,
    find_module,
    make_plain_,
    modes_of,
    set_modes_,
    tensors_of,
)
from archlearn.surgery.closed_channels import check_inputs, read_decision, scale_rms_norms_
from archlearn.surgery.decision import Decision, check_slopes, has_gates
from archlearn.surgery.graph_rewriter import Rewriter
from archlearn.surgery.narrowing import (
    apply_merges_,
    find_shifts,
    narrowed_tensors,
    remove_tensors_,
    shift_biases_,
    update_sizes_,
)
from archlearn.surgery.plan import Plan
from archlearn.surgery.planning import computed_tensors, write_plan
from archlearn.tracing.example_inputs import CHECKS, count_examples
from archlearn.tracing.generated_forward import (
    bind_graphs_,
    check_forwards,
    class_forwards,
    is_bound,
    unwrap,
    user_class,
)
from archlearn.tracing.module_state import preserve_state
from archlearn.tracing.pretrained_methods import methods_of_bound
from archlearn.tracing.symbolic_trace import ExampleInputs, Traces
from archlearn.tracing.trace_context import without_autocast
from archlearn.verification.certificate import Certificate, Comparison
from archlearn.verification.precision import cast_, exchanging, to_float64

logger = logging.getLogger(__name__)

CERTIFICATE = "certificate"


@torch.inference_mode(False)
@without_autocast()
def compact(
    model: nn.Module,
    example_inputs: object = None,
    *,
    plan: Plan | None = None,
    certified: bool = True,
) -> nn.Module:
    """Return the plain, smaller model that computes what `model` computes.

    Of a model with gates, what they have closed is cut. Of any other model, every channel, head
    and residual branch is cut that no other weight reads: all that would read it is exactly zero,
    as group lasso, a mask of `torch.nn.utils.prune` or a gate has left it.

    The result is of the user's own class, in evaluation or training mode as `model` is, and has
    its `certificate` as an attribute. `model` is not changed, but no other thread may call it
    meanwhile: to be compared, both models have other numbers for a while.

    Args:
        model: Any model, with gates or without.
        example_inputs: Arguments for one call: a tensor, a tuple or a dict of keyword arguments.
            A model from `add_gates` or `compact` knows its own.
        plan: What to do; left out, what the gates or the weights say.
        certified: Whether both models are compared on the example inputs and on random ones. The
            surgery is the same without, and quicker, but nobody has measured that the result is
            right: `certificate` is None, and a fault of archlearn's would not be noticed. Shapes
            are still checked by one run without the layers, where no part of the model is unknown.
            Where the user's own `forward` may not serve, a generated one does.

    Raises:
        GateError: If a gate is not a number in [0, 1].
        InputError: If a model without gates is given without example inputs.
        SurgeryError: If the plan does not fit the model, or would not be exact.
        CertificateError: If the result is to be certified, and differs or holds NaN.
    """
    model = unwrap(model)
    if isinstance(example_inputs, Plan):
        raise InputError("compact(model, plan) has a plan for its example inputs; give plan=...")
    if plan is not None:
        check_kind("plan", plan, Plan, "give a Plan from archlearn.plan(model)")
    check_unsharded(
        model,
        "and compact needs it whole; bring the weights together by get_model_state_dict(model, "
        "options=StateDictOptions(full_state_dict=True)), load them into a gated model made anew, "
        "and compact that one",
    )
    check_numbers(model.named_parameters())
    check_forwards(model, "compact")
    inputs = check_inputs(model, example_inputs)
    container = find_container(model)
    with class_forwards(model):
        small, carried_out = _compact(model, plan, inputs, certified=certified)
    if not has_gates(model) and not carried_out.narrowings and not carried_out.branches:
        logger.warning(
            "nothing is cut from %s: of no channel, head or residual branch are all weights that "
            "read it exactly zero (al.inspect lists what could go)",
            type(model).__name__,
        )
    if container is not None and container.budget:
        _warn_of_missed_budget(container.budget, carried_out, inputs)
    return small


def _compact(
    model: nn.Module, plan: Plan | None, inputs: ExampleInputs, *, certified: bool
) -> tuple[nn.Module, Plan]:
    """Return the compact model, and what was done."""
    modes = modes_of(model)
    with evaluating(model):
        traced, decision = read_decision(model, inputs)
        check_slopes(model, decision.linear)
        written = write_plan(traced, decision, plan.pay if plan else "parameters")
        if plan is not None and plan != written:
            parts = ("widths", "linear", "merges", "branches")
            names = [name for name in parts if getattr(plan, name) != getattr(written, name)]
            raise SurgeryError(
                f"the plan does not fit the model: its {', '.join(names) or 'sizes'} are not what "
                f"the {'gates say' if traced is model else 'weights say'} now; make the plan anew "
                "with archlearn.plan"
            )
        small = _make((model, traced), decision, written, inputs, certified=certified)
    set_modes_(small, modes)
    return small, written


def _warn_of_missed_budget(budget: dict[str, float], plan: Plan, inputs: ExampleInputs) -> None:
    """Say when the network costs more than a `GateOptimizer` was told it may."""
    for name, limit in budget.items():
        cost = getattr(plan.after, name, 0)  # a latency is in no plan
        if cost > limit:
            n_rows = unit_of(name, count_examples(inputs))
            logger.warning(
                "a budget of %s %s was asked for, but the compact model has %s; call gates.step() "
                "total_steps times, or gates.finish() before compact where a run ends earlier; "
                "where gates stood still when their state was loaded, for another budget, leave it "
                "out and decide anew",
                f"{limit / n_rows:,.0f}",
                name,
                f"{cost / n_rows:,.0f}",
            )


def _make(
    models: tuple[nn.Module, nn.Module],
    decision: Decision,
    plan: Plan,
    inputs: ExampleInputs,
    *,
    certified: bool,
) -> nn.Module:
    """Return the compact model with its `forward`, its certificate and its example.

    It is made from the second model, and compared with the first.
    """
    model, traced = models
    small, graphs, changed = apply_plan(traced, decision, plan)
    doubles = cast_(small, {name: tensor.dtype for name, tensor in tensors_of(model)})
    traces = decision.learnable.channel_graph.traces
    names = {name for name, _ in small.named_modules(remove_duplicate=False)}
    left = (tuple(call for call in calls if call.path in names) for calls in traces.blocks)
    traces = replace(traces, graphs=tuple(graphs), blocks=tuple(left))
    comparison = Comparison((model, small), doubles, inputs, is_derived=True)
    certificate = _finish_(small, comparison, traces, changed, certified=certified)
    setattr(small, CERTIFICATE, certificate)
    setattr(small, EXAMPLE, inputs)
    setattr(small, KEPT, plan.kept(getattr(small, KEPT, None)))
    return small


def apply_plan(
    gated: nn.Module, decision: Decision, plan: Plan
) -> tuple[nn.Module, list[fx.Graph], bool]:
    """Return the compact model, its graphs, and whether they changed.

    What surgery computes is in double precision still.
    """
    channel_graph = decision.learnable.channel_graph
    with preserve_state(gated):
        shifts = find_shifts(gated, plan, place_inputs(gated, channel_graph.inputs))
    small = _copy_narrowed(gated, plan)
    copies = [
        copy_with_marks(channel_graph.traces, index) for index in range(len(channel_graph.graphs))
    ]
    for index, (graph, nodes) in enumerate(copies):
        leave_out_branches_(graph, nodes, decision.learnable, decision.closed, index)
    rewriters = [
        Rewriter(small, channel_graph, index, decision.dropped, graph, nodes)
        for index, (graph, nodes) in enumerate(copies)
    ]
    done: set[str] = set()
    for rewriter in rewriters:
        rewriter.run()
        rewriter.narrow_special(done)
    update_sizes_(small)
    scale_rms_norms_(small, decision.growths)
    shift_biases_(small, shifts, plan.narrowings)
    graphs = [rewriter.graph for rewriter in rewriters]
    merged = apply_merges_(small, plan, decision.learnable, graphs)
    remove_tensors_(small, plan.removed, graphs)
    container = find_container(gated)
    was_bound = container.was_bound if container is not None else is_bound(gated)
    changed = (
        was_bound
        or bool(plan.branches)
        or merged
        or any(rewriter.changed for rewriter in rewriters)
    )
    # The user's own forward would go on where the gated model refuses: on branches never followed.
    changed = changed or any(node.target in CHECKS for g in graphs for node in g.nodes)
    return small, graphs, changed


def _copy_narrowed(gated: nn.Module, plan: Plan) -> nn.Module:
    """Return a copy without the gates and all that the plan drops.

    Layers whose numbers surgery will compute with are in double precision.
    """
    computed = computed_tensors(gated, plan)
    if computed:
        with exchanging(to_float64(gated)):
            gated = copy_model(gated)
        for name in dict.fromkeys(name.rpartition(".")[0] for name in computed):
            make_plain_(find_module(gated, name))
    memo = narrowed_tensors(gated, plan.narrowings)
    small = copy_model(gated, memo | {id(getattr(gated, CONTAINER, None)): None})
    merged = [name for m in plan.merges if m.made for name in (*m.layers, *m.norms)]
    for name in [*merged, *[fold.layer for fold in plan.folds]]:
        for tensor, wide in to_float64(find_module(small, name)).items():
            tensor.data = wide
    small.__class__ = user_class(small)
    remove_container_(small)
    return small


def _finish_(
    small: nn.Module, comparison: Comparison, traces: Traces, changed: bool, *, certified: bool
) -> Certificate | None:
    """Give the compact model its `forward`; return its certificate, if it is to have one.

    A graph is right by its construction; the user's own `forward` serves where it does the same.
    """
    if changed and not certified:
        try_graph(small, traces, comparison.inputs)
    is_own = not changed and forward_matches_graph(small, traces, comparison.inputs)
    certificate = None
    if is_own and certified:
        with suppress(Exception):  # whatever the user's own forward does on narrowed layers
            certificate = comparison.certify()
    if not is_own or (certified and certificate is None):
        methods = methods_of_bound(small)
        bind_graphs_(small, traces.graphs, "Compact", traces.all_blocks, **methods)
        certificate = _certify_bound(comparison) if certified else None
    return certificate


def _certify_bound(comparison: Comparison) -> Certificate:
    try:
        return comparison.certify()
    except ArchlearnError:
        raise
    except Exception as error:
        advice = "mark the part that fails in leaves=[...] of add_gates, and report the model"
        if "Double" in str(error):
            advice = (
                "use an operation that takes float64 (for experts of transformers: "
                "set_experts_implementation('eager') before add_gates), or compact the model with "
                "certified=False"
            )
        raise SurgeryError(
            "the compact model cannot be certified, for it or the gated one does not run on the "
            f"example inputs in float64 or in its own precision: {first_line(error)}; {advice}"
        ) from error
