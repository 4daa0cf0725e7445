"""A model file has its name only once the disk has all of it."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

import archlearn as al


def test_a_file_is_synced_before_it_takes_the_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, x = tmp_path / "net.safetensors", torch.ones(1, 3)
    al.save(nn.Linear(3, 2), path, x)
    events: list[tuple[str, int]] = []
    sync, replace = os.fsync, os.replace

    def record_sync(handle: int) -> None:
        events.append(("synced", os.fstat(handle).st_size))
        sync(handle)

    def record_replace(old: Path, new: Path) -> None:
        events.append(("named", old.stat().st_size))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_replace)
    al.save(nn.Linear(3, 7), path, x)
    size = path.stat().st_size
    assert events == [("synced", size), ("named", size)]
    assert al.load(path)(x).shape == (1, 7)
