"""`write_source`: a compact model as Python source, a plain `nn.Module` to read and to own.

The source is written from the description that a model file has, so whatever can be saved can be
written, but for layers that are classes of the user's or of archlearn.
"""

import inspect
import json
import operator
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from archlearn.errors import FileError
from archlearn.module_utils import find_part
from archlearn.nn.functional import linear_by_columns, with_items
from archlearn.serialization.layer_registry import (
    CONTAINERS,
    all_layers,
    merge_classes,
    rotary_classes_in,
)
from archlearn.serialization.loading import is_chain, rebuild_parts
from archlearn.serialization.saving import describe_model
from archlearn.serialization.schema import Description, TensorEntry
from archlearn.serialization.values import decode, is_identifier, name_operation
from archlearn.tracing.example_inputs import CHECKS, DEFAULT, ExampleInputs, check_argument
from archlearn.tracing.fx_utils import thaw
from archlearn.tracing.output_types import is_construction

_LISTS = (nn.Sequential, nn.ModuleList)
_SAME_FOR_ALL_DIMS = ("kernel_size", "stride", "padding", "dilation", "output_padding")
_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "matmul": "@",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and_": "&", "or_": "|",
    "xor": "^",
}  # fmt: skip
_ELSEWHERE = "export to torch-export or onnx, or keep the file that archlearn.save writes"
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
    for name, kind in rotary_classes_in(model).items():
        if issubclass(kind, nn.Module):
            raise FileError(f"it has a {name}, which plain source cannot hold; {_ELSEWHERE}")
    description, tensors = describe_model(model, example_inputs)
    if not is_identifier(description.class_name):
        raise FileError(f"its class is named {description.class_name!r}, which is no identifier")
    given = () if example_inputs is None else example_inputs
    source = _Source(description, ExampleInputs.of(given))
    body = [*source.write_init(), *source.write_forward()]
    lines = [
        f"class {description.class_name}(nn.{type(source.root).__name__}):",
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


class _Source:
    """Writes the parts of a described model, and the functions that call them."""

    def __init__(self, description: Description, inputs: ExampleInputs) -> None:
        self._description = description
        self._inputs = inputs
        self._entries = {entry.name: entry for entry in description.modules}
        self.root, self._graphs = rebuild_parts(description, merge_classes(None))
        self._remove_unused()

    def _remove_unused(self) -> None:
        """Take away parts that nothing calls or reads, but for those of lists, by number."""
        nodes = [node for graph in self._graphs for node in graph.nodes]
        used = [str(node.target) for node in nodes if node.op in ("call_module", "get_attr")]
        used += [entry.name for entry in self._description.tensors]
        shared = self._description.shared_modules
        used += [*self._description.shared_tensors, *shared, *shared.values()]
        for path in self._entries:
            owner, _, name = path.rpartition(".")
            parent = find_part(self.root, owner)
            is_used = any(f"{each}.".startswith(f"{path}.") for each in used)
            if parent is not None and not is_used and not isinstance(parent, _LISTS):
                del parent._modules[name]

    def refer(self, path: str) -> str:
        """Return the expression that names a module or a tensor."""
        found, text = self.root, "self"
        for name in path.split(".") if path else ():
            if _is_list(found) and name.isdigit():
                text += f"[{name}]"
            elif is_identifier(name):
                text += f".{name}"
            elif found is not self.root and name in found._modules and _is_dict(found):
                text += f"[{name!r}]"
            else:  # of the model itself or an nn.Sequential, or a tensor of an nn.ParameterList
                text = f"getattr({text}, {name!r})"
            found = found._modules.get(name) or found
        return text

    def write_init(self) -> list[str]:
        """Return the lines of the constructor."""
        lines = ["def __init__(self) -> None:"]
        if _is_list(self.root):
            inner = [_STEP * 2 + line for line in self._write_items(self.root, "")]
            lines += [f"{_STEP}super().__init__(", *inner, f"{_STEP})"]
        else:
            lines.append(f"{_STEP}super().__init__()")
            for name, part in self.root._modules.items():
                if self._can_wait(self.root, name):
                    continue
                made = self._write_part(name, cast(nn.Module, part))
                if is_identifier(name):
                    made[0] = f"self.{name} = {made[0]}"
                else:
                    made = [f"self.add_module({name!r}, {made[0]}", *made[1:]]
                    made[-1] += ")"
                lines += [_STEP + line for line in made]
        return lines + [_STEP + line for line in self._write_extras()]

    def _write_part(self, path: str, part: nn.Module) -> list[str]:
        """Return the lines of the expression that makes a module."""
        if path in self._description.shared_modules:
            return ["nn.Identity()"]  # until the module it is the same as is there
        if type(part) not in CONTAINERS.values():
            return [self._write_layer(path)]
        name, opening, closing = f"nn.{type(part).__name__}", "(", ")"
        if isinstance(part, nn.Sequential) and not _is_list(part):
            opening, closing = "(OrderedDict({", "}))"
        elif not isinstance(part, _LISTS):
            name, opening, closing = "nn.ModuleDict" if _is_dict(part) else _PARTS, "({", "})"
        elif isinstance(part, nn.ModuleList):
            opening, closing = "([", "])"
        inner = self._write_items(part, path)
        if not inner:
            return [f"{name}()"]
        return [name + opening, *(_STEP + line for line in inner), closing]

    def _write_items(self, part: nn.Module, path: str) -> list[str]:
        lines: list[str] = []
        named = not _is_list(part)
        for name, child in part._modules.items():
            inside = f"{path}.{name}".lstrip(".")
            if self._can_wait(part, inside):
                continue
            first, *rest = self._write_part(inside, cast(nn.Module, child))
            made = [f"{json.dumps(name)}: {first}" if named else first, *rest]
            lines += [*made[:-1], made[-1] + ","]
        return lines

    def _can_wait(self, owner: nn.Module, path: str) -> bool:
        """Return whether a module is made under another name, and nothing depends on its order."""
        return path in self._description.shared_modules and not isinstance(owner, _LISTS)

    def _write_layer(self, path: str) -> str:
        known, entry = all_layers(), self._entries[path]
        if entry.kind not in known or not entry.kind.startswith("torch.nn."):
            raise FileError(
                f"the layer {path!r} is of class {entry.kind}, which plain source cannot hold; "
                f"{_ELSEWHERE}"
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
        parameters = inspect.signature(known[entry.kind]).parameters
        for name, value in given.items():
            default = parameters[name].default if name in parameters else None
            is_behind = bool(arguments) and "=" in arguments[-1]  # of a keyword
            if name in parameters and default is inspect.Parameter.empty and not is_behind:
                arguments.append(_literal(value))
            elif name not in parameters or not _is_same(value, default):
                arguments.append(f"{name}={_literal(value)}")
        return f"nn.{entry.kind.rpartition('.')[2]}({', '.join(arguments)})"

    def _write_extras(self) -> list[str]:
        """Return what modules have beside layers: own tensors, ties, norms of weights."""
        lines: list[str] = []
        shared = self._description.shared_modules
        for entry in self._description.modules:
            for tensor, norm in entry.parametrisations.items():
                settings = dict(cast(dict[str, Any], norm))
                name = settings.pop("norm")
                rest = "".join(f", {key}={value!r}" for key, value in settings.items())
                module = f"torch.nn.utils.parametrizations.{name}"
                lines.append(f"{module}({self.refer(entry.name)}, {tensor!r}{rest})")
        lines += [self._set_same(path, first) for path, first in shared.items()]
        for entry in self._description.tensors:
            owner, _, name = entry.name.rpartition(".")
            part = find_part(self.root, owner)
            if type(part) in CONTAINERS.values():
                lines.append(_write_tensor(entry, self.refer(owner), name))
        for path, first in self._description.shared_tensors.items():
            if not path.startswith(tuple(f"{name}." for name in shared)):
                lines.append(self._set_same(path, first))
        return lines

    def _set_same(self, path: str, first: str) -> str:
        owner, _, name = path.rpartition(".")
        if owner and _is_list(find_part(self.root, owner)):
            return f"{self.refer(path)} = {self.refer(first)}"
        return _set(self.refer(owner), name, self.refer(first))

    def write_forward(self) -> list[str]:
        """Return the lines of `forward`, and of what it calls in each mode."""
        if is_chain(self._description):
            return []
        evaluation, *training = [_Function(graph, self, self._inputs) for graph in self._graphs]
        if not training:
            return ["", *evaluation.write("forward")]
        given = ", ".join(f"{name}={name}" for name in evaluation.parameters())
        return [
            "",
            *evaluation.write("evaluate"),
            "",
            *training[0].write("train_forward"),
            "",
            f"def forward({evaluation.signature()}):",
            f"{_STEP}run = self.train_forward if self.training else self.evaluate",
            f"{_STEP}return run({given})",
        ]


def _is_list(part: nn.Module | None) -> bool:
    """Return whether parts are found by number; an nn.Sequential may give them names."""
    return isinstance(part, _LISTS) and list(part._modules) == [str(i) for i in range(len(part))]


def _is_dict(part: nn.Module) -> bool:
    """Return whether an nn.ModuleDict can hold it all: nothing is named `keys` or `values`."""
    names = (*part._modules, *part._parameters, *part._buffers)
    return not isinstance(part, _LISTS) and not any(hasattr(nn.ModuleDict, name) for name in names)


def _is_same(value: object, default: object) -> bool:
    return type(value) is type(default) and value == default


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


class _Text(str):
    """An expression, which is written as it is."""

    __slots__ = ()


class _Function:
    """Writes the calls of a graph as statements, each of which reuses the name of what it reads."""

    def __init__(self, graph: fx.Graph, source: _Source, inputs: ExampleInputs) -> None:
        self._source = source
        left_out = _find_left_out(graph, inputs)
        self._nodes = [
            node
            for node in graph.nodes
            if node not in left_out and (node.target not in CHECKS or _is_asked(node, left_out))
        ]
        self._names: dict[fx.Node, str] = {}
        self._sizes = _find_sizes(self._nodes)
        self._last_use: dict[fx.Node, int] = {}
        for place, node in reversed(list(enumerate(self._nodes))):
            last = self._last_use.get(node, 0) if node in self._sizes else place
            for read in node.all_input_nodes:
                self._last_use[read] = max(last, self._last_use.get(read, 0))

    def _placeholders(self) -> list[fx.Node]:
        """Return the arguments; those that are fixed and not in the example are left out."""
        return [node for node in self._nodes if node.op == "placeholder"]

    def parameters(self) -> list[str]:
        """Return the names of the arguments."""
        return [str(node.target) for node in self._placeholders()]

    def signature(self) -> str:
        """Return the arguments as they stand in a definition."""
        shown = ["self"]
        for node in self._placeholders():
            name = str(node.target)
            if name.startswith("*"):
                raise FileError(
                    f"its forward takes {name}, which plain source cannot show; {_ELSEWHERE}"
                )
            default = [f"={_literal(value)}" for value in node.args]
            shown.append(name + (default[0] if default else ": Tensor"))
        return ", ".join(shown)

    def write(self, name: str) -> list[str]:
        """Return the definition of the function."""
        self._names = {node: str(node.target) for node in self._placeholders()}
        body: list[str] = []
        for place, node in enumerate(self._nodes):
            if node.op == "output":
                body.append(f"return {_literal(self._read(node.args[0]))}")
            elif node.op != "placeholder":
                body += self._write_node(place, node)
        before, *_ = [*body[-2:-1], ""]
        if before.partition(" = ")[0] == body[-1].removeprefix("return "):
            body[-2:] = [f"return {before.partition(' = ')[2]}"]
        return [f"def {name}({self.signature()}):", *(_STEP + line for line in body)]

    def _write_node(self, place: int, node: fx.Node) -> list[str]:
        if node.op == "get_attr":
            self._names[node] = self._source.refer(str(node.target))
            return []
        args, kwargs = self._read(list(node.args)), self._read(dict(node.kwargs))
        if node.target is check_argument:
            said = f"{args[2]} must be {args[1]!r}, as in the example"
            test = f"{_literal(args[0])} != {_literal(args[1])}"
            return [f"if {test}:", f"{_STEP}raise ValueError({said!r})"]
        text = self._write_call(node, args, kwargs)
        if node not in self._last_use:
            return [text] * (node not in self._sizes)
        if node in self._sizes:
            self._names[node] = text
            return []
        dead = [read for read in node.all_input_nodes if self._last_use[read] == place]
        free = [self._names[read] for read in dead if self._names[read].isidentifier()]
        name = self._names[node] = free[0] if free else self._fresh(node.name, place)
        if node.target is with_items:
            return [f"{name} = {text}", f"{name}[{_index(args[1])}] = {_literal(args[2])}"]
        return [f"{name} = {text}"]

    def _fresh(self, name: str, place: int) -> str:
        living = {self._names[n] for n, last in self._last_use.items()
                  if last >= place and n in self._names}  # fmt: skip
        while name in (*living, "F", "torch", "nn", "math", "operator") or not is_identifier(name):
            name += "_"
        return name

    def _write_call(self, node: fx.Node, args: list[Any], kwargs: Mapping[str, Any]) -> str:
        if node.op == "call_module":
            return f"{self._source.refer(str(node.target))}({_arguments(args, kwargs)})"
        if node.op == "call_method":
            return f"{_literal(args[0])}.{node.target}({_arguments(args[1:], kwargs)})"
        target: Any = node.target
        if is_construction(target) and target is not OrderedDict:  # a named tuple, or a record
            parts = dict(zip(getattr(target, "_fields", ()), args, strict=True)) | dict(kwargs)
            return f"dict({_arguments([], parts)})"
        if target is getattr:
            return f"{args[0]}.{args[1]}"
        if target is operator.getitem:
            return f"{args[0]}[{_index(args[1])}]"
        if target is with_items:
            return f"{args[0]}.clone()"
        if target is linear_by_columns:
            x, weight, *bias = args
            return f"F.linear({_arguments([x, _Text(f'{weight}.t()'), *bias], kwargs)})"
        function = name_operation(target)
        home, _, name = function.rpartition(".")
        if home == "operator" and name in _BINARY and len(args) == 2:
            return f"{_literal(args[0])} {_BINARY[name]} {_literal(args[1])}"
        if home.startswith(("archlearn", "torchvision")):
            raise FileError(f"it calls {function}, which plain source cannot hold; {_ELSEWHERE}")
        shown = _arguments(args, _shorten(target, name, kwargs))
        return f"{function.removeprefix('collections.')}({shown})"

    def _read(self, value: Any) -> Any:
        return thaw(map_arg(value, lambda node: _Text(self._names[node])))


def _find_left_out(graph: fx.Graph, inputs: ExampleInputs) -> set[fx.Node]:
    """Return the arguments that nothing reads and the example has not, where others are refused."""
    found = [node for node in graph.nodes if node.op == "placeholder"]
    return {
        node
        for place, node in enumerate(found)
        if node.args
        and place >= len(inputs.args)
        and node.target not in inputs.kwargs
        and all(user.target in CHECKS for user in node.users)
    }


def _is_asked(check: fx.Node, left_out: set[fx.Node]) -> bool:
    """Return whether a check is one of sizes, or of an argument that is still there."""
    asked, fixed = check.args[:2]
    return check.target is check_argument and asked not in left_out and fixed != DEFAULT


def _find_sizes(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """Return the values that are shapes or sizes, which are read wherever they are needed."""
    if any(node.target in ("squeeze_", "unsqueeze_") for node in nodes):
        return set()  # a shape may change
    found: set[fx.Node] = set()
    for node in nodes:
        is_shape = node.target is getattr and node.args[1] == "shape"
        if is_shape or (node.target is operator.getitem and node.args[0] in found):
            found.add(node)
    return found


def _shorten(function: Any, name: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords without those that have their default."""
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
