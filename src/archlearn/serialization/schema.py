"""JSON schema of a saved model: modules, tensors, calls, with all checks."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from archlearn.errors import FileError
from archlearn.serialization.limits import (
    MAX_CALLS,
    MAX_KEYWORDS,
    MAX_MODULES,
    MAX_NAME_LENGTH,
    MAX_TENSORS,
    MAX_VALUES,
    check_shape,
)
from archlearn.serialization.values import shorten

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One parameter, buffer or constant of the model.

    Attributes:
        name: As in `named_parameters`, or the attribute's path for a constant.
        role: "parameter", "buffer" (in `state_dict`) or "constant" (not in it).
    """

    name: str
    role: Literal["parameter", "buffer", "constant"]
    shape: list[int]
    dtype: str
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class ModuleEntry:
    """One submodule: a layer with its constructor arguments, or a container."""

    name: str
    kind: str
    arguments: Json
    parametrisations: Json
    training: bool


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """One call of the graph; arguments as `values.encode` writes them."""

    name: str
    operation: Literal[
        "placeholder", "get_attr", "call_function", "call_method", "call_module", "output"
    ]
    target: object
    args: list[object]
    kwargs: Json


@dataclass(frozen=True, slots=True)
class Description:
    """A model without its numbers.

    Attributes:
        class_name: What the model's class was called.
        kind: "torch.nn.Sequential" if the model is just that, else "container".
        modules: In the order of `named_modules`, each object once.
        shared_modules: Further names of modules, to the first name.
        tensors: In the order in which the model holds them, each object once.
        shared_tensors: Further names of tensors, to the first name.
        evaluation: The calls after `model.eval()`.
        training_graph: The calls after `model.train()`, or None if they are the same.
    """

    class_name: str
    kind: Literal["container", "torch.nn.Sequential"]
    training: bool
    modules: list[ModuleEntry]
    shared_modules: dict[str, str]
    tensors: list[TensorEntry]
    shared_tensors: dict[str, str]
    evaluation: list[NodeEntry]
    training_graph: list[NodeEntry] | None

    def to_json(self) -> str:
        """Return the description as one line of JSON."""
        return json.dumps(asdict(self), allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Description":
        """Return the description that `to_json` wrote."""
        description: Description = _read(parse_json(text), cls)
        _check_limits(description)
        return description


def _check_limits(description: Description) -> None:
    graphs = [description.evaluation, description.training_graph or []]
    MAX_MODULES.check(len(description.modules) + len(description.shared_modules))
    MAX_TENSORS.check(len(description.tensors) + len(description.shared_tensors))
    names = [
        description.class_name,
        *(entry.name for entry in [*description.modules, *description.tensors]),
        *description.shared_modules,
        *description.shared_tensors,
    ]
    for graph in graphs:
        MAX_CALLS.check(len(graph))
        MAX_KEYWORDS.check(max((len(entry.kwargs) for entry in graph), default=0))
        names += [name for entry in graph for name in (entry.name, *entry.kwargs)]
        names += [entry.target for entry in graph if isinstance(entry.target, str)]
    MAX_NAME_LENGTH.check(max(map(len, names)))
    for entry in description.tensors:
        check_shape(entry.shape)


def parse_json(text: str) -> object:
    """Return what JSON holds, refusing what `to_json` never writes."""
    # A value begins the text, follows a comma or a colon, or opens a list or an object.
    MAX_VALUES.check(sum(text.count(mark) for mark in ",[{"))
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except ValueError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"its description is not JSON ({error})") from error


def _read(data: object, hint: Any) -> Any:
    """Return data that have the type of a hint, with an entry's dataclass for each object."""
    if hint is object:
        return data
    if hint is int:
        return _size(data)
    if hint is float and type(data) is int:  # a tolerance may have been given as a whole number
        return data
    if is_dataclass(hint):
        return read_entry(data, hint)
    kind, inner = get_origin(hint), get_args(hint)
    if kind is Literal:
        if data not in inner:
            raise FileError(f"its description has {shorten(data)} where one of {inner} belongs")
        return data
    if kind is UnionType:
        return None if data is None else _read(data, inner[0])
    typed = _typed(data, kind or hint)
    if kind is list:
        return [_read(item, inner[0]) for item in typed]
    if kind is dict:
        return {key: _read(value, inner[1]) for key, value in typed.items()}
    return typed


def read_entry(data: object, kind: Any) -> Any:
    """Return the dataclass that an object of JSON holds."""
    hints, fields = _hints(kind), _typed(data, dict)
    if fields.keys() != hints.keys():
        odd = sorted(fields.keys() ^ hints.keys(), key=repr)  # a crafted key may be a number
        raise FileError(f"its {kind.__name__} lacks or adds {shorten(odd)}")
    return kind(**{name: _read(fields[name], hint) for name, hint in hints.items()})


_hints = cache(get_type_hints)


def _size(data: object) -> int:
    if isinstance(data, bool) or not isinstance(data, int) or not 0 <= data < 2**63:
        raise FileError(f"its description has {shorten(data)} where a size belongs")
    return data


def _typed(data: object, kind: type) -> Any:
    if not isinstance(data, kind):
        raise FileError(f"its description has {shorten(data)} where a {kind.__name__} belongs")
    return data


def _unique(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise FileError("its description names a key twice")
    return unique


def _refuse_constant(text: str) -> object:
    raise FileError(f"its description holds the number {text}")
