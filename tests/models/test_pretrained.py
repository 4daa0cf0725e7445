"""Weights of other programs: what is read is what was written, and nothing else is believed."""

import pickle
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import archlearn as al
from archlearn_cli.models import AlexNet, LeNet, build_network
from archlearn_cli.models.pretrained import read_pretrained, with_weights
from benchmarks.hostile_files import build_safetensors
from benchmarks.torchvision_import import import_models

SMALL: dict[str, Any] = {"n_channels": 3, "n_outputs": 5, "widths": (4, 6, 8)}


def lenet(seed: int) -> LeNet:
    torch.manual_seed(seed)
    net = LeNet(**SMALL).eval()
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.1)
    return net


def write(path: Path, body: bytes) -> Path:
    path.write_bytes(body)
    return path


@pytest.mark.parametrize(
    "odd",
    [torch.ones(5).to_sparse(), torch.ones(5, dtype=torch.complex64)],
    ids=["sparse", "complex"],
)
def test_tensors_that_are_no_plain_numbers_are_refused(tmp_path: Path, odd: Tensor) -> None:
    torch.save(lenet(0).state_dict() | {"fc2.bias": odd}, tmp_path / "a.pth")
    with pytest.raises(al.FileError, match=r"'fc2.bias' is .*plain state_dict"):
        read_pretrained(tmp_path / "a.pth")


@pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")
def test_torchvisions_state_dict_fits_the_variant(tmp_path: Path) -> None:
    theirs = import_models().alexnet(num_classes=11).eval()
    torch.save(theirs.state_dict(), tmp_path / "alexnet.pth")
    read = read_pretrained(tmp_path / "alexnet.pth")
    assert isinstance(read, dict)
    made = with_weights(AlexNet(n_outputs=11).eval(), read, 11)
    x = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert torch.equal(made(x), theirs(x))


def test_state_dict_in_safetensors_and_network_of_ours_are_told_apart(tmp_path: Path) -> None:
    net = lenet(0)
    safetensors.torch.save_file(net.state_dict(), tmp_path / "state.safetensors")
    read = read_pretrained(tmp_path / "state.safetensors")
    assert isinstance(read, dict)
    assert torch.equal(read["fc2.bias"], net.fc2.bias)
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


@pytest.mark.parametrize("name", ["a.pth", "a.safetensors", "a.onnx"])
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
    fresh = LeNet(**SMALL | {"n_outputs": 9})
    made = with_weights(fresh, lenet(0).state_dict(), 9)
    assert torch.equal(made.fc2.weight, fresh.fc2.weight)
    assert torch.equal(made.fc1.weight, lenet(0).fc1.weight)
    assert "fc2.bias and fc2.weight start afresh" in caplog.text


def test_weights_of_another_network_are_refused() -> None:
    state = lenet(0).state_dict()
    with pytest.raises(
        al.InputError, match=r"Missing key.*\"features.*Unexpected key.*--model alex"
    ):
        with_weights(AlexNet(), state, 1000)
    wider = LeNet(**SMALL | {"widths": (7, 6, 8)})
    with pytest.raises(al.InputError, match=r"conv1.weight: .* shape torch.Size\(\[4, 3, 5, 5\]\)"):
        with_weights(wider, state, 5)


def test_weights_without_counters_of_batches_fit(tmp_path: Path) -> None:
    net = build_network("resnet20:0.25", (3, 8, 8), 10)
    state = {k: v for k, v in net.state_dict().items() if not k.endswith("num_batches_tracked")}
    safetensors.torch.save_file(state, tmp_path / "old.safetensors")
    read = read_pretrained(tmp_path / "old.safetensors")
    assert isinstance(read, dict)
    made = with_weights(build_network("resnet20:0.25", (3, 8, 8), 10), read, 10)
    assert torch.equal(made.get_parameter("layer3.2.conv2.weight"), state["layer3.2.conv2.weight"])
    del state["bn1.running_var"]
    with pytest.raises(al.InputError, match=r'Missing key.*: "bn1.running_var"\. \(choose'):
        with_weights(net, state, 10)


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
    net = lenet(0)
    state = {f"{prefix}{name}": value for name, value in net.state_dict().items()}
    whole = state if key is None else {key: state, "epoch": 3, "optimizer": {"state": {}}}
    torch.save(whole, tmp_path / "a.ckpt")
    read = read_pretrained(tmp_path / "a.ckpt")
    assert isinstance(read, dict)
    made = with_weights(lenet(1), read, 5)
    assert torch.equal(made.fc2.weight, net.fc2.weight)


class Wrapping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(2, 3)


def test_a_network_whose_parts_are_all_in_one_attribute_keeps_its_names(tmp_path: Path) -> None:
    safetensors.torch.save_file(Wrapping().state_dict(), tmp_path / "a.safetensors")
    read = read_pretrained(tmp_path / "a.safetensors")
    assert isinstance(read, dict)
    made = with_weights(Wrapping(), read, 3)
    assert torch.equal(made.model.weight, read["weight"])


def test_missing_and_unexpected_names_are_told() -> None:
    state = {"weight": torch.ones(2, 2), **{f"more{i}": torch.ones(1) for i in range(7)}}
    message = r'Missing key\(s\) in state_dict: "bias"\. Unexpected key.*: "more0", "more1"'
    with pytest.raises(al.InputError, match=message):
        with_weights(nn.Linear(2, 2), state, 2)
