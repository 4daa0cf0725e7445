"""Operations that a file may call; others are neither written nor read."""

from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from archlearn.errors import FileError
from archlearn.nn.functional import linear_by_columns
from archlearn.op_table import OPERATIONS, saved_calls
from archlearn.tracing.example_inputs import (
    check_argument,
    check_given,
    check_keywords,
    check_kind,
    ones_if_left_out,
)

Operation = Callable[..., Any]

METHODS = frozenset(call.removeprefix("Tensor.") for call in saved_calls("Tensor"))

ATTRIBUTES = frozenset({
    "shape", "dtype", "device", "ndim", "T", "mT", "is_cuda", "is_nested", "requires_grad",
    "values", "indices", "min", "max", "eps", "tiny",
})  # fmt: skip


MODEL_OUTPUTS = "transformers.modeling_outputs"
"""The one module besides torch and torchvision whose classes a file may name: plain records."""


def name_operation(target: object) -> str:
    """Return the name under which a function of the graph is written.

    Raises:
        FileError: If the function is not on the list.
    """
    home = str(getattr(target, "__module__", None))
    listed = torchvision_operations() if home.startswith("torchvision.") else all_operations()
    for name, operation in listed.items():
        if operation is target:
            return name
    label = getattr(target, "__qualname__", repr(target))
    raise FileError(
        f"the model calls {home}.{label}, which is not an operation that a file may name; put the "
        "call into a submodule, mark that as a leaf and pass its class in modules={'name': Class}"
    )


def find_operation(name: object) -> Operation:
    """Return the function that a file names.

    Raises:
        FileError: If the name is not on the list.
    """
    if name in torchvision_names():  # whatever else a file names, nothing is imported for it
        listed, hint = torchvision_operations(), "; it may be there once torchvision is installed"
    else:
        listed, hint = all_operations(), ""
    if isinstance(name, str) and name in listed:
        return listed[name]
    raise FileError(
        f"it calls {str(name)[:80]!r}, which is not an operation that a file may name{hint}"
    )


@cache
def all_operations() -> dict[str, Operation]:
    """Return every function that a file may name, by the name it has there."""
    listed: dict[str, Operation] = {
        "getattr": getattr,
        "collections.OrderedDict": OrderedDict,
        "archlearn.check_argument": check_argument,
        "archlearn.check_kind": check_kind,
        "archlearn.check_given": check_given,
        "archlearn.check_keywords": check_keywords,
        "archlearn.ones_if_left_out": ones_if_left_out,
        "archlearn.linear_by_columns": linear_by_columns,
    }
    return listed | saved_calls("operator", "math", "F", "torch", "torch.linalg")


@cache
def torchvision_names() -> list[str]:
    """Return the functions that torchvision marks as leaves of a trace."""
    calls = [call for spec in OPERATIONS for call in spec.calls]
    return [call for call in calls if call.startswith("torchvision.")]


def torchvision_operations() -> dict[str, Operation]:
    """Return torchvision's functions, if it can be imported; it is only when one is met."""
    listed: dict[str, Operation] = {}
    for call in torchvision_names():
        home, _, name = call.rpartition(".")
        try:
            listed[call] = getattr(import_module(home), name)
        except (ImportError, RuntimeError, AttributeError):  # RuntimeError: built for another torch
            continue
    return listed
