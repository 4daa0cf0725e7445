"""Families of hostile files: header and JSON are valid, and one field is made to do harm.

Each family is a function of a random generator that returns a file of the given kind. Sizes are
drawn on a logarithmic scale, past the limits of `archlearn.serialization.limits` and right at them.
"""

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import numpy as np
import torch

from archlearn.serialization import limits
from archlearn_cli.training import checkpoint

Json = dict[str, Any]
Kind = Literal["model", "weights", "checkpoint", "settings", "control"]
CANARY = "archlearn_fuzz_canary"
CODE = f"__import__('os').system('touch {CANARY}')"


@dataclass(frozen=True, slots=True)
class File:
    """A file's name, which says how it is read, and its bytes."""

    kind: Kind
    name: str
    content: bytes


class SizedRandom(Random):
    """A generator that also draws sizes, none above `largest`."""

    largest: int = 2**40

    def draw_size(self, low: int, high: int, limit: limits.Limit | None = None) -> int:
        """Return a size between two, on a logarithmic scale; in one of five draws the limit."""
        if limit is not None and self.random() < 0.2:
            return min(limit.most, self.largest)
        return min(round(low * (high / low) ** self.random()), self.largest)


Family = Callable[[SizedRandom], File]
FAMILIES: dict[str, Family] = {}


def family(make: Callable[[SizedRandom], File]) -> Callable[[SizedRandom], File]:
    """Put a function among the families, by its name."""
    FAMILIES[make.__name__.replace("_", " ")] = make
    return make


def build_safetensors(
    tensors: Sequence[tuple[str, str, Sequence[int], int]], metadata: dict[str, str]
) -> bytes:
    """Return a file of zeros: names, safetensors' dtypes, shapes and numbers of bytes."""
    header: Json = {"__metadata__": metadata}
    end = 0
    for name, dtype, shape, n_bytes in tensors:
        start, end = end, end + n_bytes
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(end)


def build_model(description: Json | str, certificate: str | None = None, **more: str) -> File:
    """Return a model file whose header agrees with its description."""
    metadata = {"format": "archlearn", "version": "1", **more}
    tensors: list[tuple[str, str, Sequence[int], int]] = []
    if isinstance(description, dict):
        for entry in description["tensors"]:
            n_bytes = 0 if 0 in entry["shape"] else 4 * int(np.prod(entry["shape"], dtype=object))
            tensors.append((entry["name"], "F32", entry["shape"], n_bytes))
        description = json.dumps(description)
    metadata["description"] = description
    if certificate is not None:
        metadata["certificate"] = certificate
    return File("model", "net.safetensors", build_safetensors(tensors, metadata))


def describe(**changes: Any) -> Json:
    """Return the description of a model that returns its input, with some fields changed."""
    plain: Json = {
        "class_name": "Net", "kind": "container", "training": False, "modules": [],
        "shared_modules": {}, "tensors": [], "shared_tensors": {},
        "evaluation": graph(), "training_graph": None,
    }  # fmt: skip
    return plain | changes


def graph(*calls: Json, output: str = "x") -> list[Json]:
    """Return a graph of one input, the given calls and one output."""
    first = call("x", "placeholder", "x")
    return [first, *calls, call("output", "output", "output", [{"node": output}])]


def call(
    name: str, operation: str, target: object, args: Sequence[object] = (), **kwargs: object
) -> Json:
    """Return one call of a graph."""
    return {
        "name": name, "operation": operation, "target": target,
        "args": list(args), "kwargs": kwargs,
    }  # fmt: skip


def relu(name: str, argument: object = None) -> Json:
    """Return a harmless call."""
    return call(name, "call_function", "torch.relu", [argument or {"node": "x"}])


def module(name: str, kind: str = "container", **arguments: object) -> Json:
    """Return one module."""
    return {
        "name": name, "kind": kind, "arguments": arguments, "parametrisations": {},
        "training": False,
    }  # fmt: skip


