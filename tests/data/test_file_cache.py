"""A file is written whole or not at all, and is on the disk before it has its name."""

import os
from pathlib import Path

import pytest

from archlearn.data.file_cache import write_whole


def test_a_file_has_its_name_only_once_the_disk_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    sync, replace = os.fsync, os.replace

    def record_sync(handle: int) -> None:
        written = os.fstat(handle)
        is_folder = os.path.samestat(written, tmp_path.stat())
        events.append("sync folder" if is_folder else f"sync {written.st_size} bytes")
        sync(handle)

    def record_replace(old: Path, new: Path) -> None:
        events.append(f"name {new.name}")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_replace)
    write_whole(tmp_path / "a", b"12345")
    assert events == ["sync 5 bytes", "name a", "sync folder"]
    assert (tmp_path / "a").read_bytes() == b"12345"


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_failure_leaves_the_file_that_was_there_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk is gone")

    write_whole(tmp_path / "a", b"old")
    monkeypatch.setattr(os, broken, fail)
    with pytest.raises(OSError, match="the disk is gone"):
        write_whole(tmp_path / "a", b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"
