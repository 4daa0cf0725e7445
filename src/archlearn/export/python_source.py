"""`write_source`: a compact model as Python source, a plain `nn.Module` to read and to own.

The source is written from the description that a model file has, so whatever can be saved can be
written, but for layers that are classes of the user's or of archlearn.
"""

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlearn.errors import FileError
from archlearn.serialization.layer_registry import all_layers
from archlearn.serialization.loading import is_chain
from archlearn.serialization.saving import describe_model
from archlearn.serialization.schema import Description, ModuleEntry, NodeEntry, TensorEntry
from archlearn.serialization.values import decode, find_operation, is_identifier, name_operation

_LISTS = ("torch.nn.Sequential", "torch.nn.ModuleList")
_SAME_FOR_ALL_DIMS = ("kernel_size", "stride", "padding", "dilation", "output_padding")
_CHECKS = ("archlearn.check_argument", "archlearn.check_kind", "archlearn.check_given",
           "archlearn.check_keywords")  # fmt: skip
_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "matmul": "@",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and_": "&", "or_": "|",
    "xor": "^",
}  # fmt: skip
_STEP = "    "
_PARTS = "_Parts"
_PARTS_SOURCE = f"""\
class {_PARTS}(nn.Module):
    def __init__(self, parts: dict[str, nn.Module]) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


"""


def write_source(
    model: nn.Module, weights: str, example_inputs: object = None
) -> tuple[str, dict[str, Tensor]]:
    """Return the source of a model and the tensors that its `load` reads from a file."""
    description, tensors = describe_model(model, example_inputs)
    if not is_identifier(description.class_name):
        raise FileError(f"its class is named {description.class_name!r}, which is no identifier")
    tree = _build_tree(description)
    base = "nn.Sequential" if description.kind == "torch.nn.Sequential" else "nn.Module"
    body = [*_write_init(description, tree), *_write_forward(description, tree)]
    lines = [
        f"class {description.class_name}({base}):",
        *(_STEP + line if line else "" for line in body),
        "",
        "",
        *_write_load(description, weights),
    ]
    text = "\n".join(lines)
    text = _PARTS_SOURCE + text if f"{_PARTS}(" in text else text
    return "\n".join(_write_header(description, text)) + "\n" + text + "\n", tensors


def _write_header(description: Description, text: str) -> list[str]:
    n_parameters = sum(
        torch.Size(entry.shape).numel()
        for entry in description.tensors
        if entry.role == "parameter"
    )
    imports = [f"import {name}" for name in ("math", "operator", "torch") if f"{name}." in text]
    imports += ["import torch.nn.functional as F"] * (" F." in text or "(F." in text)
    imports += ["from collections import OrderedDict"] * ("OrderedDict(" in text)
    imports += [
        "from safetensors.torch import load_file",
        "from torch import Tensor, nn" if "Tensor" in text else "from torch import nn",
    ]
    title = (
        f'"""{description.class_name} with {n_parameters:,} parameters, compacted by archlearn."""'
    )
    return [title, "", *imports, "", ""]


@dataclass
class _Part:
    """A module of the tree: a layer or a container, or another name of a module."""

    kind: str = "container"
    entry: ModuleEntry | None = None
    same_as: str = ""
    children: dict[str, "_Part"] = field(default_factory=dict["str", "_Part"])
    tensors: list[str] = field(default_factory=list[str])

    @property
    def is_layer(self) -> bool:
        return self.kind not in (*_LISTS, "container", "torch.nn.ModuleDict")

    @property
    def is_dict(self) -> bool:
        """Whether an nn.ModuleDict can hold what is in it: nothing is named `keys` or `values`."""
        return not any(hasattr(nn.ModuleDict, name) for name in (*self.children, *self.tensors))

    def find(self, path: str) -> "_Part | None":
        """Return the part at a path; None if it was left out, for nothing calls it."""
        found: _Part | None = self
        for name in path.split(".") if path else ():
            found = None if found is None else found.children.get(name)
        return found

    def refer(self, path: str) -> str:
        """Return the expression that names a module or a tensor of this tree."""
        found, text = self, "self"
        for name in path.split("."):
            if found.kind in _LISTS and name.isdigit():
                text += f"[{name}]"
            elif is_identifier(name):
                text += f".{name}"
            elif found is not self and name in found.children and found.is_dict:
                text += f"[{name!r}]"
            else:  # of the model itself, or a tensor of an nn.ParameterList
                text = f"getattr({text}, {name!r})"
            found = found.children.get(name, found)
        return text


