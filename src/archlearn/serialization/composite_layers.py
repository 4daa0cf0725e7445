"""A leaf made of other layers is rebuilt from its attributes, without calling its constructor."""

from collections.abc import Mapping
from functools import cache

from torch import nn

from archlearn.errors import FileError, InputError
from archlearn.nn.local_response_norm import NarrowedLocalResponseNorm
from archlearn.serialization.values import decode, encode, is_identifier, shorten

_OWN = frozenset(vars(nn.Module())) | {"training"}
_MARK = "_archlearn_opaque"
_NAMES = """
Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder TransformerEncoderLayer
"""


@cache
def all_composites() -> dict[str, type[nn.Module]]:
    """Return the classes that every file may name, beside those that the caller gives."""
    listed = {f"torch.nn.{name}": getattr(nn, name) for name in _NAMES.split()}
    return {**listed, "archlearn.NarrowedLocalResponseNorm": NarrowedLocalResponseNorm}


def merge_classes(modules: Mapping[str, type[nn.Module]] | None) -> dict[str, type[nn.Module]]:
    """Return the user's classes and those that every file may name.

    Raises:
        InputError: If the user gives a name that is taken.
    """
    for name in modules or {}:
        if name == "container" or name.startswith(("torch.", "archlearn.")):
            raise InputError(
                f"modules={{{name!r}: ...}} takes a name that files use; choose another"
            )
    return {**all_composites(), **(modules or {})}


def read_attributes(name: str, module: nn.Module) -> dict[str, object]:
    """Return the plain attributes of a leaf as JSON; its tensors and submodules come apart.

    Raises:
        FileError: If an attribute is of a kind that a file cannot hold.
    """
    found: dict[str, object] = {}
    slots = {**module._modules, **module._parameters, **module._buffers}
    empty = {attribute: None for attribute, value in slots.items() if value is None}
    for attribute, value in {**vars(module), **empty}.items():
        if attribute in _OWN or attribute == _MARK:
            continue
        try:
            found[attribute] = encode(value)
        except FileError:
            raise FileError(
                f"the attribute '{name}.{attribute}' is a {type(value).__name__}, which a file "
                "cannot hold; keep numbers, strings and lists of them, or register a buffer"
            ) from None
    return found


def build_opaque(kind: type[nn.Module], attributes: Mapping[str, object]) -> nn.Module:
    """Return a leaf of the user's class that still lacks its tensors and submodules.

    Raises:
        FileError: If an attribute is one that every module has for itself.
    """
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    for attribute, value in attributes.items():
        if not is_identifier(attribute) or attribute in _OWN or hasattr(nn.Module, attribute):
            raise FileError(f"it sets the attribute {shorten(attribute)}, which is not allowed")
        vars(module)[attribute] = decode(value, _refuse_node)
    vars(module)[_MARK] = True
    return module


def is_opaque(module: nn.Module) -> bool:
    """Return whether `build_opaque` made this module."""
    return _MARK in vars(module)


def _refuse_node(name: str) -> object:
    raise FileError(f"an attribute is the result {shorten(name)} of a call")
