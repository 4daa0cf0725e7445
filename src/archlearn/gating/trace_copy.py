"""The calls of a copy are followed, and seen to be what the model itself does."""

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from archlearn.analysis.trace_check import rehearse
from archlearn.errors import ArchlearnError, TracingError
from archlearn.gating.learn import Learn
from archlearn.gating.selection import Choice, choose
from archlearn.module_copies import copy_model
from archlearn.tracing.binding import is_bound, without_graph_module
from archlearn.tracing.huggingface import disable_caches_, with_attention_mask
from archlearn.tracing.independence import noticing_calls
from archlearn.tracing.instance_forward import remove_wrapper_
from archlearn.tracing.rng import putting_back
from archlearn.tracing.trace_context import frozen
from archlearn.tracing.traces import ExampleInputs, Leaf
from archlearn.tracing.transformer_blocks import BLOCKS, has_blocks
from archlearn.tracing.weight_state import put_weights_back_

# Shares of the parameters from which on a part is named, and from which on anything is said.
_WORTH_NAMING, _WORTH_SAYING = 0.1, 0.2
_log = logging.getLogger(__name__)


def follow_copy(
    net: nn.Module,
    inputs: ExampleInputs,
    learn: Mapping[str, Learn] | None,
    leaves: tuple[Leaf, ...] = (),
    *,
    must_learn: bool = True,
) -> tuple[nn.Module, Choice]:
    """Return a copy, and what is learnt in it; torch's own blocks are followed where they can be.

    Their fused kernel may compute something else than their layers, and so may a subclass.

    Raises:
        InputError: As `choose` does, or if the model does not run on the inputs.
        TracingError: If its calls cannot be followed.
    """
    inputs = with_attention_mask(net, inputs)
    try:
        copied, choice = _rehearse_with_blocks(net, inputs, learn, leaves, must_learn=must_learn)
    except TracingError as error:
        parts = _find_learnable_parts(net, inputs)
        raise TracingError(f"{error}{_advise(parts)}") from error.__cause__
    for name, why in choice.blueprint.traces.opaque.items():
        if has_blocks(copied.get_submodule(name)):
            _log.warning("%s was not looked into: %s", name, why)
    return copied, choice


def _rehearse_with_blocks(
    net: nn.Module,
    inputs: ExampleInputs,
    learn: Mapping[str, Learn] | None,
    leaves: tuple[Leaf, ...],
    *,
    must_learn: bool,
) -> tuple[nn.Module, Choice]:
    try:
        return _rehearse(net, inputs, learn, leaves, must_learn=must_learn)
    except TracingError:
        if not has_blocks(net):
            raise
        return _rehearse(net, inputs, learn, (*leaves, *BLOCKS), must_learn=must_learn)


def _rehearse(
    net: nn.Module,
    inputs: ExampleInputs,
    learn: Mapping[str, Learn] | None,
    leaves: tuple[Leaf, ...],
    *,
    must_learn: bool,
) -> tuple[nn.Module, Choice]:
    copied = copy_model(without_graph_module(net))
    for module in copied.modules():
        remove_wrapper_(module)
    disable_caches_(copied)
    choice = choose(copied, inputs, learn, leaves, must_learn=must_learn)
    if not is_bound(net):
        with noticing_calls(net) as called:
            rehearse(copied, choice.blueprint.traces, choice.blueprint.inputs)
        if called:
            raise TracingError(
                f"a copy of {type(net).__name__} still calls {called[0]!r} of the model itself: "
                "something that is not copied holds it, such as a lambda or a hook made from it; "
                "let that use the module that it is called with (self), or remove it"
            )
        put_weights_back_(copied, net, choice.blueprint.traces)
    return copied, choice


def _find_learnable_parts(net: nn.Module, inputs: ExampleInputs) -> list[tuple[str, ExampleInputs]]:
    """Return large submodules that can be learnt on their own, with the inputs that they get.

    None is part of another; together they hold a good share of the parameters, or there are none.
    """
    n_all = _count(net)
    calls = _watch_calls(net, inputs)
    found: list[tuple[str, ExampleInputs]] = []
    for name in sorted(calls, key=lambda name: -_count(net.get_submodule(name))):
        part = net.get_submodule(name)
        is_inside = any(name.startswith(f"{outer}.") for outer, _ in found)
        if _count(part) < _WORTH_NAMING * n_all or is_inside or _shares_weights(net, name):
            continue
        with contextlib.suppress(ArchlearnError):
            _rehearse_with_blocks(part, calls[name], None, (), must_learn=True)
            found.append((name, calls[name]))
    n_found = sum(_count(net.get_submodule(name)) for name, _ in found)
    return found if n_found >= _WORTH_SAYING * n_all else []


def _watch_calls(net: nn.Module, inputs: ExampleInputs) -> dict[str, ExampleInputs]:
    """Return how each submodule is called when the model runs, where it gets tensors only."""
    watched, calls = copy_model(net).eval(), dict[str, ExampleInputs]()

    def note(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        is_of_tensors = all(isinstance(leaf, Tensor) for leaf in tree_leaves((args, kwargs)))
        if is_of_tensors and not (args and kwargs):
            calls.setdefault(name, ExampleInputs(args, kwargs).copy())

    for name, module in watched.named_modules():
        if name:
            module.register_forward_pre_hook(
                lambda _, args, kwargs, name=name: note(name, args, kwargs), with_kwargs=True
            )
    given = inputs.copy()
    with putting_back(inputs), frozen(watched), torch.no_grad(), contextlib.suppress(Exception):
        watched(*given.args, **given.kwargs)  # what it called before an error counts, too
    return calls


def _shares_weights(net: nn.Module, name: str) -> bool:
    """Return whether a part's weights are also those of a module outside it."""
    own = set(net.get_submodule(name).modules())
    outside = {p for m in net.modules() if m not in own for p in m.parameters(recurse=False)}
    names = [each for each, module in net.named_modules(remove_duplicate=False) if module in own]
    is_elsewhere = any(each != name and not each.startswith(f"{name}.") for each in names)
    return is_elsewhere or any(p in outside for p in net.get_submodule(name).parameters())


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _advise(parts: list[tuple[str, ExampleInputs]]) -> str:
    """Return how parts are learnt on their own, as text for the end of an error."""
    said: list[str] = []
    for name, inputs in parts:
        path = "model" + "".join(f"[{k}]" if k.isdigit() else f".{k}" for k in name.split("."))
        given = tree_map(lambda x: tuple(x.shape), inputs.kwargs or inputs.args)
        if len(inputs.args) == 1 and isinstance(inputs.args[0], Tensor) and not inputs.kwargs:
            x = f"x of shape {given[0]}"
        else:
            x = f"x = {given}, a tensor in place of each shape,"
        said.append(
            f"{name!r} by `{path} = al.add_gates({path}, x)` with {x} and, when it is trained, "
            f"`{path} = al.compact({path})`"
        )
    return ". Or learn a part on its own: " + "; ".join(said) if said else ""
