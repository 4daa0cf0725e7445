"""JSON schema of a saved model: modules, tensors, calls, with all checks."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar, cast

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

T = TypeVar("T")
Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One parameter, buffer or constant of the model.

    Attributes:
        name: As in `named_parameters`, or the attribute's path for a constant.
        role: "parameter", "buffer" (in `state_dict`) or "constant" (not in it).
    """

    name: str
    role: str
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
    operation: str
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
    kind: str
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
        """Return the description that `to_json` wrote.

        Raises:
            FileError: If anything is missing, superfluous, of another type or beyond a limit.
        """
        data = _keys(parse_json(text), cls)
        graph = data["training_graph"]
        description = cls(
            class_name=_text(data["class_name"]),
            kind=_choice(data["kind"], ("container", "torch.nn.Sequential")),
            training=_flag(data["training"]),
            modules=_each(data["modules"], _module),
            shared_modules=_names(data["shared_modules"]),
            tensors=_each(data["tensors"], _tensor),
            shared_tensors=_names(data["shared_tensors"]),
            evaluation=_each(data["evaluation"], _node),
            training_graph=None if graph is None else _each(graph, _node),
        )
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
    """Return what JSON holds, refusing what `to_json` never writes.

    Raises:
        FileError: If it is not JSON, names a key twice, or holds too many values.
    """
    # A value begins the text, follows a comma or a colon, or opens a list or an object.
    MAX_VALUES.check(sum(text.count(mark) for mark in ",[{"))
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except ValueError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"its description is not JSON ({error})") from error


def _tensor(data: object) -> TensorEntry:
    found = _keys(data, TensorEntry)
    return TensorEntry(
        name=_text(found["name"]),
        role=_choice(found["role"], ("parameter", "buffer", "constant")),
        shape=_each(found["shape"], _count),
        dtype=_text(found["dtype"]),
        requires_grad=_flag(found["requires_grad"]),
    )


def _module(data: object) -> ModuleEntry:
    found = _keys(data, ModuleEntry)
    return ModuleEntry(
        name=_text(found["name"]),
        kind=_text(found["kind"]),
        arguments=_object(found["arguments"]),
        parametrisations=_object(found["parametrisations"]),
        training=_flag(found["training"]),
    )


def _node(data: object) -> NodeEntry:
    found = _keys(data, NodeEntry)
    kinds = ("placeholder", "get_attr", "call_function", "call_method", "call_module", "output")
    return NodeEntry(
        name=_text(found["name"]),
        operation=_choice(found["operation"], kinds),
        target=found["target"],
        args=_each(found["args"], lambda item: item),
        kwargs=_object(found["kwargs"]),
    )


def _keys(data: object, kind: type) -> Json:
    wanted = set(kind.__slots__)
    found = _object(data)
    if set(found) != wanted:
        odd = sorted(set(found) ^ wanted)
        raise FileError(f"its {kind.__name__} lacks or adds {shorten(odd)}")
    return found


def _object(data: object) -> Json:
    return cast(Json, _typed(data, dict))


def _text(data: object) -> str:
    return _typed(data, str)


def _flag(data: object) -> bool:
    return _typed(data, bool)


def _count(data: object) -> int:
    if isinstance(data, bool) or not isinstance(data, int) or not 0 <= data < 2**63:
        raise FileError(f"its description has {shorten(data)} where a size belongs")
    return data


def _choice(data: object, choices: tuple[str, ...]) -> str:
    if data not in choices:
        raise FileError(f"its description has {shorten(data)} where one of {choices} belongs")
    return cast(str, data)


def _names(data: object) -> dict[str, str]:
    return {key: _text(value) for key, value in _object(data).items()}


def _each(data: object, read: Callable[[object], T]) -> list[T]:
    return [read(item) for item in cast(list[object], _typed(data, list))]


def _typed(data: object, kind: type[T]) -> T:
    if not isinstance(data, kind):
        raise FileError(f"its description has {shorten(data)} where a {kind.__name__} belongs")
    return data


def _unique(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise FileError("its description names a key twice")
    return found


def _refuse_constant(text: str) -> object:
    raise FileError(f"its description holds the number {text}")
