"""Types of outputs: dict subclasses, dataclasses and named tuples stay what they are.

torch.fx makes a plain dict of every mapping. Here the class is called again on the parts, which
is how transformers' and diffusers' `ModelOutput` keep their attributes.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any

from torch import Tensor

Construction = tuple[type, tuple[Any, ...], dict[str, Any]]


def construction_of(value: Any) -> Construction | None:
    """Return the call that makes a container of the same class, or None for plain ones."""
    kind: Any = type(value)
    if kind in (dict, list, tuple) or isinstance(value, type) or _is_of_torch(kind):
        return None
    if is_dataclass(type(value)):
        values = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        return kind, (), values
    if isinstance(value, dict):
        # A default factory is a function, which a graph cannot hold.
        first = (None,) if isinstance(value, defaultdict) else ()
        return _checked(kind, (*first, dict(value)), len(value))
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return kind, tuple(value), {}
    if isinstance(value, tuple | list):
        return _checked(kind, (list(value),), len(value))
    return (kind, (), dict(vars(value))) if kind is SimpleNamespace else None


def _checked(kind: Any, args: tuple[Any, ...], n_parts: int) -> Construction:
    try:
        is_right = len(kind(*args)) == n_parts
    except Exception:  # whatever a constructor of the user's makes of it
        is_right = False
    if not is_right:
        plain = type(args[-1]).__name__
        raise TypeError(
            f"{kind.__name__} cannot be made again as {kind.__name__}({plain}); return a {plain}, "
            "a dataclass or a named tuple"
        )
    return kind, args, {}


def is_construction(target: object) -> bool:
    """Return whether a call makes a container of a class that is no plain dict, list or tuple."""
    if not isinstance(target, type) or target.__module__ == "builtins" or _is_of_torch(target):
        return False
    return is_dataclass(target) or issubclass(target, dict | list | tuple | SimpleNamespace)


def parts_of(value: Any) -> list[tuple[Any, Any]] | None:
    """Return the keys and parts of a container, or None if it is none."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple | list):
        return list(enumerate(value))
    if isinstance(value, SimpleNamespace):
        return list(vars(value).items())
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    return None


def tensors_in(value: Any) -> list[Tensor]:
    """Return all tensors of an output, however they are nested."""
    if isinstance(value, Tensor):
        return [value]
    return [tensor for _, part in parts_of(value) or () for tensor in tensors_in(part)]


def structure_of(value: Any) -> Any:
    """Return the classes and keys of an output; for tensors, only that they are some."""
    if isinstance(value, Tensor):
        return Tensor
    parts = parts_of(value)
    if parts is None:
        return type(value)
    kind = next((base for base in (dict, list) if _is_of_torch(type(value), base)), type(value))
    return kind, tuple((key, structure_of(part)) for key, part in parts)


def _is_of_torch(kind: type, base: type = object) -> bool:
    """Return whether a class is torch's own: sizes, results with names, lists in graphs."""
    return kind.__module__.split(".")[0] == "torch" and issubclass(kind, base)
