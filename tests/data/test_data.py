"""Data sets: what is read is what was written, and what is broken is named."""

import gzip
import http.server
import os
import struct
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from archlearn import DataError, InputError, SettingsError
from archlearn_cli.data import (
    Examples,
    Split,
    build_dataset,
    carve_validation,
    load_examples,
    no_progress,
)
from archlearn_cli.data.dataset import measure_channels
from archlearn_cli.data.file_cache import FileSet, download, write_atomically
from archlearn_cli.data.standard_datasets import IDX_FILES, PARTS, parse_idx


def format_idx(values: Tensor) -> bytes:
    """Return the content of the IDX file that holds a tensor of bytes."""
    header = bytes([0, 0, 8, values.ndim])
    return header + struct.pack(f">{values.ndim}I", *values.shape) + values.numpy().tobytes()


@pytest.fixture
def cached_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Thirty images to learn from and ten to test on, in the cache, and no other source."""
    monkeypatch.setenv("ARCHLEARN_CACHE", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    generator = torch.Generator().manual_seed(0)
    digests: dict[str, str] = {}
    for part, stem in PARTS.items():
        shape = (30 if part.startswith("train") else 10, 28, 28)
        shape = shape if part.endswith("inputs") else shape[:1]
        values = torch.randint(0, 10, shape, generator=generator, dtype=torch.uint8)
        content = format_idx(values)
        digests[stem] = sha256(content).hexdigest()
        (tmp_path / "mnist" / f"{stem}.gz").write_bytes(gzip.compress(content))
    monkeypatch.setitem(IDX_FILES, "mnist", FileSet(digests, (str(tmp_path / "nothing"),)))
    return tmp_path / "mnist"


def test_idx_comes_back_as_it_was_written() -> None:
    values = torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4)
    assert torch.equal(parse_idx(format_idx(values)), values)


def test_mnist_is_read_from_the_cache_with_one_channel(cached_mnist: Path) -> None:
    examples = load_examples("mnist")
    assert examples.train.inputs.shape == (30, 1, 28, 28)
    assert examples.test.targets.shape == (10,)
    assert examples.source == str(cached_mnist)


def test_files_with_a_wrong_digest_are_not_taken_and_what_to_do_is_said(cached_mnist: Path) -> None:
    (cached_mnist / PARTS["test_targets"]).write_bytes(b"hello")
    with pytest.raises(DataError, match=rf"sha256 2cf24dba5fb0.*\n.*\nput .*into {cached_mnist}"):
        load_examples("mnist")


def test_validation_part_is_always_the_same_and_shares_nothing_with_train() -> None:
    everything = Split(torch.arange(60).reshape(60, 1), torch.arange(60))
    train, validation = carve_validation(everything, 0.25)
    again = carve_validation(everything, 0.25)[1]
    assert torch.equal(validation.targets, again.targets)
    assert sorted([*train.targets.tolist(), *validation.targets.tolist()]) == list(range(60))
    assert len(validation) == 15


def test_mean_and_deviation_are_those_of_the_train_part_alone() -> None:
    train = Split(torch.full((20, 1, 2, 2), 51, dtype=torch.uint8), torch.zeros(20).long())
    train.inputs[::2] = 153
    test = Split(torch.full((5, 1, 2, 2), 255, dtype=torch.uint8), torch.ones(5).long())
    dataset = build_dataset(
        Examples(name="x", source="x", train=train, test=test), validation_share=0.1
    )
    inputs = dataset.train.inputs.double() / 255
    torch.testing.assert_close(dataset.mean.double().squeeze(), inputs.mean(), rtol=0, atol=1e-7)
    torch.testing.assert_close(
        dataset.std.double().squeeze(), inputs.std(correction=0), rtol=0, atol=1e-7
    )


def test_channels_are_measured_one_by_one() -> None:
    inputs = torch.randn(50, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    inputs[:, 1] += 5
    mean, std = measure_channels(inputs)
    assert mean.shape == (3, 1, 1)
    torch.testing.assert_close(mean.flatten(), inputs.mean((0, 2, 3)))
    torch.testing.assert_close(std.flatten(), inputs.std((0, 2, 3), correction=0))


def test_digits_and_diabetes_need_no_network() -> None:
    digits = build_dataset(load_examples("digits:28"), validation_share=0.1)
    assert digits.input_shape == (1, 28, 28)
    assert digits.n_outputs == 10
    diabetes = build_dataset(load_examples("diabetes"), validation_share=0.1)
    assert diabetes.task == "regression"
    assert diabetes.n_outputs == 1
    targets = (diabetes.train.targets - diabetes.target_mean) / diabetes.target_std
    torch.testing.assert_close(targets.std(), torch.tensor(1.0), rtol=1e-4, atol=0)


def make_images(folder: Path, side: int = 12) -> None:
    for number, name in enumerate(("cats", "dogs")):
        (folder / name).mkdir(parents=True)
        for place in range(5):
            colour = (200 * number, 10 * place, 30)
            Image.new("RGB", (side, side + place), colour).save(folder / name / f"{place}.png")


def test_classes_are_for_classification() -> None:
    with pytest.raises(SettingsError, match="it is a regression and has none"):
        build_dataset(load_examples("diabetes"), validation_share=0.1, classes=3)
    with pytest.raises(SettingsError, match="but it has 10; choose 2 to 10 classes"):
        build_dataset(load_examples("digits"), validation_share=0.1, classes=11)


@pytest.mark.parametrize(
    ("targets", "complaint"),
    [
        (torch.zeros(4, dtype=torch.long), "all targets of 'x' are 0"),
        (torch.tensor([0, 1, -1, 1]), "go from -1 to 1; classes are counted from 0"),
        (torch.zeros(4, 1, dtype=torch.long), r"of shape \(4, 1\); give one whole number"),
        (torch.tensor([0.0, 1.0, 0.0, 1.0]), r"torch.float32 .*give one whole number"),
    ],
)
def test_targets_that_are_no_classes_are_refused(targets: torch.Tensor, complaint: str) -> None:
    split = Split(torch.zeros(4, 3), targets)
    with pytest.raises(DataError, match=complaint):
        build_dataset(Examples(name="x", source="x", train=split, test=split), validation_share=0.1)


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_example_that_holds_no_number_is_named(odd: float) -> None:
    inputs, targets = torch.zeros(6, 2, 2), torch.arange(6.0)
    whole, inputs[4, 1, 0] = Split(inputs.clone(), targets), odd
    parts = {"name": "x", "source": "x", "task": "regression"}
    with pytest.raises(DataError, match=r"the test inputs of 'x' .* first in example 4 \(1 exam"):
        build_dataset(
            Examples(**parts, train=whole, test=Split(inputs, targets)), validation_share=0.1
        )
    wrong = Split(whole.inputs, torch.where(targets == 2, odd, targets))
    with pytest.raises(DataError, match=r"the train targets of 'x' .* first in example 2"):
        build_dataset(Examples(**parts, train=wrong, test=whole), validation_share=0.1)


def test_folder_of_images_has_one_class_a_folder(tmp_path: Path) -> None:
    make_images(tmp_path)
    examples = load_examples(f"folder:{tmp_path}:8")
    assert examples.train.inputs.shape == (8, 3, 8, 8)
    both = torch.cat([examples.train.targets, examples.test.targets])
    reds = torch.cat([examples.train.inputs, examples.test.inputs])[:, 0].flatten(1).amax(1)
    assert torch.equal(reds == 200, both == 1)


def test_broken_image_is_named(tmp_path: Path) -> None:
    make_images(tmp_path)
    (tmp_path / "dogs" / "3.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"dogs/3.png is broken .*; repair it.*--skip-broken"):
        load_examples(f"folder:{tmp_path}")


def test_truncated_image_is_named(tmp_path: Path) -> None:
    make_images(tmp_path, side=64)
    path = tmp_path / "cats" / "2.png"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match=r"cats/2.png is broken"):
        load_examples(f"folder:{tmp_path}")


def test_tiny_imagenet_takes_the_test_classes_from_its_table(tmp_path: Path) -> None:
    for number, name in enumerate(("n01", "n02")):
        images = tmp_path / "train" / name / "images"
        images.mkdir(parents=True)
        Image.new("RGB", (64, 64), (number, 0, 0)).save(images / f"{name}_0.png")
    (tmp_path / "val" / "images").mkdir(parents=True)
    for place in range(3):
        Image.new("RGB", (64, 64)).save(tmp_path / "val" / "images" / f"val_{place}.png")
    rows = [
        "val_0.png\tn02\t0\t0\t1\t1",
        "val_1.png\tn01\t0\t0\t1\t1",
        "val_2.png\tn02\t0\t0\t1\t1",
    ]
    (tmp_path / "val" / "val_annotations.txt").write_text("\n".join(rows) + "\n")
    assert load_examples(f"tiny-imagenet:{tmp_path}").test.targets.tolist() == [1, 0, 1]


def test_users_own_function_gives_pairs_of_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_own_data.py").write_text(
        "import torch\n"
        "def build():\n"
        "    x = torch.arange(12.).reshape(6, 2)\n"
        "    return (x, x.sum(1)), (x[:2], x[:2].sum(1))\n"
        "def wrong():\n"
        "    return 3\n"
    )
    examples = load_examples("my_own_data:build")
    assert examples.task == "regression"
    with pytest.raises(DataError, match="returned int; return two pairs of tensors"):
        load_examples("my_own_data:wrong")
    with pytest.raises(InputError, match="has no function 'nothing'"):
        load_examples("my_own_data:nothing")


def test_misspelt_data_set_is_answered_with_the_right_one() -> None:
    with pytest.raises(InputError, match="did you mean 'fashion-mnist'"):
        load_examples("fashon-mnist")


class _Slow(http.server.BaseHTTPRequestHandler):
    """Serves good files at once, and a slow one in drops."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000000" if "slow" in self.path else "5")
        self.end_headers()
        if "slow" not in self.path:
            self.wfile.write(b"12345" if "good" in self.path else b"123")
            return
        try:
            while True:
                self.wfile.write(b"x" * 70_000)
                threading.Event().wait(0.2)
        except OSError:
            return

    def log_message(self, *args: object) -> None:
        del args


