"""Limits of a model file: what `load` refuses to read, so that time and memory stay in bounds.

The format itself grows no faster than the file; these numbers keep a hostile file from taking
more than seconds, or more than a gigabyte. Each is far above what real networks need (torchvision's
efficientnet_v2_l has 1,409 modules and 1,548 tensors). `save` holds a model to the same limits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from archlearn.errors import FileError


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that a file may have of something; the error names the constant and its module."""

    name: str
    most: int
    unit: str
    home: str = __name__

    def check(self, count: int) -> None:
        """Raise a `FileError` that names this limit if there are more."""
        if count > self.most:
            raise FileError(
                f"it has {count:,} {self.unit}, more than the {self.most:,} that are read "
                f"({self.name} in {self.home})"
            )


# The header of a safetensors file holds names, shapes and the description; weights come after it.
MAX_HEADER_BYTES = Limit("MAX_HEADER_BYTES", 16 * 2**20, "bytes of header")
# Of a description's JSON: each takes up to 700 bytes of memory while a model is built.
MAX_VALUES = Limit("MAX_VALUES", 500_000, "values in its description")
MAX_MODULES = Limit("MAX_MODULES", 15_000, "modules")
# Modules that are shared at every level have exponentially many names, all of which
# `state_dict()` and `eval()` walk through.
MAX_MODULE_NAMES = Limit("MAX_MODULE_NAMES", 100_000, "names of modules, shared ones included")
MAX_MODULE_DEPTH = Limit("MAX_MODULE_DEPTH", 100, "modules inside one another")
# torch looks each tensor of a recurrent layer up in a list of all of them.
MAX_RECURRENT_LAYERS = Limit("MAX_RECURRENT_LAYERS", 256, "layers in one recurrent module")
MAX_TENSORS = Limit("MAX_TENSORS", 15_000, "tensors")
MAX_DIMENSIONS = Limit("MAX_DIMENSIONS", 32, "dimensions in a tensor")
# Sizes beside a 0 are not held by the file's length, and torch multiplies them.
MAX_ELEMENTS = Limit("MAX_ELEMENTS", 2**48, "elements in a tensor, sizes of 0 left out")
MAX_CALLS = Limit("MAX_CALLS", 20_000, "calls in a graph")
# Python compares the keywords of a call with one another when it compiles it.
MAX_KEYWORDS = Limit("MAX_KEYWORDS", 256, "keywords in a call, or fields in a named tuple")
MAX_NAME_LENGTH = Limit("MAX_NAME_LENGTH", 1_000, "characters in a name")
# How deep lists and dicts stand inside one another in the arguments of a call.
MAX_NESTING = Limit("MAX_NESTING", 32, "levels of nested arguments")


def check_shape(shape: Sequence[int]) -> None:
    """Raise a `FileError` unless a tensor can have this shape."""
    MAX_DIMENSIONS.check(len(shape))
    n_elements = 1
    for size in shape:
        n_elements *= max(size, 1)
        MAX_ELEMENTS.check(n_elements)
