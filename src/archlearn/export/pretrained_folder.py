"""`save_pretrained`: a compact model of transformers as a folder that `from_pretrained` reads."""

import copy
import itertools
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from archlearn.errors import InputError, first_line
from archlearn.gating.cost_counter import known_inputs
from archlearn.module_utils import evaluating
from archlearn.serialization import save
from archlearn.tracing.generated_forward import user_class

FILE = "archlearn.safetensors"
_MOST_TRIES = 64


@dataclass(frozen=True, slots=True)
class SavedFolder:
    """What a folder holds.

    Attributes:
        path: The folder.
        is_pretrained: Whether `from_pretrained` reads it; else `archlearn.load` reads a file in it.
        reason: Which sizes the config says, or why it cannot say them.
    """

    path: Path
    is_pretrained: bool
    reason: str

    def __str__(self) -> str:
        if self.is_pretrained:
            return f"{self.path}: read it with from_pretrained ({self.reason})"
        return f"{self.path / FILE}: read it with archlearn.load ({self.reason})"


def save_pretrained(model: nn.Module, folder: str | PathLike[str]) -> SavedFolder:
    """Write a compact model of transformers into a folder, and say how it is read.

    Where all sizes fit the model's own config (every block equally wide), it is an ordinary folder
    that `AutoModel.from_pretrained` reads. Elsewhere it holds a file of `archlearn.save`.

    Args:
        model: A model from `compact`, of a class of transformers.
        folder: Where to write; it is made if it is not there.

    Raises:
        InputError: If the model is not one of transformers.
        FileError: If it fits neither way.
    """
    if not hasattr(model, "config") or not hasattr(model, "save_pretrained"):
        raise InputError(
            f"{type(model).__name__} is no model of transformers; write it with archlearn.save"
        )
    path = Path(folder)
    fitted, reason = _fit(model)
    path.mkdir(parents=True, exist_ok=True)
    if fitted is not None:
        fitted.save_pretrained(path)
    else:
        save(model, path / FILE)
    return SavedFolder(path, fitted is not None, reason)


def _fit(model: nn.Module) -> tuple[Any, str]:
    """Return an ordinary model with the same weights, or None, and the reason for it."""
    sizes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    config: Any = model.config
    changes = _differences(_shapes(model, config), sizes)
    if isinstance(changes, str):
        return None, changes
    for settings in _settings(config, changes):
        trial = copy.deepcopy(config)
        for name, size in settings.items():
            setattr(trial, name, size)
        if _shapes(model, trial) == sizes:
            fitted: Any = user_class(model)(trial)
            fitted.load_state_dict(model.state_dict())
            said = ", ".join(f"{name}={size}" for name, size in settings.items())
            return _check(model, fitted, said or "no size has changed")
    lost = ", ".join(f"{old} became {new}" for old, new in changes.items())
    return None, f"no setting of its config says that {lost}"


def _shapes(model: nn.Module, config: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes that a model of this config has; none if there is no such model."""
    try:
        with torch.device("meta"):
            made = user_class(model)(config)
    except Exception:  # whatever a config says to sizes that do not go together
        return {}
    return {name: tuple(tensor.shape) for name, tensor in made.state_dict().items()}


def _differences(
    old: dict[str, tuple[int, ...]], new: dict[str, tuple[int, ...]]
) -> dict[int, int] | str:
    """Return which sizes have become which, or why that is not one answer."""
    if old.keys() != new.keys():
        odd = sorted(old.keys() ^ new.keys())[0]
        return f"the tensor {odd!r} was added or merged, which no config says"
    changes: dict[int, int] = {}
    for name, shape in new.items():
        for before, after in zip(old[name], shape, strict=True):
            if before != after and changes.setdefault(before, after) != after:
                return (
                    f"its layers are not equally wide: of {before}, {changes[before]} stayed in "
                    f"one and {after} in {name!r}"
                )
    return changes


def _settings(config: Any, changes: dict[int, int]) -> list[dict[str, int]]:
    """Return the ways in which a config could say these changes."""
    numbers = {k: v for k, v in vars(config).items() if type(v) is int}
    fields = [[name for name, value in numbers.items() if value == old] for old in changes]
    if any(not found for found in fields):  # a size may be left out and follow from another
        optional = [name for name in ("n_inner",) if getattr(config, name, 0) is None]
        fields = [found or optional for found in fields]
    ways = itertools.islice(itertools.product(*fields), _MOST_TRIES)
    return [dict(zip(way, changes.values(), strict=True)) for way in ways]


def _check(model: nn.Module, fitted: nn.Module, said: str) -> tuple[Any, str]:
    """Return the ordinary model only if it computes the same."""
    inputs = known_inputs(model)
    fitted.to(next(model.parameters()))
    try:
        with torch.no_grad(), evaluating(model, fitted):
            pair = [each(*inputs.args, **inputs.kwargs) for each in (model, fitted)]
            expected, found = ([t for t in y.values() if isinstance(t, Tensor)] for y in pair)
            for one, other in zip(expected, found, strict=True):
                torch.testing.assert_close(one, other)
    except Exception as error:
        return None, f"an ordinary model with {said} does not compute the same: {first_line(error)}"
    return fitted, said
