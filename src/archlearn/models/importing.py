"""A user's own model or data is named `package.module:function`."""

import importlib
import os
import sys
from collections.abc import Callable

from archlearn.errors import InputError


def is_reference(name: str) -> bool:
    """Return whether a name has the form `package.module:function`."""
    module, colon, function = name.partition(":")
    dotted = all(part.isidentifier() for part in module.split("."))
    return bool(colon) and dotted and function.isidentifier()


def import_callable(reference: str) -> Callable[..., object]:
    """Return the function that `package.module:function` names.

    The working directory is looked in first, as `python -m` does.

    Raises:
        InputError: If the module or the function is not there.
    """
    module_name, _, attribute = reference.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"cannot import {module_name!r} for {reference!r}: {error}; run the command in the "
            "folder that holds the module, or install it"
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise InputError(
            f"{reference!r} was asked for, but {module_name!r} has no function {attribute!r}"
        )
    return function
