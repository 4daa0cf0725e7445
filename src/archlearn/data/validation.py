"""Data that would fail later, with a less helpful message, are refused when they are read."""

import torch
from torch import Tensor

from archlearn.data.dataset import Split
from archlearn.errors import DataError

MOST_CLASSES = 1_000_000
"""A network has an output for each, so one stray number would fill the memory."""


def check_split(split: Split, part: str, name: str) -> None:
    """Refuse examples that are none, of no shape, or hold what is no number.

    Raises:
        DataError: If so; the part and the first such example are named.
    """
    if len(split.inputs) != len(split.targets) or len(split) == 0:
        raise DataError(
            f"the {part} part of {name!r} has {len(split.inputs)} inputs and "
            f"{len(split.targets)} targets; both must be the same and not 0"
        )
    if split.inputs.ndim < 2:
        raise DataError(
            f"the {part} inputs of {name!r} have shape {tuple(split.inputs.shape)}; give examples "
            "x features or examples x channels x height x width"
        )
    for what, values in (("inputs", split.inputs), ("targets", split.targets)):
        if values.is_complex():
            raise DataError(f"the {part} {what} of {name!r} are complex; give real numbers")
        _check_finite(values, f"the {part} {what} of {name!r}")


def check_classes(split: Split, part: str, name: str) -> None:
    """Refuse targets that are no classes, which are counted from 0, one for each example.

    Raises:
        DataError: If so.
    """
    targets = split.targets
    if targets.is_floating_point():
        raise DataError(
            f"the targets of {name!r} are floating-point numbers, but the task is "
            'classification; give integer classes, or set task = "regression"'
        )
    if targets.ndim != 1:
        raise DataError(
            f"the {part} targets of {name!r} have shape {tuple(targets.shape)}; give one class for "
            "each example, or floating-point numbers for a regression"
        )
    if targets.min() < 0:
        raise DataError(
            f"the {part} targets of {name!r} go down to {int(targets.min())}; classes are counted "
            "from 0"
        )
    if targets.max() >= MOST_CLASSES:
        raise DataError(
            f"the {part} targets of {name!r} go up to {int(targets.max())}; classes are counted "
            f"from 0 without gaps, and there may be {MOST_CLASSES:,} of them"
        )


def check_tokens(split: Split, part: str, name: str) -> None:
    """Refuse a text that is no rows of tokens, counted from 0, with one target for each.

    Raises:
        DataError: If so.
    """
    inputs, targets = split.inputs, split.targets
    if inputs.dtype != torch.long or targets.dtype != torch.long or inputs.shape != targets.shape:
        raise DataError(
            f"the {part} part of {name!r} has inputs of {inputs.dtype} and shape "
            f"{tuple(inputs.shape)} and targets of {targets.dtype} and shape "
            f"{tuple(targets.shape)}; to predict the next token give both as torch.int64, "
            "examples x tokens"
        )
    if min(int(inputs.min()), int(targets.min())) < 0:
        raise DataError(f"the {part} part of {name!r} has tokens below 0; they are counted from 0")


def _check_finite(values: Tensor, what: str) -> None:
    if not values.is_floating_point() or bool(torch.isfinite(values.sum())):
        return
    odd = ~torch.isfinite(values.reshape(len(values), -1)).all(1)
    if odd.any():
        raise DataError(
            f"{what} hold what is no finite number, first in example {int(odd.nonzero()[0])} "
            f"({int(odd.sum())} examples in all); repair them or leave them out"
        )
