"""The user's line that made a call, for messages."""

import contextlib
import functools
import os
import sys
import traceback

import torch
from torch import fx

from archlearn.tracing.fx_utils import SOURCE

_TORCH = os.path.dirname(torch.__file__) + os.sep
_DECORATORS = contextlib.__file__  # `add_gates` is one of its contexts
_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_MODELS = os.path.join(_HERE, "models") + os.sep


def note_source(node: fx.Node) -> None:
    """Note on a node the user's line that is running now."""
    frame = sys._getframe(2)
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is not None:
        name = os.path.basename(frame.f_code.co_filename)
        node.meta[SOURCE] = f"{name}:{frame.f_lineno}"


def source_of(node: fx.Node) -> str:
    """Return `file.py:12` of the user's line that made a call, or '' if it is not known."""
    return str(node.meta.get(SOURCE, ""))


def describe_failure(error: BaseException) -> str:
    """Return the user's own line at which tracing failed, and why."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not is_ours(frame.filename):
            return f"{frame.filename}:{frame.lineno} `{frame.line}`: {error}"
    return str(error)


@functools.lru_cache(maxsize=1024)
def is_ours(path: str) -> bool:
    """Return whether a file is torch's or ours; our models count as a user's."""
    return path.startswith((_TORCH, _HERE, _DECORATORS)) and not path.startswith(_MODELS)