@pytest.fixture
def server() -> Iterator[str]:
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Slow)
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_address[1]}"
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def test_download_tells_of_its_progress(server: str) -> None:
    heard: list[tuple[str, int, int | None]] = []
    assert download(f"{server}/good", lambda *told: heard.append(told)) == b"12345"
    assert heard == [("good", 5, 5)]


def test_download_that_breaks_off_is_refused(server: str) -> None:
    with pytest.raises(DataError, match=r"cannot download|broke off"):
        download(f"{server}/short", no_progress)


def test_mirror_that_is_not_there_is_given_up_on() -> None:
    with pytest.raises(DataError, match="cannot download"):
        download("http://127.0.0.1:9/file", no_progress)


def test_a_file_has_its_name_only_once_the_disk_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    sync, replace = os.fsync, os.replace

    def record_sync(handle: int) -> None:
        events.append(f"sync {os.fstat(handle).st_size} bytes")
        sync(handle)

    def record_replace(old: Path, new: Path) -> None:
        events.append(f"name {new.name}")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_replace)
    write_atomically(tmp_path / "a", b"12345")
    assert events == ["sync 5 bytes", "name a"]
    assert (tmp_path / "a").read_bytes() == b"12345"


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_failure_leaves_the_file_that_was_there_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk is gone")

    write_atomically(tmp_path / "a", b"old")
    monkeypatch.setattr(os, broken, fail)
    with pytest.raises(OSError, match="the disk is gone"):
        write_atomically(tmp_path / "a", b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


@pytest.mark.parametrize("name", ["digits:0", "digits:x", "digits:9999999"])
def test_digits_of_no_size_or_beyond_any_memory_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="a number of pixels up to 512, as in digits:28"):
        load_examples(name)


@pytest.mark.parametrize(
    ("name", "right"),
    [("folder:", "folder:DIR"), ("tiny-shakespeare", "tiny-shakespeare:FILE")],
)
def test_data_of_a_kind_without_a_place_are_refused(name: str, right: str) -> None:
    with pytest.raises(InputError, match=f"'{name}' does not say where .* write {right}$"):
        load_examples(name)