def _build_tree(description: Description) -> _Part:
    root = _Part(kind=description.kind)
    nodes = [*description.evaluation, *(description.training_graph or [])]
    used = [str(node.target) for node in nodes if node.operation in ("call_module", "get_attr")]
    used += [entry.name for entry in description.tensors]
    used += [*description.shared_modules, *description.shared_modules.values()]
    used += description.shared_tensors
    for entry in description.modules:
        owner, _, name = entry.name.rpartition(".")
        is_used = any(u == entry.name or u.startswith(entry.name + ".") for u in used)
        parent = root.find(owner)
        if parent is not None and (is_used or parent.kind in _LISTS):
            parent.children[name] = _Part(entry.kind, entry)
    for path, first in description.shared_modules.items():
        owner, _, name = path.rpartition(".")
        parent = root.find(owner)
        if parent is not None:
            parent.children[name] = _Part(same_as=first)
    for path in [*(entry.name for entry in description.tensors), *description.shared_tensors]:
        owner, _, name = path.rpartition(".")
        parent = root.find(owner)
        if parent is not None:
            parent.tensors.append(name)
    return root


def _write_init(description: Description, tree: _Part) -> list[str]:
    lines = ["def __init__(self) -> None:"]
    if tree.kind in _LISTS:
        inner = _write_items(tree, "")
        lines += [f"{_STEP}super().__init__(", *(_STEP * 2 + line for line in inner), f"{_STEP})"]
    else:
        lines.append(f"{_STEP}super().__init__()")
        for name, part in tree.children.items():
            if part.same_as:
                continue
            made = _write_part(name, part)
            if is_identifier(name):
                made[0] = f"self.{name} = {made[0]}"
            else:
                made = [f"self.add_module({name!r}, {made[0]}", *made[1:]]
                made[-1] += ")"
            lines += [_STEP + line for line in made]
    lines += [_STEP + line for line in _write_extras(description, tree)]
    return lines


def _write_part(path: str, part: _Part) -> list[str]:
    """Return the lines of the expression that makes a module."""
    if part.same_as:
        return ["nn.Identity()"]  # until the module it is the same as is there
    if part.is_layer:
        return [_write_layer(path, part)]
    if part.kind in _LISTS:
        if list(part.children) != [str(place) for place in range(len(part.children))]:
            raise FileError(
                f"{path!r} is a list whose parts are named {list(part.children)}, which no source "
                "makes; build it anew with its parts in order"
            )
        inner = _write_items(part, path)
        opening, closing = ("(", ")") if part.kind == _LISTS[0] else ("([", "])")
        name = f"nn.{part.kind.rpartition('.')[2]}"
    else:
        inner = _write_items(part, path, named=True)
        name = "nn.ModuleDict" if part.is_dict else _PARTS
        opening, closing = "({", "})"
    if not inner:
        return [f"{name}()"]
    return [name + opening, *(_STEP + line for line in inner), closing]


def _write_items(part: _Part, path: str, *, named: bool = False) -> list[str]:
    lines: list[str] = []
    for name, child in part.children.items():
        if named and child.same_as:
            continue
        first, *rest = _write_part(f"{path}.{name}".lstrip("."), child)
        made = [f"{json.dumps(name)}: {first}" if named else first, *rest]
        lines += [*made[:-1], made[-1] + ","]
    return lines


