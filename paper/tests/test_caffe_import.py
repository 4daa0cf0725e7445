"""Weights of Caffe: what is read is what was written, and nothing else is believed."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import archlearn as al
from archlearn_cli.models.pretrained import IMAGENET_MEAN, IMAGENET_STD
from archlearn_paper.caffe_import import as_state_dict, read_caffemodel
from archlearn_paper.caffenet import CaffeNet
from paper.tests.caffe_files import (
    Form,
    as_caffe_has_them,
    blob,
    content,
    layer,
    network,
    varint,
)

SMALL: dict[str, Any] = {"side": 67, "n_outputs": 5, "factor": 1 / 48}


def caffenet(seed: int) -> CaffeNet:
    torch.manual_seed(seed)
    net = CaffeNet(**SMALL).eval()
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.1)
    return net


def write(path: Path, body: bytes) -> Path:
    path.write_bytes(body)
    return path


@pytest.mark.parametrize("form", ["old", "new"])
def test_a_converted_network_computes_what_caffes_does(tmp_path: Path, form: Form) -> None:
    net = caffenet(0)
    layers = as_caffe_has_them(net.state_dict(), "conv1")
    path, out = write(tmp_path / "net.caffemodel", network(layers, form)), tmp_path / "net.st"
    subprocess.run([sys.executable, "-m", "archlearn_paper.caffe_import", path, out], check=True)
    made = caffenet(1)
    made.load_state_dict(safetensors.torch.load_file(out))
    raw = torch.randint(0, 256, (2, 3, 67, 67), dtype=torch.uint8)
    mean, std = (torch.tensor(v).reshape(3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    ours = (raw / 255 - mean) / std
    # What Caffe itself feeds: blue, green, red from 0 to 255, less its mean of each colour.
    caffes = (
        raw.flip(1).float()
        - torch.tensor([104.00698793, 116.66876762, 122.67891434])[:, None, None]
    )
    first = nn.functional.conv2d(caffes, layers["conv1"][0], layers["conv1"][1], stride=4)
    with torch.no_grad():
        torch.testing.assert_close(made.conv1(ours), first, rtol=1e-4, atol=1e-2)
    assert torch.equal(made.fc7.weight, net.fc7.weight)


def test_blobs_in_double_precision_and_in_pieces_are_read(tmp_path: Path) -> None:
    values = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    body = network({"fc": [values]}, "new")
    assert torch.equal(read_caffemodel(write(tmp_path / "a.caffemodel", body))["fc"][0], values)
    one, two = torch.tensor([1.0]), torch.tensor([2.0])
    shape = content(7, content(1, b"\x02"))
    pieces = shape + blob(one, "new").partition(content(7, content(1, b"\x01")))[2]
    pieces += blob(two, "new").partition(content(7, content(1, b"\x01")))[2]
    body = layer("fc", [pieces], "new")
    found = read_caffemodel(write(tmp_path / "b.caffemodel", body))["fc"][0]
    assert found.tolist() == [1.0, 2.0]


def test_every_truncated_file_is_refused_or_lacks_layers(tmp_path: Path) -> None:
    body = network({"fc": [torch.ones(2, 3), torch.ones(2)]}, "old")
    path = tmp_path / "net.caffemodel"
    whole = read_caffemodel(write(path, body))
    for length in range(len(body)):
        try:
            found = read_caffemodel(write(path, body[:length]))
        except al.FileError:
            continue
        assert found.keys() < whole.keys()


@settings(max_examples=200)
@given(body=st.binary(max_size=200))
def test_foreign_bytes_raise_nothing_but_our_error(
    tmp_path_factory: pytest.TempPathFactory, body: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "foreign.caffemodel"
    found, reason = {}, ""
    try:
        found = read_caffemodel(write(path, body))
    except al.FileError as error:
        reason = str(error)
    assert all(isinstance(blob, Tensor) for blobs in found.values() for blob in blobs)
    assert found or str(path) in reason


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "holds no layer with weights"),
        (b"hello, I am text", "no Caffe model, or truncated"),
        (b"\xff" * 30, "no Caffe model, or truncated"),
        (b"\x00\x00", "no Caffe model, or truncated"),
        (content(100, content(7, content(5, b"\0" * 6))), "no Caffe model, or truncated"),
        (layer("a", [blob(torch.ones(2), "new") + content(5, b"\0" * 4)], "new"), r"\[2\] but 3"),
        (layer("a", [blob(torch.ones(2), "new")], "new") * 2, "two layers have the name 'a'"),
    ],
)
def test_broken_files_are_refused_with_a_reason(
    tmp_path: Path, body: bytes, complaint: str
) -> None:
    with pytest.raises(al.FileError, match=complaint):
        read_caffemodel(write(tmp_path / "net.caffemodel", body))


@pytest.mark.parametrize("sizes", [(2**63, 0), (2**64 - 1, 0), (2**40, 2**40, 0)])
def test_sizes_that_no_tensor_can_have_are_refused(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    shape = content(7, content(1, b"".join(varint(size) for size in sizes)))
    with pytest.raises(al.FileError, match=r"no Caffe model, or truncated.*'a' has the shape"):
        read_caffemodel(write(tmp_path / "net.caffemodel", layer("a", [shape], "new")))


def test_layer_with_other_blobs_is_refused() -> None:
    with pytest.raises(al.FileError, match="'bn' has 3 blobs"):
        as_state_dict({"bn": (torch.ones(1),) * 3})


def test_values_that_are_not_packed_are_read(tmp_path: Path) -> None:
    weight = torch.randn(4, 3)
    body = network({"fc": [weight]}, "new", packed=False)
    read = as_state_dict(read_caffemodel(write(tmp_path / "net.caffemodel", body)))
    assert torch.equal(read["fc.weight"], weight)
