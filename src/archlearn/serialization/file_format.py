"""The safetensors file: header, format version, tensors, certificate."""

import json
import os
import struct
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

import safetensors
import torch
from torch import Tensor, nn

from archlearn.errors import FileError
from archlearn.serialization.limits import MAX_HEADER_BYTES, check_shape
from archlearn.serialization.schema import TensorEntry, parse_json, read_entry
from archlearn.serialization.values import decode, encode, shorten
from archlearn.verification.certificate import Certificate

FORMAT = "archlearn"
Metadata = dict[str, str]
MIGRATIONS: tuple[Callable[[Metadata], Metadata], ...] = ()
"""Turn the metadata of a file of version 1 into those of version 2, and so on."""
VERSION = 1 + len(MIGRATIONS)


# By descending alignment, the order in which safetensors itself lays tensors out.
DTYPES = {
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "F32": "float32",
    "I32": "int32",
    "BF16": "bfloat16",
    "F16": "float16",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
_LENGTH = struct.Struct("<Q")


@contextmanager
def open_safetensors(path: Path) -> Generator[safetensors.safe_open]:
    """Open a safetensors file whose header is within limits."""
    with path.open("rb") as file:
        start = file.read(_LENGTH.size)
    if len(start) == _LENGTH.size:
        (n_bytes,) = _LENGTH.unpack(start)
        if n_bytes <= path.stat().st_size:  # else the file is truncated, or something else
            MAX_HEADER_BYTES.check(n_bytes)
    with safetensors.safe_open(path, framework="pt", device="cpu") as handle:
        yield handle


def read_tensor(handle: safetensors.safe_open, name: str) -> Tensor:
    """Return one tensor of a file in memory of its own, so that the file may be replaced."""
    check_shape(handle.get_slice(name).get_shape())
    return handle.get_tensor(name).clone()


def migrate(metadata: Metadata) -> Metadata:
    """Return the metadata of a file as those of this version."""
    file_format = metadata.get("format")
    if file_format != FORMAT:
        raise FileError(
            "it is a safetensors file, but archlearn.save did not write it "
            f"(its metadata names the format {shorten(file_format)}); load it with safetensors"
        )
    version = metadata.get("version", "")
    if not version.isascii() or not version.isdigit() or len(version) > 9:
        raise FileError(f"its format version is {shorten(version)}, which is not a number")
    if int(version) > VERSION:
        raise FileError(
            f"its format is version {version}, and this archlearn reads up to {VERSION}; "
            "install a later archlearn"
        )
    for migration in MIGRATIONS[max(int(version), 1) - 1 :]:
        metadata = migration(metadata)
    return metadata


def check_tensors(handle: safetensors.safe_open, entries: list[TensorEntry]) -> None:
    """Raise a `FileError` unless a file holds exactly these tensors, in these shapes and dtypes."""
    held = set(handle.keys())
    named = {entry.name for entry in entries}
    if held != named or len(named) != len(entries):
        odd = sorted(held ^ named)
        raise FileError(f"its tensors and its description differ in {shorten(odd)}")
    for entry in entries:
        tensor_slice = handle.get_slice(entry.name)
        shape, dtype = list(tensor_slice.get_shape()), DTYPES.get(tensor_slice.get_dtype())
        if (shape, dtype) != (entry.shape, entry.dtype):
            raise FileError(
                f"the tensor {shorten(entry.name)} is {dtype} of shape {shorten(shape)}, but "
                f"is described as {shorten(entry.dtype)} of shape {shorten(entry.shape)}"
            )


def write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a file beside `path` and move it there in one step.

    Its bytes depend on nothing but the arguments: safetensors' own writer puts metadata in an
    order that is drawn anew in each process.
    """
    names = sorted(tensors, key=lambda name: (_place(tensors[name]), name))
    header = _format_header({name: tensors[name] for name in names}, metadata)
    MAX_HEADER_BYTES.check(len(header))
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.part")
    try:
        with temporary.open("xb") as file:
            file.write(_LENGTH.pack(len(header)) + header)
            for name in names:
                _write_values(file, tensors[name])
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _format_header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    names = {dtype: name for name, dtype in DTYPES.items()}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        dtype = names[_dtype(tensor)]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % _LENGTH.size)  # so that values are aligned


def _write_values(file: BinaryIO, tensor: Tensor) -> None:
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if plain.numel():
        file.write(plain.reshape(-1).view(torch.uint8).numpy().data)


def _place(tensor: Tensor) -> int:
    return list(DTYPES.values()).index(_dtype(tensor))


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def write_certificate(model: nn.Module) -> str | None:
    """Return a model's certificate as JSON, or None if it has none."""
    certificate = getattr(model, "certificate", None)
    if not isinstance(certificate, Certificate):
        return None
    return json.dumps(encode(certificate.to_dict()), allow_nan=False)


def restore_certificate_(model: nn.Module, text: str | None) -> None:
    """Give a model the certificate that its file holds, or None if there is none."""
    if text is None:
        if not hasattr(model, "certificate"):  # nothing of the user's may have that name
            vars(model)["certificate"] = None
        return
    vars(model)["certificate"] = read_entry(decode(parse_json(text)), Certificate)
