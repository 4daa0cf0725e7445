"""What a user asks for is looked at before anything is done."""

import difflib
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from archlearn.errors import LARGEST, InputError, lies_in, with_article
from archlearn.gating.container import find_store
from archlearn.nn.tristate import TriState
from archlearn.tracing.binding import unwrap
from archlearn.tracing.instance_forward import check_forwards
from archlearn.tracing.traces import ExampleInputs, Leaf


def check_net(net: Any) -> None:
    """Raise if gates cannot be put on this.

    Raises:
        InputError: If it is no module, is wrapped, or has gates.
    """
    if not isinstance(net, nn.Module):
        raise InputError(
            f"net is {with_article(type(net).__name__)}; give an nn.Module, made already"
        )
    if unwrap(net) is not net:
        raise InputError(
            f"the model is wrapped in {with_article(type(net).__name__)}; give the model as it was "
            "before torch.compile or DDP, and wrap the gated copy"
        )
    check_forwards(net, "add_gates", may_be_wrapped=False)
    if find_store(net) is not None or any(isinstance(m, TriState) for m in net.modules()):
        raise InputError("the model has gates already; call add_gates on the model without them")


def check_starts(width_start: Any, depth_start: Any) -> None:
    """Raise if gates cannot start there."""
    for name, start in (("width_start", width_start), ("depth_start", depth_start)):
        if not lies_in(start, 0, 1):
            raise InputError(f"{name} is {start!r}; a gate lies in [0, 1]")


def check_learn(learn: Any) -> None:
    """Raise if this says of no layer what is to be learnt there."""
    if learn is not None and not isinstance(learn, Mapping):
        raise InputError(
            f"learn is {with_article(type(learn).__name__)}; give a dict from layer names to "
            'Learn, such as {"fc*": Learn.WIDTH}'
        )
    for key in learn or ():
        if not isinstance(key, str):
            raise InputError(f"learn has the key {key!r}; layers are named by strings")


def check_leaves(net: nn.Module, leaves: Any) -> tuple[Leaf, ...]:
    """Return the leaves as a tuple.

    Raises:
        InputError: If one is no submodule, neither by name nor by class.
    """
    if leaves is None or isinstance(leaves, str | type):
        raise InputError(
            f"leaves is {leaves!r}; give a list of names and classes"
            + ("" if leaves is None else f": [{leaves!r}]")
        )
    found = tuple(leaves)
    names = [name for name, _ in net.named_modules() if name]
    for leaf in found:
        if isinstance(leaf, str):
            known, label = leaf in names, repr(leaf)
        elif isinstance(leaf, type):
            known, label = any(isinstance(m, leaf) for m in net.modules()), leaf.__name__
        else:
            raise InputError(
                f"leaves holds {leaf!r}; give names of submodules or classes of modules"
            )
        if not known:
            close = difflib.get_close_matches(str(leaf), names, n=3)
            hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise InputError(
                f"leaves holds {label}, but {type(net).__name__} has no such submodule{hint}"
            )
    return found


def check_rows(inputs: ExampleInputs) -> ExampleInputs:
    """Return example inputs, unless there is nothing in them to look at."""
    for leaf in tree_leaves((inputs.args, inputs.kwargs)):
        if isinstance(leaf, Tensor) and not leaf.numel():
            raise InputError(
                f"example_inputs hold a tensor of shape {tuple(leaf.shape)}, without a number; "
                "give at least one example"
            )
    return inputs


def check_rates(**rates: Any) -> None:
    """Raise if a rate is no number from 0 on; None is left out."""
    for name, rate in rates.items():
        if rate is not None and not lies_in(rate, 0, LARGEST):
            raise InputError(f"{name} is {rate!r}; a rate is a number from 0 on")
