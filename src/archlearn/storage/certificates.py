"""A compact model's certificate travels with it in the file's metadata."""

import json
from dataclasses import asdict, fields, is_dataclass
from typing import Any, cast

from torch import nn

from archlearn.errors import FileError
from archlearn.storage.descriptions import parse_json
from archlearn.storage.values import decode, encode, shorten


def write_certificate(model: nn.Module) -> str | None:
    """Return a model's certificate as JSON, or None if it has none."""
    certificate = getattr(model, "certificate", None)
    if not is_dataclass(certificate) or isinstance(certificate, type):
        return None
    return json.dumps(encode(asdict(certificate)), allow_nan=False)


def restore_certificate_(model: nn.Module, text: str | None) -> None:
    """Give a model the certificate that its file holds, if there is one.

    Raises:
        FileError: If it has not exactly the fields of a certificate.
    """
    if text is None:
        return
    from archlearn.certificates import Certificate

    found = decode(parse_json(text), _refuse_node)
    names = {field.name for field in fields(Certificate)}
    if not isinstance(found, dict) or set(cast(dict[str, Any], found)) != names:
        raise FileError(f"its certificate is {shorten(found)}, which lacks or adds a field")
    model.certificate = Certificate(**found)


def _refuse_node(name: str) -> object:
    raise FileError(f"its certificate names a call, {shorten(name)}")