def tensor(name: str, shape: Sequence[int], role: str = "parameter") -> Json:
    """Return one tensor of float32."""
    return {
        "name": name, "role": role, "shape": list(shape), "dtype": "float32",
        "requires_grad": False,
    }  # fmt: skip


def draw_number(random: SizedRandom) -> object:
    """Return a value that a number should not be."""
    return random.choice([
        -1, 0, 2**31 - 1, 2**31, 2**62, 2**63, 2**64, 10**4000, -(10**4000), 1.5, 1e308, True, None,
        {"float": "nan"}, {"float": "inf"}, "3", [], [3], [[3]], {"tuple": [3, 3]}, {"tuple": []},
        [2**31 - 1] * 16, {"node": "x"}, {"torch": "torch.float16"}, {"operation": "torch.relu"},
        {"slice": [0, 1, 2]}, {"dict": [["a", 1]]}, {"ellipsis": True},
    ])  # fmt: skip


def draw_code(random: SizedRandom) -> str:
    """Return text that would run if it were put into code, or reach what it must not."""
    return random.choice([
        CODE, f"x: {CODE}", f"x={CODE}", f"x\n    {CODE}", f"x); {CODE} #", f"x']; {CODE} #",
        "__class__", "__init__", "__reduce__", "self", "lambda", "import", "torch", "getattr",
        "eval", "exec", "__builtins__", "os.system", "a b", "", "x" * 5000, "x_" + "9" * 5000,
        "\ud800", "\x00", "ｘ", "x\u0301", "*x", "**x", "***x", "*torch", "a..b", ".", "a.", ".a",
    ])  # fmt: skip


def nest(levels: int) -> str:
    """Return the JSON of lists inside one another."""
    return "[" * levels + "]" * levels


@family
def nested_shared_modules(random: SizedRandom) -> File:
    levels = random.draw_size(4, 90)
    names = [".".join("a" for _ in range(level + 1)) for level in range(levels)]
    shared = {f"{name}b": name for name in reversed(names)}
    return build_model(describe(modules=[module(name) for name in names], shared_modules=shared))


@family
def modules_inside_themselves(random: SizedRandom) -> File:
    n = random.randint(2, 30)
    shared = {f"m{i}.inner": f"m{(i + 1) % n}" for i in range(n)}
    return build_model(describe(modules=[module(f"m{i}") for i in range(n)], shared_modules=shared))


@family
def chains_of_shared_modules(random: SizedRandom) -> File:
    n = random.draw_size(50, 9_000)
    shared = {f"m{i}.inner": f"m{i + 1}" for i in range(n - 1)}
    return build_model(describe(modules=[module(f"m{i}") for i in range(n)], shared_modules=shared))


@family
def deep_module_paths(random: SizedRandom) -> File:
    levels = random.draw_size(20, 1_000, limits.MAX_MODULE_DEPTH)
    names = [".".join("a" for _ in range(level + 1)) for level in range(levels)]
    return build_model(describe(modules=[module(name) for name in names]))


@family
def many_modules(random: SizedRandom) -> File:
    n = random.draw_size(1_000, 80_000, limits.MAX_MODULES)
    kind = random.choice(["container", "torch.nn.ReLU", "torch.nn.Sequential", "torch.nn.Dropout"])
    return build_model(describe(modules=[module(f"m{i}", kind) for i in range(n)]))


@family
def many_costly_layers(random: SizedRandom) -> File:
    one: dict[str, tuple[Json, dict[str, list[int]]]] = {
        "torch.nn.LSTM": (
            {"input_size": 1, "hidden_size": 1},
            {"weight_ih_l0": [4, 1], "weight_hh_l0": [4, 1], "bias_ih_l0": [4], "bias_hh_l0": [4]},
        ),
        "torch.nn.MultiheadAttention": (
            {"embed_dim": 1, "num_heads": 1},
            {"in_proj_weight": [3, 1], "in_proj_bias": [3], "out_proj.weight": [1, 1],
             "out_proj.bias": [1]},
        ),
        "torch.nn.Linear": (
            {"in_features": 1, "out_features": 1, "bias": False}, {"weight": [1, 1]},
        ),
        "torch.nn.BatchNorm2d": (
            {"num_features": 1, "track_running_stats": False}, {"weight": [1], "bias": [1]},
        ),
    }  # fmt: skip
    kind = random.choice(list(one))
    arguments, shapes = one[kind]
    most = limits.MAX_TENSORS.most // len(shapes)
    n = most if random.random() < 0.3 else random.draw_size(500, most)
    n = min(n, limits.MAX_MODULES.most, random.largest)
    described = random.choice([n, n, n // 2, 0])
    tensors = [
        tensor(f"m{i}.{name}", shape) for i in range(described) for name, shape in shapes.items()
    ]
    layers = [module(f"m{i}", kind, **arguments) for i in range(n)]
    return build_model(describe(modules=layers, tensors=tensors))


@family
def many_recurrent_layers(random: SizedRandom) -> File:
    n, n_layers = random.draw_size(1, 2_000), random.draw_size(1, 1_000_000)
    kind = random.choice(["torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN"])
    layers = [
        module(f"m{i}", kind, input_size=1, hidden_size=1, num_layers=n_layers) for i in range(n)
    ]
    tensors = [tensor(f"t{i}", [0]) for i in range(random.draw_size(1, 30_000))]
    return build_model(describe(modules=layers, tensors=tensors))


@family
def one_deep_recurrent_layer(random: SizedRandom) -> File:
    n = random.draw_size(10, 4_900, limits.MAX_RECURRENT_LAYERS)
    shapes = {"weight_ih": [4, 1], "weight_hh": [4, 1], "bias_ih": [4], "bias_hh": [4]}
    tensors = [tensor(f"m.{name}_l{i}", shape) for i in range(n) for name, shape in shapes.items()]
    layer = module("m", "torch.nn.LSTM", input_size=1, hidden_size=1, num_layers=n)
    return build_model(describe(modules=[layer], tensors=tensors))


@family
def norms_of_layers(random: SizedRandom) -> File:
    norm = random.choice(["spectral_norm", "weight_norm"])
    settings = {"norm": norm, "dim": random.choice([0, 1, -1, 7, 2**62, 0.5, True])}
    if norm == "spectral_norm":
        iterations = random.choice([1, 10**9, 2**62, -1, 0.5, True, 1e300])
        settings |= {"n_power_iterations": iterations, "eps": random.choice([0, -1, 1e-12, 1e300])}
    n = random.draw_size(1, 2_500)
    names = ["original0", "original1"] if norm == "weight_norm" else ["original"]
    layers = [
        module(f"m{i}", "torch.nn.Linear", in_features=2, out_features=2, bias=False)
        | {"parametrisations": {"weight": settings}}
        for i in range(n)
    ]
    shapes = {"original0": [2, 1], "original1": [2, 2], "original": [2, 2]}
    path = "parametrizations.weight"
    tensors = [tensor(f"m{i}.{path}.{name}", shapes[name]) for i in range(n) for name in names]
    if norm == "spectral_norm":
        tensors += [
            tensor(f"m{i}.{path}.0.{name}", [2], "buffer")
            for i in range(n)
            for name in ("_u", "_v")
        ]
    return build_model(describe(modules=layers, tensors=tensors))


@family
def many_inputs(random: SizedRandom) -> File:
    n = random.draw_size(1_000, 80_000, limits.MAX_CALLS) - 1
    inputs = [call(f"x{i}", "placeholder", f"x{i}") for i in range(n)]
    return build_model(describe(evaluation=[*inputs, graph(output="x0")[-1]]))


@family
def many_calls(random: SizedRandom) -> File:
    n = random.draw_size(1_000, 80_000, limits.MAX_CALLS) - 2
    stem = random.choice(["r", "r_", "sum_", "print"])
    calls = [relu(f"{stem}{i}", {"node": f"{stem}{i - 1}"} if i else None) for i in range(n)]
    both = graph(*calls, output=f"{stem}{n - 1}")
    training = both if random.random() < 0.5 else None
    return build_model(describe(evaluation=both, training_graph=training))


@family
def many_named_tuples(random: SizedRandom) -> File:
    n = random.draw_size(1, 18_000)
    n_fields = max(1, random.draw_size(1, 400_000) // n)
    target = {"namedtuple": "T", "fields": [f"a{i}" for i in range(n_fields)]}
    calls = [call(f"t{i}", "call_function", target, [{"node": "x"}]) for i in range(n)]
    return build_model(describe(evaluation=graph(*calls)))


@family
def many_keywords(random: SizedRandom) -> File:
    n = random.draw_size(100, 240_000, limits.MAX_KEYWORDS)
    keywords = {f"a{i}": 1 for i in range(n)}
    many = [call(f"c{i}", "call_function", "torch.relu", [{"node": "x"}], **keywords)
            for i in range(max(1, min(300, 100_000 // n)))]  # fmt: skip
    return build_model(describe(evaluation=graph(*many)))


@family
def long_arguments(random: SizedRandom) -> File:
    item = random.choice(["[]", "0", "{}", '"a"', '{"tuple":[]}', '{"node":"x"}', "[[]]"])
    n_bytes = random.draw_size(10_000, 36_000_000)
    n = n_bytes // (len(item) + 1)
    if random.random() < 0.3:
        n = (
            min(limits.MAX_VALUES.most, random.largest) // (1 + item.count("[") + item.count("{"))
            - 100
        )
    text = json.dumps(describe(evaluation=graph(relu("r", "HERE"))))
    return build_model(text.replace('"HERE"', "[" + ",".join([item] * n) + "]"))


@family
def long_texts(random: SizedRandom) -> File:
    letter = random.choice(["a", "é", "\U0001f600", '"', "\\", ",", "["])
    text = letter * random.draw_size(1_000, 4_000_000)
    place = random.choice(["class_name", "kind", "argument", "name", "target", "version"])
    changes: Json = {}
    if place in ("class_name", "kind"):
        changes = {place: text}
    elif place in ("name", "target"):
        changes = {"evaluation": graph(relu("r") | {place: text})}
    elif place == "argument":
        changes = {"evaluation": graph(relu("r", text))}
    return build_model(describe(**changes), **({"version": text} if place == "version" else {}))


@family
def deep_arguments(random: SizedRandom) -> File:
    levels = random.draw_size(10, 200_000, limits.MAX_NESTING)
    text = json.dumps(describe(evaluation=graph(relu("r", "HERE"))))
    inner = nest(levels)
    if random.random() < 0.5:
        inner = '{"tuple":[' * levels + "]}" * levels
    return build_model(text.replace('"HERE"', inner))


@family
def impossible_shapes(random: SizedRandom) -> File:
    sizes = [2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**32, 2**31, 1, 10**30]
    shape = [0, *random.choices(sizes, k=random.randint(1, 5))]
    random.shuffle(shape)
    role = random.choice(["parameter", "buffer", "constant"])
    return build_model(describe(tensors=[tensor("t", shape, role)]))


@family
def many_dimensions(random: SizedRandom) -> File:
    n = random.draw_size(10, 500_000, limits.MAX_DIMENSIONS)
    shape = [random.choice([0, 1])] * n
    return build_model(describe(tensors=[tensor("t", shape)]))


@family
def many_tensors(random: SizedRandom) -> File:
    n = random.draw_size(1_000, 80_000, limits.MAX_TENSORS)
    role = random.choice(["parameter", "buffer", "constant"])
    return build_model(describe(tensors=[tensor(f"t{i}", [0], role) for i in range(n)]))


@family
def shared_tensors_anywhere(random: SizedRandom) -> File:
    n = random.draw_size(1, 60_000)
    target = random.choice(["t", "u", "", "t.t", CODE])
    stem = random.choice(["s", "t", "m.s", "m.layer.s", "m.layer.weight", "__class__"])
    shared = {(f"{stem}{i}" if n > 1 else stem): target for i in range(n)}
    inner = module("m.layer", "torch.nn.Linear", in_features=1, out_features=1, bias=False)
    tensors = [tensor("t", [1, 1]), tensor("m.layer.weight", [1, 1])]
    return build_model(
        describe(modules=[module("m"), inner], tensors=tensors, shared_tensors=shared)
    )


@family
def code_in_names(random: SizedRandom) -> File:
    code = draw_code(random)
    calls = [relu("r"), call("size", "call_method", "size", [{"node": "x"}, 0])]
    place = random.choice(
        ["class", "node", "target", "method", "keyword", "input", "field", "tuple"]
    )
    changes: Json = {}
    match place:
        case "class":
            changes["class_name"] = code
        case "node":
            calls[0]["name"] = code
        case "target":
            calls[0]["target"] = code
        case "method":
            calls[1]["target"] = code
        case "keyword":
            calls[0]["kwargs"] = {code: 1}
        case "field":
            calls[0]["target"] = {"namedtuple": "T", "fields": [code]}
        case _:
            calls[0]["target"] = {"namedtuple": code, "fields": ["a"]}
    changes["evaluation"] = graph(*calls)
    if place == "input":
        changes["evaluation"][0]["target"] = code
    return build_model(describe(**changes))


@family
def code_in_paths(random: SizedRandom) -> File:
    code = draw_code(random)
    place = random.choice(["module", "tensor", "kind", "role", "dtype", "shared", "get"])
    changes: Json = {"modules": [module("m")], "tensors": [tensor("m.t", [1])]}
    match place:
        case "module":
            changes["modules"][0]["name"] = code
        case "tensor":
            changes["tensors"][0]["name"] = code
        case "kind" | "role" | "dtype":
            changes["modules" if place == "kind" else "tensors"][0][place] = code
        case "shared":
            changes["shared_modules"] = {code: "m"}
        case _:
            changes["evaluation"] = graph(call("g", "get_attr", code))
    return build_model(describe(**changes))


@family
def forbidden_calls(random: SizedRandom) -> File:
    target = random.choice([
        "os.system", "builtins.eval", "torch.load", "torch.hub.load", "torch.ops.load_library",
        "torch.utils.cpp_extension.load", "operator.methodcaller", "operator.attrgetter",
        "torch._C._jit_get_operation", "torchvision.models.get_model", "torchvision.os.system",
        "subprocess.Popen", "torch.save", "getattr", "torch.from_file", "torch.set_default_device",
    ])  # fmt: skip
    args: list[object] = [CODE]
    if target == "getattr":
        args = [{"node": "x"}, random.choice(["__class__", "__globals__", "data", "backward", 3])]
    argument = relu("r", {"operation": target})
    calls = [call("c", "call_function", target, args), argument]
    return build_model(describe(evaluation=graph(random.choice(calls))))


@family
def forbidden_layers(random: SizedRandom) -> File:
    kind = random.choice([
        "subprocess.Popen", "torch.nn.Module", "torch.jit.ScriptModule", "os.system", "torch.load",
        "torch.nn.DataParallel", "torch.nn.LazyLinear", "torch.nn.parameter.Parameter", "builtins",
        "torch.nn.Container", "torch.nn.CrossEntropyLoss", "__main__.Net", "torch.nn.__builtins__",
    ])  # fmt: skip
    return build_model(describe(modules=[module("m", kind, args=[CODE], shell=True)]))


_LAYERS: dict[str, Json] = {
    "torch.nn.Linear": {"in_features": 2, "out_features": 2, "bias": False},
    "torch.nn.Conv2d": {"in_channels": 2, "out_channels": 2, "kernel_size": 1, "padding": 0},
    "torch.nn.ConvTranspose3d": {"in_channels": 2, "out_channels": 2, "kernel_size": 1},
    "torch.nn.Embedding": {"num_embeddings": 2, "embedding_dim": 2, "padding_idx": 0},
    "torch.nn.LSTM": {"input_size": 2, "hidden_size": 2, "num_layers": 1, "dropout": 0.0},
    "torch.nn.GRUCell": {"input_size": 2, "hidden_size": 2},
    "torch.nn.MultiheadAttention": {"embed_dim": 2, "num_heads": 1, "kdim": 2},
    "torch.nn.LayerNorm": {"normalized_shape": [2], "eps": 1e-5},
    "torch.nn.GroupNorm": {"num_groups": 1, "num_channels": 2},
    "torch.nn.BatchNorm1d": {"num_features": 2, "momentum": 0.1},
    "torch.nn.Bilinear": {"in1_features": 2, "in2_features": 2, "out_features": 2},
    "torch.nn.PReLU": {"num_parameters": 2},
    "torch.nn.Upsample": {"size": 2, "scale_factor": None, "mode": "nearest"},
    "torch.nn.Unflatten": {"dim": 1, "unflattened_size": {"tuple": [2, 2]}},
    "torch.nn.ZeroPad3d": {"padding": 1},
    "torch.nn.Fold": {"output_size": 2, "kernel_size": 1},
    "torch.nn.Dropout": {"p": 0.5},
    "archlearn.TriState": {
        "n_channels": 2, "width": "learnt", "depth": "learnt", "dim": 1,
        "activation": {"dict": [["kind", "torch.nn.ReLU"], ["arguments", {"dict": []}]]},
    },
    "archlearn.LocalResponse": {"size": 2, "alpha": 0.1, "beta": 0.7, "k": 1.0},
}  # fmt: skip


@family
def hostile_layer_arguments(random: SizedRandom) -> File:
    kind = random.choice(list(_LAYERS))
    arguments = dict(_LAYERS[kind])
    for _ in range(random.randint(1, 2)):
        arguments[random.choice(list(arguments))] = draw_number(random)
    tensors = [tensor("m.weight", [2, 2])] if random.random() < 0.5 else []
    many = [tensor(f"t{i}", [0]) for i in range(30)]
    return build_model(describe(modules=[module("m", kind, **arguments)], tensors=tensors + many))


@family
def hostile_call_arguments(random: SizedRandom) -> File:
    values = [draw_number(random) for _ in range(3)]
    target = random.choice([
        "operator.pow", "operator.mul", "operator.mod", "operator.getitem", "operator.add",
        "torch.zeros", "torch.einsum", "F.pad", "math.prod", "operator.invert", "operator.setitem",
        "archlearn.check_argument",
    ])  # fmt: skip
    operands = random.choice([values, values[:2], values[:1], [10, 10**9], ["%0999999999d", 1],
                              ["a", 10**10], [{"tuple": [1]}, 10**10]])  # fmt: skip
    calls = [call("c", "call_function", target, operands)]
    if random.random() < 0.3:
        calls[0]["kwargs"] = {"out": values[0]}
    made = graph(*calls, output="c")
    if random.random() < 0.3:
        made[0]["args"] = values[:1]
    return build_model(describe(evaluation=made))


@family
def hostile_attributes(random: SizedRandom) -> File:
    kind = random.choice([
        "torch.nn.TransformerEncoderLayer", "torch.nn.TransformerEncoder", "torch.nn.Transformer",
        "archlearn.NarrowedLocalResponseNorm",
    ])  # fmt: skip
    name = random.choice([
        "named_modules", "train", "forward", "_modules", "__class__", "__dict__", "parameters",
        "add_module", "register_parameter", "register_buffer", "modules", "children", "training",
        "_archlearn_opaque", "__getattr__", "named_parameters", "apply", "_parameters", "layers",
        "activation", "__setattr__", "named_buffers", "get_submodule", "kept", "__call__", CODE,
    ])  # fmt: skip
    parts = [module("m", kind, **{name: draw_number(random)}), module("m.inner")]
    tensors = [tensor("m.t", [1])]
    made = graph(call("c", "call_module", "m", [{"node": "x"}]), output="c")
    return build_model(describe(modules=parts, tensors=tensors, evaluation=made))


@family
def hostile_graphs(random: SizedRandom) -> File:
    calls = [relu("a"), relu("b", {"node": "a"}), call("g", "get_attr", "t")]
    for _ in range(random.randint(1, 3)):
        entry = random.choice(calls)
        key = random.choice(list(entry))
        entry[key] = random.choice([
            "x", "a", "output", "placeholder", "get_attr", "call_module", "call_method", [], {},
            None, [{"node": "b"}], [{"node": "output"}], {"a": {"node": "g"}}, "*args", 3,
            "**kwargs",
        ])  # fmt: skip
    random.shuffle(calls)
    made = graph(*calls, output=random.choice("abgx"))
    if random.random() < 0.3:
        random.shuffle(made)
    return build_model(describe(evaluation=made, tensors=[tensor("t", [1])]))


@family
def hostile_certificates(random: SizedRandom) -> File:
    fields: Json = {
        "difference": 0.0, "difference_float64": 0.0, "dtype": "float32", "n_inputs": 2,
        "tolerance": 1e-3, "tolerance_float64": 1e-8,
    }  # fmt: skip
    fields[random.choice(list(fields))] = draw_number(random)
    text = json.dumps({"dict": [[key, value] for key, value in fields.items()]})
    levels = random.draw_size(10, 100_000)
    others = [nest(levels), "[" + "[]," * levels + "[]]", "", "{}", "1" * 5000, CODE, text]
    return build_model(describe(), certificate=random.choice([text, *others]))


@family
def hostile_headers(random: SizedRandom) -> File:
    made = build_model(describe(tensors=[tensor("t", [2]), tensor("u", [2])]))
    (length,) = struct.unpack("<Q", made.content[:8])
    header = json.loads(made.content[8 : 8 + length])
    entry = header[random.choice(["t", "u", "__metadata__"])]
    key = random.choice(list(entry))
    entry[key] = random.choice([
        [8, 0], [0, 16], [0, 2**62], [2**63, 2**64], [4, 12], [], [0], [2**64, 0], ["0", "8"],
        "F64", "F8_E4M3", "F4", "Q4", "I64", "", "1" * 50, "-1", "9" * 12, 3, None, {}, [0.5],
        [2**61], [2**32, 2**32], "²", "٣",
    ])  # fmt: skip
    text = json.dumps(header).encode()
    length = random.choice([len(text)] * 4 + [2**63, len(text) + 8, 0, len(text) - 1])
    return File("model", made.name, struct.pack("<Q", length) + text + bytes(16))


@family
def long_headers(random: SizedRandom) -> File:
    metadata = {"format": random.choice(["archlearn", "pt"]), "version": "1", "description": "{}"}
    n = random.draw_size(1_000, 30_000_000, limits.MAX_HEADER_BYTES)
    if random.random() < 0.5:
        metadata |= {f"k{i}": "" for i in range(n // 20)}
    else:
        metadata["padding"] = "a" * n
    name = random.choice(["net.safetensors", "state.safetensors"])
    kind: Kind = "model" if name == "net.safetensors" else "weights"
    return File(kind, name, build_safetensors([], metadata))


@family
def hostile_weights_in_safetensors(random: SizedRandom) -> File:
    shape = random.choice([[0, 2**62, 2**62], [0] * 100, [0, 2**63], [2], [1] * 70, [0, 2**48, 2]])
    n_bytes = 0 if 0 in shape else 4 * int(np.prod(shape))
    tensors = [(draw_code(random).replace("\ud800", ""), "F32", shape, n_bytes)]
    return File("weights", "state.safetensors", build_safetensors(tensors, {}))


class _Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return random_callable(), (CODE,)


def random_callable() -> object:
    """Return what a pickle is to call."""
    return eval


@family
def pickles_that_call(random: SizedRandom) -> File:
    whole = {"a": torch.ones(2), random.choice(["b", "state_dict", "model"]): _Hostile()}
    if random.random() < 0.3:
        return File("weights", "state.pt", pickle.dumps(whole, random.randint(0, 5)))
    file = io.BytesIO()
    torch.save(whole, file, _use_new_zipfile_serialization=random.random() < 0.6)
    return File("weights", "state.pth", file.getvalue())


@family
def archives_that_explode(random: SizedRandom) -> File:
    plain = io.BytesIO()
    torch.save({"a": torch.zeros(random.draw_size(10_000, 2_000_000))}, plain)
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(plain) as old,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
    return File("weights", "state.pth", packed.getvalue())


@family
def pickles_of_odd_values(random: SizedRandom) -> File:
    one = torch.zeros(1)
    odd: list[object] = [
        one.expand(2**20, 2**20), torch.zeros(0, 2**30), one.to_sparse(), one.to(torch.complex64),
        3, None, "text", [one], {"a": one}, {"a": {"b": one}}, (one,), torch.Size([2**40]),
        {1: one}, torch.empty(3, device="meta"), b"x",
        torch.quantize_per_tensor(one, 1.0, 0, torch.qint8),
    ]  # fmt: skip
    whole = {random.choice(["a", "state_dict", "model", 3]): random.choice(odd)}
    file = io.BytesIO()
    torch.save(random.choice([whole, whole, random.choice(odd)]), file)
    return File("weights", "state.pth", file.getvalue())


def build_checkpoint(position: str, shape: Sequence[int] = (1,)) -> File:
    """Return a checkpoint whose digest fits wherever the position is JSON."""
    tensors = {"model/a": torch.zeros(1)}
    try:
        digest = checkpoint._digest(tensors, json.loads(position))
    except (ValueError, RecursionError):
        digest = ""
    metadata = {"format": "archlearn-checkpoint-1", "position": position, "digest": digest}
    n_bytes = 0 if 0 in shape else 4
    body = build_safetensors([("model/a", "F32", shape, n_bytes)], metadata)
    return File("checkpoint", checkpoint.LATEST, body)


@family
def hostile_checkpoints(random: SizedRandom) -> File:
    position: Json = {"epoch": 1, "step": 1, "loss_sum": 0.0, "data": "", "command": "archlearn"}
    position[random.choice([*position, "more"])] = random.choice([
        None, -1, 2**80, 10**4000, "1", [], {}, True, 1.5, CODE, "a" * 100_000, float("nan"),
    ])  # fmt: skip
    levels = random.draw_size(10, 500_000)
    texts = [nest(levels), '{"a":' * levels + "1" + "}" * levels, "[" + "[]," * levels + "[]]"]
    text = random.choice([json.dumps(position)] * 3 + [*texts, "", CODE, "1" * 5000])
    shape = random.choice([[1], [1], [0, 2**62, 2**62], [1] * 100])
    return build_checkpoint(text, shape)


@family
def hostile_settings(random: SizedRandom) -> File:
    levels = random.draw_size(10, 200_000)
    texts: list[bytes] = [
        b"seed = 1\n# \xff\xfe", b"\x80", "seed = 1".encode("utf-16"), b"seed = " + b"1" * 5000,
        b"a = " + b"[" * levels + b"]" * levels, b"a" + b".a" * levels + b" = 1", b"\0" * levels,
        b"seed = [1]", b"seed = 1e999", b"model = 3", b"gates = 3", b"[gates]\nlearn = [[]]",
        b'model = "' + b"a" * levels * 10 + b'"',
        b"a = " + b"{a = " * levels + b"1" + b"}" * levels,
        b"".join(b"[a%d]\n" % i for i in range(min(levels, 50_000))), b"epochs = 1" + b"0" * 4000,
        b"[training]\nepochs = " + b"9" * 4000, b"seed = 2020-01-01", b"\xef\xbb\xbfseed = 1",
    ]  # fmt: skip
    return File("settings", "config.toml", random.choice(texts))
