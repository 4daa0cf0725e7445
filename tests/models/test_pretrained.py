"""Weights of other programs: what is read is what was written, and nothing else is believed."""

import pickle
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import archlearn as al
from archlearn_cli.models import AlexNet, CaffeNet, build_network
from archlearn_cli.models.caffe_import import read_caffemodel
from archlearn_cli.models.pretrained import Pretrained, from_caffe, read_pretrained, with_weights
from benchmarks.hostile_files import build_safetensors
from benchmarks.torchvision_import import import_models
from tests.models.caffe_files import (
    Form,
    as_caffe_has_them,
    blob,
    content,
    layer,
    network,
    number,
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
def test_network_written_as_caffe_does_computes_the_same(tmp_path: Path, form: Form) -> None:
    net = caffenet(0)
    layers = as_caffe_has_them(net.state_dict(), "conv1")
    path = write(tmp_path / "net.caffemodel", network(layers, form))
    read = read_pretrained(path)
    assert isinstance(read, Pretrained)
    made = with_weights(caffenet(1), read, 5)
    raw = torch.randint(0, 256, (2, 3, 67, 67), dtype=torch.uint8)
    assert read.mean is not None
    assert read.std is not None
    mean, std = (torch.tensor(v).reshape(3, 1, 1) for v in (read.mean, read.std))
    ours = (raw / 255 - mean) / std
    assert torch.equal(made(ours), net(ours))
    # What Caffe itself feeds: blue, green, red from 0 to 255, less its mean of each colour.
    caffes = (
        raw.flip(1).float()
        - torch.tensor([104.00698793, 116.66876762, 122.67891434])[:, None, None]
    )
    torch.testing.assert_close(ours.flip(1), caffes, rtol=1e-5, atol=1e-3)
    first = nn.functional.conv2d(caffes, layers["conv1"][0], layers["conv1"][1], stride=4)
    torch.testing.assert_close(made.conv1(ours), first, rtol=1e-4, atol=1e-2)


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
        (b"\xff" * 30, "more than ten bytes"),
        (b"\x00\x00", "number 0"),
        (content(100, content(7, content(5, b"\0" * 6))), "6 bytes are no whole number"),
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


@pytest.mark.parametrize(
    "odd",
    [torch.ones(5).to_sparse(), torch.ones(5, dtype=torch.complex64)],
    ids=["sparse", "complex"],
)
def test_tensors_that_are_no_plain_numbers_are_refused(tmp_path: Path, odd: Tensor) -> None:
    torch.save(caffenet(0).state_dict() | {"fc8.bias": odd}, tmp_path / "a.pth")
    with pytest.raises(al.FileError, match=r"'fc8.bias' is .*plain state_dict"):
        read_pretrained(tmp_path / "a.pth")


def test_layer_with_other_blobs_is_refused() -> None:
    with pytest.raises(al.FileError, match="'bn' has 3 blobs"):
        from_caffe({"bn": (torch.ones(1),) * 3})


@pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")
def test_torchvisions_state_dict_fits_the_variant(tmp_path: Path) -> None:
    theirs = import_models().alexnet(num_classes=11).eval()
    torch.save(theirs.state_dict(), tmp_path / "alexnet.pth")
    read = read_pretrained(tmp_path / "alexnet.pth")
    assert isinstance(read, Pretrained)
    assert read.mean == (0.485, 0.456, 0.406)
    made = with_weights(AlexNet(n_outputs=11).eval(), read, 11)
    x = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert torch.equal(made(x), theirs(x))


def test_state_dict_in_safetensors_and_network_of_ours_are_told_apart(tmp_path: Path) -> None:
    net = caffenet(0)
    safetensors.torch.save_file(net.state_dict(), tmp_path / "state.safetensors")
    read = read_pretrained(tmp_path / "state.safetensors")
    assert isinstance(read, Pretrained)
    assert read.mean is None
    assert torch.equal(read.state["fc8.bias"], net.fc8.bias)
    al.save(net, tmp_path / "ours.safetensors")
    assert isinstance(read_pretrained(tmp_path / "ours.safetensors"), nn.Module)


class Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('executed')",)


def test_files_that_would_be_executed_are_refused(tmp_path: Path) -> None:
    torch.save({"a": Hostile()}, tmp_path / "a.pth")
    with pytest.raises(al.FileError, match="holds more than tensors"):
        read_pretrained(tmp_path / "a.pth")
    (tmp_path / "b.pt").write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(al.FileError, match="holds more than tensors") as refusal:
        read_pretrained(tmp_path / "b.pt")
    assert "weights_only" not in str(refusal.value), "torch's advice is to execute the file"


@pytest.mark.parametrize("name", ["a.pth", "a.safetensors", "a.caffemodel", "a.onnx"])
def test_foreign_and_missing_files_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(al.FileError, match="no such file"):
        read_pretrained(tmp_path / name)
    with pytest.raises(al.ArchlearnError):
        read_pretrained(write(tmp_path / name, b"something else entirely"))


def test_a_folder_is_answered_with_the_file_in_it(tmp_path: Path) -> None:
    with pytest.raises(al.FileError, match=r"it is a folder; name a file in it.*compact\.safete"):
        read_pretrained(tmp_path)


def test_another_number_of_classes_leaves_the_last_layer_fresh(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fresh = CaffeNet(side=67, n_outputs=9, factor=1 / 48)
    made = with_weights(fresh, Pretrained(state=caffenet(0).state_dict()), 9)
    assert torch.equal(made.fc8.weight, fresh.fc8.weight)
    assert torch.equal(made.fc7.weight, caffenet(0).fc7.weight)
    assert "fc8.bias and fc8.weight start afresh" in caplog.text


def test_weights_of_another_network_are_refused() -> None:
    state = caffenet(0).state_dict()
    with pytest.raises(
        al.InputError, match=r"Missing key.*\"features.*Unexpected key.*--model caff"
    ):
        with_weights(AlexNet(), Pretrained(state=state), 1000)
    wider = CaffeNet(side=67, n_outputs=5, factor=1 / 24)
    with pytest.raises(
        al.InputError, match=r"conv1.weight: .* shape torch.Size\(\[2, 3, 11, 11\]\)"
    ):
        with_weights(wider, Pretrained(state=state), 5)


def test_weights_without_counters_of_batches_fit(tmp_path: Path) -> None:
    net = build_network("resnet20:0.25", (3, 8, 8), 10)
    state = {k: v for k, v in net.state_dict().items() if not k.endswith("num_batches_tracked")}
    safetensors.torch.save_file(state, tmp_path / "old.safetensors")
    read = read_pretrained(tmp_path / "old.safetensors")
    assert isinstance(read, Pretrained)
    made = with_weights(build_network("resnet20:0.25", (3, 8, 8), 10), read, 10)
    assert torch.equal(made.get_parameter("layer3.2.conv2.weight"), state["layer3.2.conv2.weight"])
    del state["bn1.running_var"]
    with pytest.raises(al.InputError, match=r'Missing key.*: "bn1.running_var"\. \(choose'):
        with_weights(net, Pretrained(state=state), 10)


def test_values_that_are_not_packed_are_read(tmp_path: Path) -> None:
    weight = torch.randn(4, 3)
    body = network({"fc": [weight]}, "new", packed=False)
    read = read_pretrained(write(tmp_path / "net.caffemodel", body))
    assert isinstance(read, Pretrained)
    assert torch.equal(read.state["fc.weight"], weight)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (number(9, 0) * 250_001, r"250,001 fields, more than the 250,000 .*\(MAX_FIELDS"),
        (
            layer("a", [content(7, content(1, b"\1" * 1000))], "new"),
            "a field has more than 8 numbers",
        ),
    ],
)
def test_caffe_models_beyond_a_limit_are_refused(
    tmp_path: Path, body: bytes, complaint: str
) -> None:
    with pytest.raises(al.FileError, match=complaint):
        read_caffemodel(write(tmp_path / "net.caffemodel", body))


