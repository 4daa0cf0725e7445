"""A plan is carried out on a copy; the result must compute what the gated model computes."""

import copy
from typing import Any

import torch
from torch import Tensor, fx, nn

from archlearn.binding import bind_graphs_, is_bound, unwrap, user_class
from archlearn.certificates import compare
from archlearn.costs import EXAMPLE, known_inputs
from archlearn.errors import InputError, SurgeryError
from archlearn.graphs.tracing import ExampleInputs
from archlearn.inserting import copy_graph
from archlearn.modes import evaluating
from archlearn.stores import STORE, find_store
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
    training = model.training
    with evaluating(model):
        decision = decide(model, inputs)
        made = write_plan(model, decision, plan.pay if plan else "parameters")
        if plan is not None and plan != made:
            raise SurgeryError(_difference(plan, made))
        gated = copy_double(model)
        wide = inputs.to(torch.float64, floating_only=True)
        small, graphs, changed = _carry_out(gated, made, decision, wide)
        dtypes = {name: tensor.dtype for name, tensor in _tensors(model)}
        small = _finish(model, gated, small, graphs, changed, dtypes, inputs)
    return small.train(training)


def copy_double(model: nn.Module) -> nn.Module:
    """Return a copy in double precision, made in one pass."""
    return copy.deepcopy(model, {id(t): _double(t) for _, t in _tensors(model)})


def _double(tensor: Tensor) -> Tensor:
    wide = tensor.detach().double() if tensor.is_floating_point() else tensor.detach().clone()
    is_parameter = isinstance(tensor, nn.Parameter)
    return nn.Parameter(wide, tensor.requires_grad) if is_parameter else wide


def _carry_out(
    gated: nn.Module, plan: Plan, decision: Decision, inputs: ExampleInputs
) -> tuple[nn.Module, list[fx.Graph], bool]:
    blueprint = decision.choice.blueprint
    shifts = read_shifts(gated, plan.folds, _read_constants(gated, plan, inputs))
    source = gated
    computed = computed_tensors(gated, plan)
    if computed:
        source = copy.deepcopy(gated)
        make_plain_(source, computed)
    small = copy.deepcopy(source, narrowed_tensors(source, plan.narrowings))
    small.__class__ = user_class(small)
    if hasattr(small, STORE):
        delattr(small, STORE)
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
    return small, carrier.graphs, changed


def _finish(
    model: nn.Module,
    gated: nn.Module,
    small: nn.Module,
    graphs: list[fx.Graph],
    changed: bool,
    dtypes: dict[str, torch.dtype],
    inputs: ExampleInputs,
) -> nn.Module:
    """Return the compact model in its own precision, with its certificate.

    The user's own `forward` serves wherever it computes the same; else a generated one does.
    """
    for use_own in [False] if changed else [True, False]:
        if not use_own:
            bind_graphs_(small, graphs, "Compact")
        own: Any = _cast(copy.deepcopy(small), dtypes)
        try:
            certificate = compare((model, own), (gated, small), inputs)
        except Exception:
            if use_own:
                continue
            raise
        own.certificate = certificate
        setattr(own, EXAMPLE, inputs)
        return own
    raise AssertionError("unreachable")


def _cast(net: nn.Module, dtypes: dict[str, torch.dtype]) -> nn.Module:
    default = next(iter(dtypes.values()))
    for name, tensor in _tensors(net):
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtypes.get(name, default))
    return net


def _tensors(net: nn.Module) -> list[tuple[str, Tensor]]:
    return [*net.named_parameters(), *net.named_buffers()]


def _read_constants(gated: nn.Module, plan: Plan, inputs: ExampleInputs) -> dict[str, Tensor]:
    """Return what each folding layer reads, one number a channel."""
    found: dict[str, Tensor] = {}
    handles: list[Any] = []
    for fold in plan.folds:

        def note(module: Any, args: tuple[Tensor, ...], layer: str = fold.layer) -> None:
            n_space = module.weight.dim() - 2
            lines = args[0].detach().movedim(-1 - n_space, -1)
            found[layer] = lines.reshape(-1, lines.shape[-1])[0]

        handles.append(gated.get_submodule(fold.layer).register_forward_pre_hook(note))
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