def _write_layer(path: str, part: _Part) -> str:
    known = all_layers()
    entry = cast(ModuleEntry, part.entry)
    if part.kind not in known or not part.kind.startswith("torch.nn."):
        raise FileError(
            f"the layer {path!r} is of class {part.kind}, which plain source cannot hold; export "
            "to torch-export or onnx, or keep the file that archlearn.save writes"
        )
    given = {name: decode(value) for name, value in entry.arguments.items()}
    for name in _SAME_FOR_ALL_DIMS:
        value = given.get(name)
        if isinstance(value, tuple) and len(set(cast(tuple[object, ...], value))) == 1:
            given[name] = value[0]
    shape = given.get("normalized_shape")
    if isinstance(shape, tuple) and len(cast(tuple[int, ...], shape)) == 1:
        (given["normalized_shape"],) = shape
    arguments: list[str] = []
    parameters = inspect.signature(known[part.kind]).parameters
    for name, value in given.items():
        default = parameters[name].default if name in parameters else None
        is_behind = bool(arguments) and "=" in arguments[-1]  # of a keyword
        if name in parameters and default is inspect.Parameter.empty and not is_behind:
            arguments.append(_literal(value))
        elif name not in parameters or not _is_same(value, default):
            arguments.append(f"{name}={_literal(value)}")
    return f"nn.{part.kind.rpartition('.')[2]}({', '.join(arguments)})"


def _is_same(value: object, default: object) -> bool:
    return type(value) is type(default) and value == default


def _write_extras(description: Description, tree: _Part) -> list[str]:
    """Return what modules have beside layers: own tensors, ties, norms of weights."""
    lines: list[str] = []
    for entry in description.modules:
        for tensor, norm in entry.parametrisations.items():
            settings = dict(cast(dict[str, Any], norm))
            name = settings.pop("norm")
            rest = "".join(f", {key}={value!r}" for key, value in settings.items())
            module = f"torch.nn.utils.parametrizations.{name}"
            lines.append(f"{module}({tree.refer(entry.name)}, {tensor!r}{rest})")
    for path, first in description.shared_modules.items():
        lines.append(_set_same(tree, path, first))
    for entry in description.tensors:
        owner, _, name = entry.name.rpartition(".")
        part = tree.find(owner)
        if part is not None and not part.is_layer and ".parametrizations." not in owner:
            lines.append(_write_tensor(entry, tree.refer(owner) if owner else "self", name))
    for path, first in description.shared_tensors.items():
        if not path.startswith(tuple(f"{name}." for name in description.shared_modules)):
            lines.append(_set_same(tree, path, first))
    return lines


def _set_same(tree: _Part, path: str, first: str) -> str:
    owner, _, name = path.rpartition(".")
    part = tree.find(owner)
    if part is not None and part.kind in _LISTS and part is not tree:
        return f"{tree.refer(path)} = {tree.refer(first)}"
    return _set(tree.refer(owner) if owner else "self", name, tree.refer(first))


def _set(owner: str, name: str, value: str) -> str:
    """Return the line that gives a module an attribute, which may be a number."""
    if is_identifier(name):
        return f"{owner}.{name} = {value}"
    return f"setattr({owner}, {name!r}, {value})"


def _write_tensor(entry: TensorEntry, owner: str, name: str) -> str:
    dtype = "" if entry.dtype == "float32" else f", dtype=torch.{entry.dtype}"
    empty = f"torch.empty({tuple(entry.shape)}{dtype})"
    if entry.role == "parameter":
        frozen = "" if entry.requires_grad else ", requires_grad=False"
        return _set(owner, name, f"nn.Parameter({empty}{frozen})")
    return f"{owner}.register_buffer({name!r}, {empty})"


def _write_load(description: Description, weights: str) -> list[str]:
    """Return the function that makes the network with its weights."""
    kinds = {e.dtype for e in description.tensors if getattr(torch, e.dtype).is_floating_point}
    if len(kinds) > 1:
        raise FileError(
            f"its tensors are of {', '.join(sorted(kinds))}; source holds models of one precision: "
            "convert it first, as with model.float()"
        )
    cast_to = "" if kinds <= {"float32"} else f".to(torch.{kinds.pop()})"
    ties = [
        f"{_STEP}weights[{path!r}] = weights[{first!r}]"
        for path, first in description.shared_tensors.items()
    ]
    return [
        f'def load(path: str = "{weights}") -> {description.class_name}:',
        f'{_STEP}"""Return the network with its weights."""',
        f"{_STEP}weights = load_file(path)",
        *ties,
        f"{_STEP}model = {description.class_name}(){cast_to}",
        f"{_STEP}model.load_state_dict(weights)",
        f"{_STEP}return model.eval()",
    ]


