"""A truncated, foreign, later or crafted file is refused before anything is built."""

import json
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor, nn

import archlearn as al

Json = dict[str, Any]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.lstm = nn.LSTM(4, 2)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(torch.relu(self.layer(x)).view(x.shape[0], -1))
        return y * self.scale


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file as `save` writes it."""
    al.save(Net(), tmp_path / "net.safetensors")
    return tmp_path / "net.safetensors"


def rewrite(path: Path, edit: Callable[[Json, dict[str, Tensor]], None], **metadata: str) -> None:
    """Write the file again with its description or its tensors changed."""
    with safe_open(path, framework="pt") as handle:
        kept = handle.metadata()
        tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    description = json.loads(kept["description"])
    edit(description, tensors)
    kept |= {"description": json.dumps(description)} | metadata
    safetensors.torch.save_file(tensors, path, kept)


def node(description: Json, operation: str) -> Json:
    return next(n for n in description["evaluation"] if n["operation"] == operation)


def module(description: Json, name: str) -> Json:
    return next(m for m in description["modules"] if m["name"] == name)


def tensor(description: Json, name: str) -> Json:
    return next(t for t in description["tensors"] if t["name"] == name)


def test_the_control_file_loads_when_nothing_is_changed(path: Path) -> None:
    rewrite(path, lambda description, tensors: None)
    assert al.load(path)(torch.ones(5, 3)).shape == (5, 2)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(al.FileError, match=r"gone.safetensors'.*there is no such file"):
        al.load(tmp_path / "gone.safetensors")


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_truncated_file_is_refused(path: Path, kept: int) -> None:
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(al.FileError, match=r"truncated, or not a safetensors file .*; copy it"):
        al.load(path)


def test_a_pickle_is_refused_and_not_unpickled(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2)}, tmp_path / "net.pt")
    with pytest.raises(al.FileError, match="not a safetensors file"):
        al.load(tmp_path / "net.pt")


def test_a_foreign_safetensors_file_is_refused(tmp_path: Path) -> None:
    safetensors.torch.save_file({"weight": torch.ones(2)}, tmp_path / "net.safetensors")
    with pytest.raises(al.FileError, match=r"archlearn.save did not write it.*with safetensors"):
        al.load(tmp_path / "net.safetensors")


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("2", "version 2, and this archlearn reads up to 1; install a later archlearn"),
        ("x", "format version is 'x', which is not a number"),
        ("²", "which is not a number"),
    ],
)
def test_another_format_version_is_refused(path: Path, version: str, message: str) -> None:
    rewrite(path, lambda description, tensors: None, version=version)
    with pytest.raises(al.FileError, match=message):
        al.load(path)


def test_huge_shapes_in_the_header_allocate_nothing(path: Path) -> None:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header["scale"]["shape"] = [10**6, 10**6]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    with pytest.raises(al.FileError, match="truncated, or not a safetensors file"):
        al.load(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "its description is not JSON"),
        ("[" * 100_000 + "]" * 100_000, "nested too deep"),
        ("[]", r"has \[\] where a dict belongs"),
        ("{}", "Description lacks or adds"),
        ('{"training": 1, "training": 2}', "names a key twice"),
        ('{"training": NaN}', "holds the number NaN"),
    ],
)
def test_a_description_that_is_none_is_refused(path: Path, text: str, message: str) -> None:
    rewrite(path, lambda description, tensors: None, description=text)
    with pytest.raises(al.FileError, match=message):
        al.load(path)


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


CRAFTED: dict[str, tuple[Callable[[Json], Any], str]] = {
    "function": (
        lambda d: node(d, "call_function").update(target="os.system"),
        "calls 'os.system', which is not an operation that a file may name",
    ),
    "function that is no name": (
        lambda d: node(d, "call_function").update(target=["torch.relu"]),
        "which is not an operation",
    ),
    "method": (
        lambda d: node(d, "call_method").update(target="__reduce__"),
        "call_method 'view' has the target '__reduce__', which is not one that a file may name",
    ),
    "method of a text": (
        lambda d: node(d, "call_method").update(args=["{0.__class__}"]),
        "call_method 'view'",
    ),
    "private attribute": (
        lambda d: next(n for n in d["evaluation"] if n["target"] == "getattr")["args"].__setitem__(
            1, "__class__"
        ),
        "reads the attribute .*__class__.*not allowed",
    ),
    "attribute of the model": (
        lambda d: node(d, "get_attr").update(target="__class__"),
        "get_attr 'scale' has the target '__class__'",
    ),
    "module that is not there": (
        lambda d: node(d, "call_module").update(target="layer.weight"),
        "call_module 'layer' has the target 'layer.weight'",
    ),
    "name with code": (
        lambda d: node(d, "call_module").update(name="x; import os"),
        "named 'x; import os', which is not an identifier",
    ),
    "name that is a keyword": (
        lambda d: node(d, "call_module").update(name="lambda"),
        "not an identifier",
    ),
    "input with code": (
        lambda d: node(d, "placeholder").update(target="x=__import__('os')"),
        "placeholder 'x' has the target",
    ),
    "keyword with code": (
        lambda d: node(d, "call_function").update(kwargs={"a)\nimport os": 1}),
        "keyword is named .*not an identifier",
    ),
    "class with code": (lambda d: d.update(class_name="A: pass\nimport os"), "class is named"),
    "cycle": (
        lambda d: node(d, "call_module").update(args=[{"node": "relu"}]),
        "the call 'layer' uses 'relu' before it is computed",
    ),
    "same name twice": (
        lambda d: d["evaluation"].insert(1, dict(d["evaluation"][0])),
        "two calls are named 'x'",
    ),
    "late input": (
        lambda d: d["evaluation"].insert(-1, {**d["evaluation"][0], "name": "late"}),
        "the input 'late' comes after the first call",
    ),
    "no output": (lambda d: d["evaluation"].pop(), "has no output"),
    "empty graph": (lambda d: d["evaluation"].clear(), "has no output"),
    "output in the middle": (
        lambda d: d["evaluation"].insert(1, {**d["evaluation"][-1], "args": [1]}),
        "goes on after the output",
    ),
    "calls that make no code": (
        lambda d: next(n for n in d["evaluation"] if n["target"] == "operator.getitem").update(
            args=[-2, 0]
        ),
        "its calls make no function .*not subscriptable",
    ),
    "nested argument": (
        lambda d: node(d, "call_module").update(args=[deep(100)]),
        "nested more than 32 deep",
    ),
    "unknown argument": (
        lambda d: node(d, "call_module").update(args=[{"pickle": "gASV"}]),
        "of no known kind",
    ),
    "device": (
        lambda d: node(d, "call_module").update(args=[{"device": "cpu') or exit('"}]),
        "of no known kind",
    ),
    "named tuple with code": (
        lambda d: node(d, "call_function").update(
            target={"namedtuple": "T", "fields": ["a, b=__import__('os')"]}
        ),
        "which is not one",
    ),
    "layer": (
        lambda d: module(d, "layer").update(kind="subprocess.Popen"),
        "in the layer 'layer': .*'subprocess.Popen', which is not one that a file may name",
    ),
    "huge layer": (
        lambda d: module(d, "layer")["arguments"].update(in_features=10**12),
        "argument 'in_features' of a torch.nn.Linear is 1000000000000, more than any layer has",
    ),
    "large layer": (
        lambda d: module(d, "layer")["arguments"].update(in_features=10**9, out_features=10**9),
        r"'layer.weight' has shape \[4, 3\], but its layer takes \[1000000000, 1000000000\]",
    ),
    "layer of text": (
        lambda d: module(d, "layer")["arguments"].update(in_features="many"),
        "in the layer 'layer': the layer torch.nn.Linear does not take the arguments",
    ),
    "layer with endless layers": (
        lambda d: module(d, "lstm")["arguments"].update(num_layers=10**9),
        "'num_layers' is 1000000000, but the file has 7 tensors",
    ),
    "layer argument": (
        lambda d: module(d, "layer")["arguments"].update(device="cuda"),
        "torch.nn.Linear has no argument 'device'",
    ),
    "many layer arguments": (
        lambda d: module(d, "layer")["arguments"].update(in_features=[1] * 99),
        "has 99 items, more than any has",
    ),
    "layer norm of nothing": (
        lambda d: module(d, "layer").update(parametrisations={"nothing": {"norm": "weight_norm"}}),
        "normalises 'nothing', which the layer does not have",
    ),
    "unknown layer norm": (
        lambda d: module(d, "layer").update(parametrisations={"weight": {"norm": "system"}}),
        "which is not a norm",
    ),
    "module path with code": (
        lambda d: module(d, "layer").update(name='a") or exit("'),
        "which is not a path of names",
    ),
    "private module path": (
        lambda d: module(d, "layer").update(name="__class__"),
        "not a path of names",
    ),
    "module in a layer": (
        lambda d: d["modules"].append({**module(d, "layer"), "name": "layer.more"}),
        "is inside 'layer', which holds none",
    ),
    "module over a method": (
        lambda d: module(d, "layer").update(name="forward"),
        "that name is taken",
    ),
    "shared module from nowhere": (
        lambda d: d["shared_modules"].update(again="nowhere"),
        "shares 'nowhere', found nowhere",
    ),
    "shared tensor from nowhere": (
        lambda d: d["shared_tensors"].update(again="nowhere"),
        "shares 'nowhere', found nowhere",
    ),
    "tensor of another shape": (
        lambda d: module(d, "layer")["arguments"].update(out_features=5),
        r"'layer.weight' has shape \[4, 3\], but its layer takes \[5, 3\]",
    ),
    "tensor of another role": (
        lambda d: tensor(d, "layer.weight").update(role="buffer"),
        "'layer.weight' is a buffer, but its layer takes another kind",
    ),
    "tensor that the layer lacks": (
        lambda d: module(d, "layer")["arguments"].update(bias=False),
        "'layer.bias', for which the layer has no place",
    ),
    "tensor described otherwise": (
        lambda d: tensor(d, "scale").update(shape=[10**6, 10**6]),
        r"'scale' is float32 of shape \[2\], but is described as 'float32' of shape \[1000000",
    ),
    "tensor of another dtype": (
        lambda d: tensor(d, "scale").update(dtype="float64"),
        "described as 'float64'",
    ),
    "tensor not described": (lambda d: d["tensors"].pop(0), "description differ in"),
    "negative shape": (lambda d: tensor(d, "scale").update(shape=[-2]), "where a size belongs"),
    "unknown role": (lambda d: tensor(d, "scale").update(role="code"), "'code' where one of"),
}


@pytest.mark.parametrize("case", CRAFTED)
def test_a_crafted_description_is_refused(path: Path, case: str) -> None:
    edit, message = CRAFTED[case]
    rewrite(path, lambda description, tensors: edit(description))
    with pytest.raises(al.FileError, match=message) as raised:
        al.load(path)
    assert str(raised.value).startswith(f"cannot load {str(path)!r}: ")


def test_missing_and_extra_tensors_are_refused(path: Path) -> None:
    rewrite(path, lambda description, tensors: tensors.update(more=torch.ones(1)))
    with pytest.raises(al.FileError, match=r"description differ in \['more'\]"):
        al.load(path)
    rewrite(path, lambda description, tensors: [tensors.pop("more"), tensors.pop("scale")])
    with pytest.raises(al.FileError, match=r"description differ in \['scale'\]"):
        al.load(path)


def test_a_layer_whose_tensors_are_nowhere_is_refused(path: Path) -> None:
    def edit(description: Json, tensors: dict[str, Tensor]) -> None:
        tensors.pop("layer.bias")
        description["tensors"].remove(tensor(description, "layer.bias"))

    rewrite(path, edit)
    with pytest.raises(al.FileError, match=r"lacks the tensor 'layer.bias', which its layer needs"):
        al.load(path)


def test_refusing_a_large_layer_takes_no_memory(path: Path) -> None:
    rewrite(path, lambda d, _: module(d, "layer")["arguments"].update(in_features=2**31 - 1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(al.FileError, match="its layer takes"):
        al.load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB
