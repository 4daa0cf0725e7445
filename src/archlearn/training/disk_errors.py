"""A disk or a memory that is full stops a run with a sentence that says how to go on."""

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError

from archlearn.errors import RunStoppedError, SettingsError, first_line
from archlearn.training.run_directory import how_to_go_on

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def says_full(error: OSError | SafetensorError) -> bool:
    """Return whether an error is that of a full disk; safetensors has the number in its text."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    return any(f"(os error {number})" in str(error) for number in _FULL)


@contextmanager
def explaining_full_disks(folder: Path) -> Generator[None]:
    """Turn the error of a full disk into one that says what to do."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if not says_full(error):
            raise
        why = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error)
        raise RunStoppedError(
            f"the disk is full: {why} while writing into {folder}; what was written "
            f"before is whole; make room, then {how_to_go_on(folder)}"
        ) from error


@contextmanager
def explaining_full_memory() -> Generator[None]:
    """Turn the error of a memory that is full, the host's or a GPU's, into one with advice.

    Raises:
        SettingsError: If the memory was too small for what was asked.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not says_out_of_memory(error):
            raise
        raise SettingsError(
            f"the memory is too small for this run ({first_line(error)}); choose a smaller "
            "network, a smaller --batch-size, or work each batch off in parts: --accumulate 4"
        ) from error


def says_out_of_memory(error: RuntimeError | MemoryError) -> bool:
    """Return whether an error is that of a full memory; torch has no type for the host's."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return "can't allocate memory" in str(error)