def test_an_archive_that_unpacks_to_more_than_its_size_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(100_000)}, tmp_path / "plain.pth")
    with (
        zipfile.ZipFile(tmp_path / "plain.pth") as old,
        zipfile.ZipFile(tmp_path / "small.pth", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
    with pytest.raises(al.FileError, match=r"bytes unpack to 40\d,\d+; write it anew"):
        read_pretrained(tmp_path / "small.pth")


def test_a_state_dict_with_an_impossible_shape_is_refused(tmp_path: Path) -> None:
    body = build_safetensors([("a", "F32", (0, 2**62, 2**62), 0)], {})
    with pytest.raises(al.FileError, match=r"cannot start from .*MAX_ELEMENTS"):
        read_pretrained(write(tmp_path / "a.safetensors", body))


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model", None])
@pytest.mark.parametrize("prefix", ["", "module.", "model.", "_orig_mod.", "module._orig_mod."])
def test_what_training_scripts_save_fits(tmp_path: Path, key: str | None, prefix: str) -> None:
    net = caffenet(0)
    state = {f"{prefix}{name}": value for name, value in net.state_dict().items()}
    whole = state if key is None else {key: state, "epoch": 3, "optimizer": {"state": {}}}
    torch.save(whole, tmp_path / "a.ckpt")
    read = read_pretrained(tmp_path / "a.ckpt")
    assert isinstance(read, Pretrained)
    made = with_weights(caffenet(1), read, 5)
    assert torch.equal(made.fc8.weight, net.fc8.weight)


class Wrapping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(2, 3)


def test_a_network_whose_parts_are_all_in_one_attribute_keeps_its_names(tmp_path: Path) -> None:
    safetensors.torch.save_file(Wrapping().state_dict(), tmp_path / "a.safetensors")
    read = read_pretrained(tmp_path / "a.safetensors")
    assert isinstance(read, Pretrained)
    made = with_weights(Wrapping(), read, 3)
    assert torch.equal(made.model.weight, read.state["weight"])


def test_missing_and_unexpected_names_are_told() -> None:
    state = {"weight": torch.ones(2, 2), **{f"more{i}": torch.ones(1) for i in range(7)}}
    message = r'Missing key\(s\) in state_dict: "bias"\. Unexpected key.*: "more0", "more1"'
    with pytest.raises(al.InputError, match=message):
        with_weights(nn.Linear(2, 2), Pretrained(state=state), 2)