def _write_forward(description: Description, tree: _Part) -> list[str]:
    evaluation, training = description.evaluation, description.training_graph
    if is_chain(description):
        return []
    if training is None:
        return ["", *_Function(evaluation, tree).write("forward")]
    names = _Function(evaluation, tree).parameters()
    given = ", ".join(f"{name}={name}" for name in names)
    return [
        "",
        *_Function(evaluation, tree).write("evaluate"),
        "",
        *_Function(training, tree).write("train_forward"),
        "",
        f"def forward({_Function(evaluation, tree).signature()}):",
        f"{_STEP}run = self.train_forward if self.training else self.evaluate",
        f"{_STEP}return run({given})",
    ]


class _Text(str):
    """An expression, which is written as it is."""

    __slots__ = ()


class _Function:
    """Writes the calls of a graph as statements, each of which reuses the name of what it reads."""

    def __init__(self, nodes: Sequence[NodeEntry], tree: _Part) -> None:
        self._nodes = nodes
        self._tree = tree
        self._names: dict[str, str] = {}
        self._sizes = _find_sizes(nodes)
        self._last_use: dict[str, int] = {}
        for place, node in reversed(list(enumerate(nodes))):
            if node.target not in _CHECKS:
                last = self._last_use.get(node.name, 0) if node.name in self._sizes else place
                for name in _inputs(node):
                    self._last_use[name] = max(last, self._last_use.get(name, 0))

    def _placeholders(self) -> list[NodeEntry]:
        """Return the arguments that something reads; others are fixed, and left out."""
        found = [node for node in self._nodes if node.operation == "placeholder"]
        return [node for node in found if node.name in self._last_use or not node.args]

    def parameters(self) -> list[str]:
        """Return the names of the arguments."""
        return [str(node.target) for node in self._placeholders()]

    def signature(self) -> str:
        """Return the arguments as they stand in a definition."""
        shown = ["self"]
        for node in self._placeholders():
            name = str(node.target)
            if name.startswith("*"):
                raise FileError(f"its forward takes {name}, which plain source cannot show")
            default = [f"={_literal(decode(value))}" for value in node.args]
            shown.append(name + (default[0] if default else ": Tensor"))
        return ", ".join(shown)

    def write(self, name: str) -> list[str]:
        """Return the definition of the function."""
        self._names = {node.name: str(node.target) for node in self._placeholders()}
        body: list[str] = []
        for place, node in enumerate(self._nodes):
            if node.operation == "output":
                body.append(f"return {_literal(self._read(node.args[0]))}")
            elif node.operation not in ("placeholder",) and node.target not in _CHECKS:
                body += self._write_node(place, node)
        before, *_ = [*body[-2:-1], ""]
        if before.partition(" = ")[0] == body[-1].removeprefix("return "):
            body[-2:] = [f"return {before.partition(' = ')[2]}"]
        return [f"def {name}({self.signature()}):", *(_STEP + line for line in body)]

    def _write_node(self, place: int, node: NodeEntry) -> list[str]:
        if node.operation == "get_attr":
            self._names[node.name] = self._tree.refer(str(node.target))
            return []
        args = [self._read(value) for value in node.args]
        kwargs = {key: self._read(value) for key, value in node.kwargs.items()}
        text = self._write_call(node, args, kwargs)
        if node.name not in self._last_use:
            return [text] * (node.name not in self._sizes)
        if node.name in self._sizes:
            self._names[node.name] = text
            return []
        dead = [name for name in _inputs(node) if self._last_use.get(name) == place]
        free = [self._names[name] for name in dead if self._names[name].isidentifier()]
        name = self._names[node.name] = free[0] if free else self._fresh(node.name, place)
        if node.target == "archlearn.with_items":
            return [f"{name} = {text}", f"{name}[{_index(args[1])}] = {_literal(args[2])}"]
        return [f"{name} = {text}"]

    def _fresh(self, name: str, place: int) -> str:
        living = {self._names[n] for n, last in self._last_use.items()
                  if last >= place and n in self._names}  # fmt: skip
        while name in (*living, "F", "torch", "nn", "math", "operator") or not is_identifier(name):
            name += "_"
        return name

    def _write_call(self, node: NodeEntry, args: list[Any], kwargs: Mapping[str, Any]) -> str:
        if node.operation == "call_module":
            return f"{self._tree.refer(str(node.target))}({_arguments(args, kwargs)})"
        if node.operation == "call_method":
            return f"{_literal(args[0])}.{node.target}({_arguments(args[1:], kwargs)})"
        if isinstance(node.target, dict):
            pairs = zip(cast(dict[str, Any], node.target)["fields"], args, strict=True)
            return f"dict({_arguments([], dict(pairs))})"
        home, _, name = str(node.target).rpartition(".")
        if node.target == "getattr":
            return f"{args[0]}.{args[1]}"
        if home == "operator" and name in _BINARY and len(args) == 2:
            return f"{_literal(args[0])} {_BINARY[name]} {_literal(args[1])}"
        if node.target == "operator.getitem":
            return f"{args[0]}[{_index(args[1])}]"
        if node.target == "archlearn.with_items":
            return f"{args[0]}.clone()"
        if home.startswith(("archlearn", "torchvision")):
            raise FileError(
                f"it calls {node.target}, which plain source cannot hold; export to torch-export "
                "or onnx, or keep the file that archlearn.save writes"
            )
        function = str(node.target).removeprefix("collections.")
        return f"{function}({_arguments(args, _shorten(node, kwargs))})"

    def _read(self, value: object) -> Any:
        return decode(value, lambda name: _Text(self._names[name]))


