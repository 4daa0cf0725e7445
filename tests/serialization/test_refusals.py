"""A truncated, foreign or later file is refused before anything is built."""

import json
import resource
import struct
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

import archlearn as al
from tests.serialization.files import Json, Net, module, rewrite, tensor


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file as `save` writes it."""
    al.save(Net(), tmp_path / "net.safetensors")
    return tmp_path / "net.safetensors"


def test_the_control_file_loads_when_nothing_is_changed(path: Path) -> None:
    rewrite(path, lambda description, tensors: None)
    assert al.load(path)(torch.ones(5, 3)).shape == (5, 2)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(al.FileError, match=r"gone.safetensors'.*there is no such file"):
        al.load(tmp_path / "gone.safetensors")
    with pytest.raises(al.FileError, match=r"it is a folder; give a path that save wrote"):
        al.load(tmp_path)


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", r"has \[1\] where a dict belongs"),
        ('{"dict": [["difference", 0.0]]}', "its Certificate lacks or adds"),
        ('{"dict": [[1, 0.0]]}', "its Certificate lacks or adds"),
        ('{"node": "x"}', "it holds the result 'x' of a call where a plain value belongs"),
        ("nonsense", "is not JSON"),
    ],
)
def test_a_crafted_certificate_is_refused(path: Path, text: str, message: str) -> None:
    rewrite(path, lambda description, tensors: None, certificate=text)
    with pytest.raises(al.FileError, match=message):
        al.load(path)
