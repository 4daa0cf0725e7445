"""A safetensors file with a header of ours; its sizes are checked before anything is read."""

import os
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

import safetensors
import safetensors.torch
from torch import Tensor

from archlearn.errors import FileError
from archlearn.storage.descriptions import TensorEntry
from archlearn.storage.values import shorten

FORMAT = "archlearn"
VERSION = 1
DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}


class ModelFile:
    """An open file: its metadata, and its tensors one by one."""

    def __init__(self, handle: safetensors.safe_open) -> None:
        self._handle = handle
        self.metadata: dict[str, str] = handle.metadata() or {}

    def check_version(self) -> None:
        """Raise unless this package wrote the file, in a format that it can read."""
        found = self.metadata.get("format")
        if found != FORMAT:
            raise FileError(
                "it is a safetensors file, but archlearn.save did not write it "
                f"(its metadata names the format {shorten(found)}); load it with safetensors"
            )
        version = self.metadata.get("version", "")
        if not version.isascii() or not version.isdigit() or len(version) > 9:
            raise FileError(f"its format version is {shorten(version)}, which is not a number")
        if int(version) > VERSION:
            raise FileError(
                f"its format is version {version}, and this archlearn reads up to {VERSION}; "
                "install a later archlearn"
            )

    def check_tensors(self, entries: list[TensorEntry]) -> None:
        """Raise unless the file holds exactly these tensors, in these shapes and dtypes."""
        held = set(self._handle.keys())
        named = {entry.name for entry in entries}
        if held != named or len(named) != len(entries):
            odd = sorted(held ^ named)
            raise FileError(f"its tensors and its description differ in {shorten(odd)}")
        for entry in entries:
            found = self._handle.get_slice(entry.name)
            shape, dtype = list(found.get_shape()), DTYPES.get(found.get_dtype())
            if (shape, dtype) != (entry.shape, entry.dtype):
                raise FileError(
                    f"the tensor {entry.name!r} is {dtype} of shape {shape}, but is described as "
                    f"{shorten(entry.dtype)} of shape {shorten(entry.shape)}"
                )

    def read(self, name: str) -> Tensor:
        """Return a tensor in memory of its own, so that the file may be replaced."""
        return self._handle.get_tensor(name).clone()


def write(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a file beside `path` and move it there in one step.

    Its mode is that of any new file: safetensors alone would let nobody else read it.
    """
    apart = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.part")
    try:
        temporary.touch(exist_ok=False)
        mode = temporary.stat().st_mode
        safetensors.torch.save_file(apart, temporary, metadata)
        temporary.chmod(mode)
        with temporary.open("rb+") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
