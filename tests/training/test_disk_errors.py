"""A full disk is known by its error, whoever raises it."""

import os
import resource
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from archlearn import RunStoppedError, SettingsError
from archlearn_cli.training.run_directory import explaining_full_disks, writing
from tests.run_files import CONFIG


@pytest.mark.parametrize("number", [28, 122])
def test_full_disks_are_explained_for_files_of_tensors_too(number: int, tmp_path: Path) -> None:
    (tmp_path / CONFIG).touch()
    text = f"Error while serializing: I/O error: {os.strerror(number)} (os error {number})"
    for error in (OSError(number, os.strerror(number)), SafetensorError(text)):
        with (
            pytest.raises(RunStoppedError, match=r"disk is full: .*archlearn learn --resume"),
            explaining_full_disks(tmp_path),
        ):
            raise error
        with pytest.raises(SettingsError, match="the disk is full"), writing(tmp_path / "a"):
            raise error


def test_other_errors_are_left_as_they_are(tmp_path: Path) -> None:
    for error in (OSError(13, "Permission denied"), SafetensorError("header too large")):
        with pytest.raises(type(error)), explaining_full_disks(tmp_path):
            raise error


def test_safetensors_names_the_number_of_a_file_that_grows_too_large(tmp_path: Path) -> None:
    """What the text above is like: a limit on the size of files stands in for the disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    tensors = {"x": torch.zeros(100_000)}
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with (
            pytest.raises(RunStoppedError, match="the disk is full"),
            explaining_full_disks(tmp_path),
        ):
            save_file(tensors, tmp_path / "x.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
