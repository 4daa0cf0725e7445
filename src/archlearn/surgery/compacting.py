"""A plan is carried out on a copy; the result must compute what the gated model computes."""

import math
from typing import Any

import torch
from torch import Tensor, fx, nn

from archlearn.binding import bind_graphs_, is_bound, unwrap, user_class
from archlearn.certificates import Certificate, Comparison
from archlearn.copies import copy_model
from archlearn.costs import EXAMPLE, known_inputs, place_inputs
from archlearn.errors import ArchlearnError, InputError, SurgeryError, first_line
from archlearn.graphs.inputs import CHECKS
from archlearn.graphs.lookups import find_module
from archlearn.graphs.tracing import ExampleInputs
from archlearn.inserting import copy_graph
from archlearn.modes import evaluating
from archlearn.precision import exchanging, tensors_of, widen
from archlearn.scaling import fold_scales
from archlearn.stores import STORE, find_store, remove_store_
from archlearn.surgery.carrying import Carrier
from archlearn.surgery.deciding import Decision, decide
from archlearn.surgery.narrowing import (
    make_plain_,
    narrowed_tensors,
    read_shifts,
    shift_biases_,
    update_sizes_,
)
from archlearn.surgery.planning import computed_tensors, write_plan
from archlearn.surgery.plans import Plan
from archlearn.surgery.rewriting import Rewriter

CERTIFICATE = "certificate"


@torch.inference_mode(False)
def compact(model: nn.Module, plan: Plan | None = None, example_inputs: object = None) -> nn.Module:
    """Return the plain, smaller model that computes what `model` computes.

    It is of the user's own class, in evaluation or training mode as `model` is, and has its
    `certificate` as an attribute. `model` is not changed.

    Args:
        model: A model with gates.
        plan: What to do; left out, what the gates say.
        example_inputs: Needed only where gates were placed by hand.

    Raises:
        GateError: If a gate is not a number in [0, 1].
        SurgeryError: If the plan does not fit the model, or would not be exact.
        CertificateError: If the result differs from the model.
    """
    model = unwrap(model)
    if plan is not None and not isinstance(plan, Plan):  # pyright: ignore
        raise InputError(
            f"plan is a {type(plan).__name__}; give a Plan from archlearn.plan(model), and "
            "example inputs as example_inputs=..."
        )
    inputs = known_inputs(model, example_inputs)
    store = find_store(model)
    if store is not None and store.kind != "binary":
        return _compact_scaled(model, plan, inputs)
    training = model.training
    with evaluating(model):
        decision = decide(model, inputs)
        made = write_plan(model, decision, plan.pay if plan else "parameters")
        if plan is not None and plan != made:
            raise SurgeryError(_difference(plan, made))
        small, graphs, changed = _carry_out(model, decision, made)
        dtypes = {name: tensor.dtype for name, tensor in tensors_of(model)}
        doubles = _cast_(small, dtypes)
        shrink = decision.choice.blueprint.followed[0].shrink
        comparison = Comparison((model, small), doubles, inputs, shrink, is_derived=True)
        _finish_(small, comparison, graphs, changed)
    return small.train(training)


def _compact_scaled(model: nn.Module, plan: Plan | None, inputs: ExampleInputs) -> nn.Module:
    """Return the compact model of one with real gates: they go into the weights first."""
    small = compact(fold_scales(copy_model(model).double()), plan)
    doubles = _cast_(small, {name: t.dtype for name, t in tensors_of(model)})
    with evaluating(model, small):
        comparison = Comparison((model, small), doubles, inputs, math.inf, is_derived=True)
        setattr(small, CERTIFICATE, comparison.certify())
    setattr(small, EXAMPLE, inputs)
    return small


