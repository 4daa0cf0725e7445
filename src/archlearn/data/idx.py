"""IDX files: the format of MNIST, a small header and bytes in C order."""

import gzip
import hashlib
import struct
from pathlib import Path

import torch
from torch import Tensor

from archlearn.errors import DataError

PARTS = {
    "train_inputs": "train-images-idx3-ubyte",
    "train_targets": "train-labels-idx1-ubyte",
    "test_inputs": "t10k-images-idx3-ubyte",
    "test_targets": "t10k-labels-idx1-ubyte",
}
_UNSIGNED_BYTE = 8


def parse_idx(content: bytes, name: str) -> Tensor:
    """Return the tensor of bytes that an IDX file holds.

    Raises:
        DataError: If the header is not IDX, or the length is not what it promises.
    """
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTE:
        raise DataError(f"{name} is not an IDX file of bytes; delete it and fetch it again")
    n_dims = content[3]
    start = 4 + 4 * n_dims
    if len(content) < start:
        raise DataError(f"{name} ends inside its header; delete it and fetch it again")
    shape = struct.unpack(f">{n_dims}I", content[4:start])
    expected = start + int(torch.tensor(shape).prod())
    if len(content) != expected:
        raise DataError(
            f"{name} holds {len(content)} bytes but its header promises {expected}; "
            "delete it and fetch it again"
        )
    return torch.frombuffer(bytearray(content[start:]), dtype=torch.uint8).reshape(shape)


def format_idx(values: Tensor) -> bytes:
    """Return the content of the IDX file that holds a tensor of bytes."""
    header = bytes([0, 0, _UNSIGNED_BYTE, values.ndim])
    return header + struct.pack(f">{values.ndim}I", *values.shape) + values.numpy().tobytes()


def read_content(path: Path) -> bytes:
    """Return what a file holds, uncompressed if its name ends in `.gz`."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError) as error:
        raise DataError(f"cannot read {path}: {error}; delete it and fetch it again") from error


def find_part(folder: Path, stem: str) -> Path | None:
    """Return the file of that name in a folder, compressed or not."""
    return next((p for p in (folder / stem, folder / f"{stem}.gz") if p.is_file()), None)


def digest(content: bytes) -> str:
    """Return the sha256 of some bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()
