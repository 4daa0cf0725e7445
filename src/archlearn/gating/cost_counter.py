"""`count_costs`: count the parameters of a model, and the multiply-adds of a run of it."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from archlearn.costs import Costs
from archlearn.errors import ArchlearnError, InputError, first_line
from archlearn.gating.gate_container import GateContainer, find_container
from archlearn.module_utils import check_made, evaluating, find_reference
from archlearn.nn.norms import LocalResponse, NarrowedLocalResponseNorm
from archlearn.nn.tristate_activation import TriState
from archlearn.tracing.generated_forward import class_forwards, unwrap
from archlearn.tracing.module_state import preserve_state
from archlearn.tracing.symbolic_trace import ExampleInputs
from archlearn.tracing.trace_context import frozen
from archlearn.tracing.transformer_blocks import count_flops

EXAMPLE = "_archlearn_example"


def count_costs(model: nn.Module, example_inputs: object = None) -> Costs:
    """Return the costs of a model as it stands; gates are not counted.

    Multiply-adds are those of linear layers, convolutions, matrix products and attention; how
    norms are computed does not count.

    Args:
        model: Any model.
        example_inputs: Arguments for one call; a gated or compact model knows its own.
    """
    model = unwrap(model)
    check_made(model)
    inputs = known_inputs(model, example_inputs)
    with class_forwards(model):
        return Costs.of(count_parameters(model), count_multiply_adds(model, inputs))


def count_layer_costs(model: nn.Module, example_inputs: object = None) -> dict[str, Costs]:
    """Return the costs of each layer that has parameters of its own, by its name.

    What a layer computes in layers inside of it is theirs.

    Args:
        model: Any model without gates.
        example_inputs: Arguments for one call; a compact model knows its own.
    """
    inputs = known_inputs(model, example_inputs)
    with class_forwards(model):
        counts = _count_flops(model, inputs).get_flop_counts()
    costs: dict[str, tuple[int, int]] = {}
    seen: set[nn.Parameter] = set()
    for name, layer in reversed(list(model.named_modules())):  # what is inside comes first
        parameters = set(layer.parameters(recurse=False)) - seen
        seen |= parameters
        if parameters:
            flops = sum(counts.get(f"{type(model).__name__}.{name}".rstrip("."), {}).values())
            inside = [n for inner, (_, n) in costs.items() if inner.startswith(name and f"{name}.")]
            n_own = sum(parameter.numel() for parameter in parameters)
            costs[name] = n_own, int(flops) // 2 - sum(inside)
    return {name: Costs.of(*counts) for name, counts in reversed(costs.items())}


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters, each counted once and gates not at all."""
    gates = {
        id(gate)
        for module in model.modules()
        if isinstance(module, GateContainer | TriState)
        for name, gate in module.named_parameters()
        if not name.startswith("activation")
    }
    return sum(p.numel() for p in model.parameters() if id(p) not in gates)


def count_multiply_adds(model: nn.Module, inputs: ExampleInputs) -> int:
    """Return the multiply-adds of one run in evaluation mode."""
    counter = _count_flops(model, inputs)
    return (int(counter.get_total_flops()) - _flops_of_norms(model, counter)) // 2


def _count_flops(model: nn.Module, inputs: ExampleInputs) -> Any:
    """Return the counter of one run in evaluation mode."""
    with ExitStack() as stack:
        for context in (evaluating(model), preserve_state(model), frozen(model), torch.no_grad()):
            stack.enter_context(context)
        counter = stack.enter_context(count_flops())
        try:
            model(*inputs.args, **inputs.kwargs)
        except ArchlearnError:
            raise
        except Exception as error:
            raise InputError(
                f"{type(model).__name__} does not run on the example inputs: {first_line(error)}; "
                "give them as one call of the model takes them"
            ) from error
    return counter


def _flops_of_norms(model: nn.Module, counter: FlopCounterMode) -> int:
    counts = counter.get_flop_counts()
    names = [
        f"{type(model).__name__}.{name}".rstrip(".")
        for name, module in model.named_modules()
        if isinstance(module, LocalResponse | NarrowedLocalResponseNorm)
    ]
    return sum(sum(counts[name].values()) for name in names if name in counts)


def known_inputs(model: nn.Module, example_inputs: object = None) -> ExampleInputs:
    """Return the given inputs, or those that the model was gated or compacted with."""
    if example_inputs is not None:
        return ExampleInputs.of(example_inputs)
    container = find_container(model)
    inputs = getattr(model, EXAMPLE, None)
    if container is not None:
        inputs = container.channel_graph.inputs
    if inputs is None:
        raise InputError(
            f"{type(model).__name__} does not know its inputs; give example_inputs, as one call "
            "of the model takes them"
        )
    return place_inputs(model, inputs)


def place_inputs(model: nn.Module, inputs: ExampleInputs) -> ExampleInputs:
    """Return inputs on the model's device, floating ones in its dtype."""
    reference = find_reference(model)
    if reference is None:
        return inputs
    moved = inputs.to(reference.device)
    if not reference.is_floating_point():
        return moved
    return moved.to(reference.dtype, floating_only=True)