def _carry_out(
    gated: nn.Module, decision: Decision, plan: Plan
) -> tuple[nn.Module, list[fx.Graph], bool]:
    """Return the compact model in double precision, its graphs, and whether they changed."""
    blueprint = decision.choice.blueprint
    shifts = _find_shifts(gated, plan, place_inputs(gated, blueprint.inputs))
    small = _copy_narrowed(gated, plan)
    rewriters = [
        Rewriter(small, blueprint, place, decision.dropped, *copy_graph(graph))
        for place, graph in enumerate(blueprint.graphs)
    ]
    done: set[str] = set()
    for rewriter in rewriters:
        rewriter.run()
        rewriter.narrow_special(done)
    update_sizes_(small)
    shift_biases_(small, shifts, plan.narrowings)
    carrier = Carrier(small, plan, decision.choice, [rewriter.graph for rewriter in rewriters])
    carrier.run()
    store = find_store(gated)
    was_bound = store.was_bound if store is not None else is_bound(gated)
    changed = was_bound or carrier.changed or any(rewriter.changed for rewriter in rewriters)
    # The user's own forward would go on where the gated model refuses: on branches never followed.
    changed = changed or any(node.target in CHECKS for g in carrier.graphs for node in g.nodes)
    return small, carrier.graphs, changed


def _find_shifts(gated: nn.Module, plan: Plan, inputs: ExampleInputs) -> dict[str, Tensor]:
    """Return in double precision what constants of dropped channels add to biases."""
    if not plan.folds:
        return {}
    with exchanging(widen(gated)):
        wide = inputs.to(torch.float64, floating_only=True)
        return read_shifts(gated, plan.folds, _read_constants(gated, plan, wide))


def _copy_narrowed(gated: nn.Module, plan: Plan) -> nn.Module:
    """Return a copy in double precision without the gates and all that the plan drops."""
    computed = computed_tensors(gated, plan)
    if computed:
        with exchanging(widen(gated)):
            gated = copy_model(gated)
        make_plain_(gated, computed)
    memo = narrowed_tensors(gated, plan.narrowings)
    small = copy_model(gated, memo | {id(getattr(gated, STORE, None)): None})
    for tensor, wide in widen(small).items():
        tensor.data = wide
    small.__class__ = user_class(small)
    remove_store_(small)
    return small


def _finish_(
    small: nn.Module, comparison: Comparison, graphs: list[fx.Graph], changed: bool
) -> None:
    """Give the compact model its `forward` and its certificate.

    The user's own `forward` serves wherever it computes the same; else a generated one does.
    """
    certificate = None if changed else _certify_own(comparison)
    if certificate is None:
        bind_graphs_(small, graphs, "Compact")
        certificate = _certify_bound(comparison)
    setattr(small, CERTIFICATE, certificate)
    setattr(small, EXAMPLE, comparison.inputs)


def _certify_bound(comparison: Comparison) -> Certificate:
    try:
        return comparison.certify()
    except ArchlearnError:
        raise
    except Exception as error:
        raise SurgeryError(
            "the compact model cannot be certified, for it or the gated one does not run on the "
            f"example inputs in float64 or in its own precision: {first_line(error)}; mark the "
            "part that fails in leaves=[...] of add_gates, and report the model"
        ) from error


def _certify_own(comparison: Comparison) -> Certificate | None:
    try:
        return comparison.certify()
    except Exception:  # whatever the user's own forward does on narrowed layers
        return None


def _cast_(net: nn.Module, dtypes: dict[str, torch.dtype]) -> dict[Tensor, Tensor]:
    """Give a model its own precision back; return the numbers that it had in double."""
    default = next(iter(dtypes.values()))
    doubles: dict[Tensor, Tensor] = {}
    for name, tensor in tensors_of(net):
        dtype = dtypes.get(name, default)
        if tensor.is_floating_point() and tensor.dtype is not dtype:
            doubles[tensor] = tensor.data
            tensor.data = tensor.data.to(dtype)
    return doubles


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


def _difference(asked: Plan, found: Plan) -> str:
    parts = ("widths", "linear", "merges")
    names = [name for name in parts if getattr(asked, name) != getattr(found, name)]
    return (
        f"the plan does not fit the model: its {', '.join(names) or 'sizes'} are not what the "
        "gates say now; make the plan anew with archlearn.plan(model)"
    )
