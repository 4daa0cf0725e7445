"""Folders of images: decoded once by several threads, kept, mapped, and cut without copying."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import archlearn_cli as cli
from archlearn import DataError
from archlearn_cli.data import image_cache

SIDE = 6


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, which even few images go through, in three parts."""
    monkeypatch.setenv("ARCHLEARN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(image_cache, "FEWEST_TO_CACHE", 1)
    monkeypatch.setattr(image_cache, "_CHUNK", 8)
    return tmp_path / "cache" / "images"


def write_images(folder: Path, n: int, first: int = 0) -> None:
    """Images whose red is a number of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    for place in range(first, first + n):
        Image.new("RGB", (8, 8), (place, 0, 0)).save(folder / f"{place:03d}.png")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(("cats", "dogs")):
        write_images(tmp_path / "photos" / name, 10, first=100 * number)
    return tmp_path / "photos"


def reds(split: cli.data.Split) -> list[int]:
    return split.inputs[:, 0, 0, 0].tolist()


def load(folder: Path, *, skip_broken: bool = False) -> tuple[cli.data.Split, cli.data.Split]:
    examples = cli.data.load_examples(f"folder:{folder}:{SIDE}", skip_broken=skip_broken)
    return examples.train, examples.test


def test_every_image_is_there_once_with_its_class(folder: Path) -> None:
    train, test = load(folder)
    assert (len(train), len(test)) == (16, 4)
    assert train.inputs.shape[1:] == (3, SIDE, SIDE)
    assert sorted(reds(train) + reds(test)) == [*range(10), *range(100, 110)]
    for split in (train, test):
        assert split.targets.tolist() == [int(red >= 100) for red in reds(split)]


def test_cached_images_are_those_that_are_decoded_in_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "cats" / "noise.jpg", quality=80)
    cached = [split.inputs for split in load(folder)]
    monkeypatch.setattr(image_cache, "FEWEST_TO_CACHE", 1000)
    direct = [split.inputs for split in load(folder)]
    both = [torch.cat(each).flatten(1).tolist() for each in (cached, direct)]
    assert sorted(both[0]) == sorted(both[1])


def test_images_are_mapped_and_parts_of_them_are_slices(folder: Path) -> None:
    examples = cli.data.load_examples(f"folder:{folder}:{SIDE}")
    dataset = cli.data.build_dataset(examples, validation_share=0.25, limit=10)
    whole = examples.train.inputs.untyped_storage().data_ptr()
    parts = dataset.train, dataset.validation, dataset.test
    assert all(part.inputs.untyped_storage().data_ptr() == whole for part in parts)
    assert [len(part) for part in parts] == [10, 4, 4]
    assert len({red for part in parts for red in reds(part)}) == 18


def test_second_reading_decodes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(folder)
    monkeypatch.setattr(image_cache, "decode_all", None)
    second = load(folder)
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(first, second, strict=True))
    assert torch.equal(first[0].targets, second[0].targets)


def test_changed_file_and_another_side_are_decoded_anew(folder: Path, cache: Path) -> None:
    load(folder)
    Image.new("RGB", (8, 8), (250, 0, 0)).save(folder / "cats" / "003.png")
    os.utime(folder / "cats" / "003.png", ns=(1, 1))
    train, test = load(folder)
    assert 250 in reds(train) + reds(test)
    cli.data.load_examples(f"folder:{folder}:3")
    assert len(list(cache.iterdir())) == 3


def test_writing_to_the_images_does_not_change_the_cache(folder: Path) -> None:
    load(folder)[0].inputs.fill_(7)
    assert reds(load(folder)[0]) != [7] * 16


def test_progress_is_told_until_all_images_are_done(folder: Path) -> None:
    heard: list[tuple[str, int, int | None]] = []
    cli.data.load_examples(f"folder:{folder}:{SIDE}", lambda *told: heard.append(told))
    assert heard[-1] == ("images", 20, 20)


def test_broken_image_is_named_and_nothing_is_kept(folder: Path, cache: Path) -> None:
    (folder / "dogs" / "103.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"dogs/103.png is broken .*--skip-broken"):
        load(folder)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("fewest", [1, 1000])
def test_broken_images_are_left_out_and_named_if_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fewest: int
) -> None:
    monkeypatch.setattr(image_cache, "FEWEST_TO_CACHE", fewest)
    for path in [*folder.rglob("*[13579].png"), folder / "dogs" / "104.png"]:
        path.write_bytes(path.read_bytes()[:-30])
    train, test = load(folder, skip_broken=True)
    assert sorted(reds(train) + reds(test)) == [0, 2, 4, 6, 8, 100, 102, 106, 108]
    assert train.targets.tolist() == [int(red >= 100) for red in reds(train)]
    assert caplog.text.count("is broken") == 11
    assert "dogs/109.png" in caplog.text


def test_full_disk_is_said_before_anything_is_decoded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr(image_cache.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DataError, match=r"20 images of 6 x 6 need .* GiB .* ARCHLEARN_CACHE"):
        load(folder)


def test_cache_that_cannot_be_written_is_said(folder: Path, cache: Path) -> None:
    cache.parent.write_text("a file stands here")
    with pytest.raises(DataError, match=r"images cannot be written .*; set ARCHLEARN_CACHE"):
        load(folder)


@pytest.mark.parametrize("fewest", [1, 1000])
def test_folder_of_broken_images_only_is_refused(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, fewest: int
) -> None:
    monkeypatch.setattr(image_cache, "FEWEST_TO_CACHE", fewest)
    for path in folder.rglob("*.png"):
        path.write_bytes(b"no image")
    with pytest.raises(DataError, match="none of 20 images can be read"):
        load(folder, skip_broken=True)
    assert not cache.exists() or list(cache.iterdir()) == []


def test_validation_images_of_a_folder_are_its_test_part(tmp_path: Path) -> None:
    for number, name in enumerate(("n01", "n02", "n03")):
        write_images(tmp_path / "ilsvrc" / "train" / name, 4, first=10 * number)
        write_images(tmp_path / "ilsvrc" / "val" / name, 2, first=50 + 10 * number)
    test = cli.data.load_examples(f"folder:{tmp_path / 'ilsvrc'}:{SIDE}").test
    assert sorted(zip(reds(test), test.targets.tolist(), strict=True)) == [
        (50, 0), (51, 0), (60, 1), (61, 1), (70, 2), (71, 2),
    ]  # fmt: skip


def test_every_other_image_is_a_slice_too(folder: Path) -> None:
    train, _ = load(folder)
    first, second = train[::2], train[1::2]
    assert first.inputs.untyped_storage().data_ptr() == train.inputs.untyped_storage().data_ptr()
    assert sorted(reds(first) + reds(second)) == sorted(reds(train))
    assert train.inputs.nbytes == 16 * 3 * SIDE * SIDE
