"""A crafted description is refused before anything is built, whatever in it is changed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import archlearn as al
from tests.serialization.files import Json, Net, module, node, rewrite, tensor


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file as `save` writes it."""
    al.save(Net(), tmp_path / "net.safetensors")
    return tmp_path / "net.safetensors"


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


_ROTARY = "transformers.models.{0}.modeling_{0}.{1}RotaryEmbedding"
CRAFTED: dict[str, tuple[Callable[[Json], Any], str]] = {
    "function": (
        lambda d: node(d, "call_function").update(target="os.system"),
        "calls 'os.system', which is not an operation that a file may name",
    ),
    "rotary embedding that is not there": (
        lambda d: module(d, "layer").update(
            kind="transformers.models.no.modeling_no.NoRotaryEmbedding"
        ),
        "install a version of transformers that has it",
    ),
    "class of transformers that is no rotary embedding": (
        lambda d: module(d, "layer").update(
            kind="transformers.models.bert.modeling_bert.BertModel"
        ),
        "which is not one that a file may name",
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
        r"33 levels of nested arguments, more than the 32 .*\(MAX_NESTING",
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
        "'num_layers' is 1000000000, but the file has 8 tensors",
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
    "layer norm that is no name": (
        lambda d: module(d, "layer").update(parametrisations={"weight": {"norm": {}}}),
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
    "gradient of a whole number": (
        lambda d: tensor(d, "steps").update(requires_grad=True),
        "the tensor 'steps' is 'int64' with a gradient",
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
    "container in place of a layer": (
        lambda d: module(d, "layer").update(kind="torch.nn.Sequential"),
        "in the layer 'layer': a torch.nn.Sequential takes no 'in_features'",
    ),
    "container with the tensors of a layer": (
        lambda d: module(d, "layer").update(kind="torch.nn.Sequential", arguments={}),
        "holds the tensor 'layer.weight', which neither the Sequential around it nor a call reads",
    ),
    "call of a list": (
        lambda d: module(d, "layer").update(kind="torch.nn.ModuleList", arguments={}),
        "call_module 'layer' has the target 'layer', which is not one that a file may name",
    ),
    "container with a norm": (
        lambda d: module(d, "layer").update(
            kind="container", arguments={}, parametrisations={"weight": {"norm": "weight_norm"}}
        ),
        "in the layer 'layer': a container takes no 'weight'",
    ),
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
