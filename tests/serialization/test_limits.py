"""Whatever a file describes, loading it takes time and memory in proportion to the file."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import archlearn as al
from benchmarks.hostile_files import (
    File,
    build_model,
    build_safetensors,
    call,
    describe,
    graph,
    module,
    nest,
    relu,
    tensor,
)


def nested(levels: int) -> File:
    """Modules that are shared at every level, so that there are 2 ** levels names."""
    names = [".".join("a" for _ in range(level + 1)) for level in range(levels)]
    shared = {f"{name}b": name for name in reversed(names)}
    return build_model(describe(modules=[module(name) for name in names], shared_modules=shared))


def circle() -> File:
    modules = [module("a"), module("b")]
    return build_model(describe(modules=modules, shared_modules={"a.b": "b", "b.a": "a"}))


def chain(n: int) -> File:
    modules = [module(f"m{i}") for i in range(n)]
    shared = {f"m{i}.inner": f"m{i + 1}" for i in range(n - 1)}
    return build_model(describe(modules=modules, shared_modules=shared))


def inputs(n: int) -> File:
    given = [call(f"x{i}", "placeholder", f"x{i}") for i in range(n)]
    return build_model(describe(evaluation=[*given, graph(output="x0")[-1]]))


def shaped(*shape: int) -> File:
    return build_model(describe(tensors=[tensor("t", shape)]))


def spectral(iterations: int) -> File:
    layer = module("m", "torch.nn.Linear", in_features=2, out_features=2, bias=False)
    norm = {"norm": "spectral_norm", "n_power_iterations": iterations}
    tensors = [tensor("m.parametrizations.weight.original", [2, 2])]
    tensors += [tensor(f"m.parametrizations.weight.0.{n}", [2], "buffer") for n in ("_u", "_v")]
    return build_model(
        describe(modules=[layer | {"parametrisations": {"weight": norm}}], tensors=tensors)
    )


def recurrent(n: int, n_layers: int) -> File:
    sizes = {"input_size": 1, "hidden_size": 1, "num_layers": n_layers}
    modules = [module(f"m{i}", "torch.nn.LSTM", **sizes) for i in range(n)]
    tensors = [tensor(f"t{i}", [0]) for i in range(n_layers)]
    return build_model(describe(modules=modules, tensors=tensors))


def text(description: str) -> File:
    return build_model(description)


def long_header(n: int) -> File:
    body = build_safetensors([], {"format": "archlearn", "padding": "a" * n})
    return File("model", "net.safetensors", body)


REFUSED: dict[str, tuple[Callable[[], File], str]] = {
    "modules shared at every level": (
        lambda: nested(40),
        r"names of modules, shared ones included, more than the 100,000 .*\(MAX_MODULE_NAMES",
    ),
    "modules inside themselves": (circle, "a module is inside itself"),
    "chain of shared modules": (lambda: chain(5000), "MAX_MODULE_DEPTH in archlearn.serialization"),
    "too many inputs": (
        lambda: inputs(30_000),
        r"30,001 calls in a graph, more than the 20,000 that are read \(MAX_CALLS",
    ),
    "too many modules": (
        lambda: build_model(describe(modules=[module(f"m{i}") for i in range(20_001)])),
        "20,001 modules, .*MAX_MODULES",
    ),
    "too many tensors": (
        lambda: build_model(describe(tensors=[tensor(f"t{i}", [0]) for i in range(20_001)])),
        "20,001 tensors, .*MAX_TENSORS",
    ),
    "too many values": (
        lambda: text("[" + "[]," * 1_000_000 + "[]]"),
        "2,000,002 values in its description, .*MAX_VALUES",
    ),
    "header": (lambda: long_header(17 * 2**20), "bytes of header, .*MAX_HEADER_BYTES"),
    "sizes beside a zero": (lambda: shaped(0, 2**62, 2**62), "in a tensor, .*MAX_ELEMENTS"),
    "size of a larger type": (lambda: shaped(0, 2**63), "where a size belongs"),
    "dimensions": (lambda: shaped(*[1] * 100), "100 dimensions in a tensor, .*MAX_DIMENSIONS"),
    "long name": (
        lambda: build_model(describe(evaluation=graph(relu("x_" + "9" * 5000)))),
        "5,002 characters in a name, .*MAX_NAME_LENGTH",
    ),
    "recurrent layers": (lambda: recurrent(200, 200), "'num_layers' is 200, but .* 200 tensors"),
    "deep recurrent layer": (
        lambda: recurrent(1, 300),
        "300 layers in one recurrent module, .*MAX_RECURRENT_LAYERS",
    ),
    "keywords": (
        lambda: build_model(
            describe(evaluation=graph(relu("r") | {"kwargs": {f"a{i}": 1 for i in range(50_000)}}))
        ),
        "50,000 keywords in a call, or fields in a named tuple, .*MAX_KEYWORDS",
    ),
    "fields": (
        lambda: build_model(
            describe(
                evaluation=graph(
                    relu("r")
                    | {"target": {"namedtuple": "T", "fields": [f"a{i}" for i in range(300)]}}
                )
            )
        ),
        "300 keywords in a call, or fields in a named tuple, .*MAX_KEYWORDS",
    ),
    "layers without tensors": (
        lambda: build_model(
            describe(modules=[module("m", "torch.nn.Linear", in_features=1, out_features=1)])
        ),
        "layers up to 'm' need 2 tensors, but it describes 0",
    ),
    "nested description": (lambda: text(nest(100_000)), "nested too deep"),
    "attribute that is a method": (
        lambda: build_model(
            describe(modules=[module("m", "torch.nn.TransformerEncoder", named_modules=3)])
        ),
        "sets the attribute 'named_modules', which is not allowed",
    ),
    "starred input that hides torch": (
        lambda: build_model(
            describe(evaluation=[call("x", "placeholder", "*torch"), graph()[-1]])
        ),
        r"target '\*torch', which is not one that a file may name",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_beyond_a_limit_is_refused_by_the_name_of_the_limit(
    tmp_path: Path, case: str
) -> None:
    make, message = REFUSED[case]
    path = tmp_path / "net.safetensors"
    path.write_bytes(make().content)
    with pytest.raises(al.FileError, match=message):
        al.load(path)


READ: dict[str, Callable[[], File]] = {
    "modules shared at every level": lambda: nested(15),
    "many inputs": lambda: inputs(19_999),
    "spectral norm with endless iterations": lambda: spectral(10**12),
    "empty tensor": lambda: shaped(0, 2**24, 2**24),
}


@pytest.mark.parametrize("case", READ)
def test_a_file_within_the_limits_is_read(tmp_path: Path, case: str) -> None:
    path = tmp_path / "net.safetensors"
    path.write_bytes(READ[case]().content)
    assert isinstance(al.load(path), nn.Module)


@pytest.mark.parametrize("value", ["0", True, None, [1]])
def test_a_certificate_with_a_field_of_another_type_is_refused(
    tmp_path: Path, value: object
) -> None:
    fields = {
        "difference": 0.0, "difference_float64": value, "dtype": "float32", "n_inputs": 2,
        "tolerance": 1, "tolerance_float64": 1e-8,
    }  # fmt: skip
    path = tmp_path / "net.safetensors"
    certificate = json.dumps({"dict": [list(item) for item in fields.items()]})
    path.write_bytes(build_model(describe(), certificate=certificate).content)
    with pytest.raises(al.FileError, match="where a float belongs"):
        al.load(path)


class Shared(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.second = inner, inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x)


def test_save_holds_a_model_to_the_limits_of_load(tmp_path: Path) -> None:
    net: nn.Module = nn.Linear(2, 2)
    for _ in range(3):
        net = Shared(net)
    path = tmp_path / "net.safetensors"
    al.save(net, path, torch.ones(1, 2))
    assert len(list(al.load(path).named_modules(remove_duplicate=False))) == 15
    long = nn.Sequential()
    long.add_module("a" * (al.serialization.limits.MAX_NAME_LENGTH.most + 1), nn.Identity())
    with pytest.raises(al.FileError, match=r"cannot save Sequential .*1,001 characters in a name"):
        al.save(long, tmp_path / "long.safetensors", torch.ones(1))
    assert not (tmp_path / "long.safetensors").exists()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 2))
        self.register_buffer("mask", torch.ones(2, dtype=torch.bool))
        self.register_buffer("small", torch.ones(2, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> dict[str, object]:
        y = self.head(self.body(x).mean((2, 3)))
        return {"y": y * self.mask, "z": (y + self.small, y)}


def save_both(folder: Path) -> list[bytes]:
    """Save a model and its compact form; return the bytes of both files."""
    torch.manual_seed(0)
    x = torch.ones(2, 3, 8, 8)
    al.save(Net().eval(), folder / "plain.safetensors", x)
    al.save(al.compact(al.add_gates(Net().eval(), x)), folder / "compact.safetensors")
    return [path.read_bytes() for path in sorted(folder.iterdir())]


@pytest.mark.slow
def test_the_same_model_gives_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    here = save_both(tmp_path / "here")
    assert here == save_both(tmp_path / "here")
    script = (
        "from pathlib import Path; from tests.serialization.test_limits import save_both; "
        f"save_both(Path({str(tmp_path / 'there')!r}))"
    )
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    paths = os.pathsep.join(sys.path)
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
    assert here == [path.read_bytes() for path in sorted((tmp_path / "there").iterdir())]


def test_saving_again_what_was_loaded_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    al.save(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), first)
    al.save(al.load(first), second)
    assert first.read_bytes() == second.read_bytes()


def test_a_foreign_name_of_torchvision_imports_nothing(tmp_path: Path) -> None:
    made = describe(evaluation=graph(call("c", "call_function", "torchvision.os.system", ["ls"])))
    path = tmp_path / "net.safetensors"
    path.write_bytes(build_model(made).content)
    script = (
        "import sys, archlearn as al\n"
        f"try: al.load({str(path)!r})\n"
        "except al.FileError: sys.exit(3 if 'torchvision' in sys.modules else 0)\n"
        "sys.exit(4)"
    )
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", script], check=False, env=paths).returncode == 0


def test_the_documentation_has_every_limit() -> None:
    page = (Path(__file__).parents[2] / "docs" / "surgery.md").read_text()
    known = [
        value
        for value in vars(al.serialization.limits).values()
        if isinstance(value, al.serialization.limits.Limit)
    ]
    assert len(known) == page.count("| `MAX_")
    for limit in known:
        assert getattr(al.serialization.limits, limit.name) is limit
        assert f"| `{limit.name}` | {limit.most:,} |" in page