def _find_sizes(nodes: Sequence[NodeEntry]) -> set[str]:
    """Return the values that are shapes or sizes, which are read wherever they are needed."""
    if any(node.target in ("squeeze_", "unsqueeze_") for node in nodes):
        return set()  # a shape may change
    found: set[str] = set()
    for node in nodes:
        is_shape = node.target == "getattr" and node.args[1] == "shape"
        if is_shape or (node.target == "operator.getitem" and _inputs(node)[0] in found):
            found.add(node.name)
    return found


def _shorten(node: NodeEntry, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords without those that have their default."""
    function = find_operation(node.target)
    name = str(node.target).rpartition(".")[2]
    try:
        # max_pool2d and the like choose between two functions, of which this is the usual one
        parameters = inspect.signature(getattr(F, f"_{name}", function)).parameters
    except ValueError:
        return dict(kwargs)
    return {
        key: value
        for key, value in kwargs.items()
        if key not in parameters or not _is_same(value, parameters[key].default)
    }


def _inputs(node: NodeEntry) -> list[str]:
    found: list[str] = []

    def note(name: str) -> object:
        found.append(name)
        return name

    for value in [*node.args, *node.kwargs.values()]:
        decode(value, note)
    return found


def _arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    named = [f"{key}={_literal(value)}" for key, value in kwargs.items()]
    return ", ".join([*map(_literal, args), *named])


def _index(value: Any) -> str:
    if isinstance(value, tuple) and value:
        items = [_index(item) for item in cast(tuple[Any, ...], value)]
        return ", ".join(items) + "," * (len(items) == 1)
    if isinstance(value, slice):
        parts = ["" if part is None else _literal(part) for part in (value.start, value.stop)]
        return ":".join(parts) + (f":{_literal(value.step)}" if value.step is not None else "")
    return _literal(value)


def _literal(value: Any) -> str:
    """Return a value as source."""
    match value:
        case _Text():
            return str(value)
        case float() if value != value or abs(value) == float("inf"):
            return f'float("{value}")'
        case tuple():
            items = [_literal(item) for item in cast(tuple[Any, ...], value)]
            return f"({', '.join(items)}{',' * (len(items) == 1)})"
        case list():
            return f"[{', '.join(_literal(item) for item in cast(list[Any], value))}]"
        case dict():
            pairs = cast(dict[Any, Any], value).items()
            return "{" + ", ".join(f"{_literal(k)}: {_literal(v)}" for k, v in pairs) + "}"
        case slice():
            return f"slice({value.start!r}, {value.stop!r}, {value.step!r})"
        case torch.device():
            return f'torch.device("{value}")'
        case _ if callable(value):
            return name_operation(value)
        case _ if value is ...:
            return "..."
        case _:
            return repr(value)
