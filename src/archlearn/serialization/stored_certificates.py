"""A compact model's certificate travels with it in the file's metadata."""

import json
from dataclasses import fields
from typing import Any, cast

from torch import nn

from archlearn.errors import FileError
from archlearn.serialization.schema import parse_json
from archlearn.serialization.values import decode, encode, shorten
from archlearn.verification.certificate import Certificate

# A tolerance may have been given as a whole number.
_KINDS: dict[Any, tuple[type, ...]] = {float: (float, int), int: (int,), str: (str,)}


def write_certificate(model: nn.Module) -> str | None:
    """Return a model's certificate as JSON, or None if it has none."""
    certificate = getattr(model, "certificate", None)
    if not isinstance(certificate, Certificate):
        return None
    return json.dumps(encode(certificate.to_dict()), allow_nan=False)


def restore_certificate_(model: nn.Module, text: str | None) -> None:
    """Give a model the certificate that its file holds, or None if there is none.

    Raises:
        FileError: If it has not exactly the fields of a certificate.
    """
    if text is None:
        if not hasattr(model, "certificate"):  # nothing of the user's may have that name
            vars(model)["certificate"] = None
        return
    found = decode(parse_json(text), _refuse_node)
    data = cast(dict[str, Any], found) if isinstance(found, dict) else {}
    kinds = {field.name: _KINDS[field.type] for field in fields(Certificate)}
    if set(data) != set(kinds) or any(type(data[name]) not in kinds[name] for name in kinds):
        raise FileError(
            f"its certificate is {shorten(found)}, which lacks or adds a field, or has one of "
            "another type"
        )
    vars(model)["certificate"] = Certificate.from_dict(data)


def _refuse_node(name: str) -> object:
    raise FileError(f"its certificate names a call, {shorten(name)}")
