"""Data sets by name: `mnist`, `folder:DIR`, or a user's `mypackage.data:build`."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from archlearn.errors import DataError, InputError
from archlearn_cli.data.dataset import Examples, Split, Task
from archlearn_cli.data.file_cache import DownloadProgress, no_progress
from archlearn_cli.data.image_cache import IMAGE_SIDE, ImageReading
from archlearn_cli.data.image_folders import load_folder, load_tiny_imagenet
from archlearn_cli.data.standard_datasets import (
    IDX_FILES,
    WINDOW_LENGTH,
    load_cifar,
    load_diabetes,
    load_digits,
    load_idx,
    load_text,
)
from archlearn_cli.models.user_code import call_users_code

_LARGEST_DIGITS = 512
IMAGE_LAYOUTS = {
    "folder": load_folder,
    "tiny-imagenet": load_tiny_imagenet,
}
DATASETS = {
    "mnist": "70,000 handwritten digits, 28 x 28 (fetched)",
    "fashion-mnist": "70,000 pieces of clothing, 28 x 28 (Debian's package, or fetched)",
    "cifar-10": "60,000 photographs of ten kinds of things, 3 x 32 x 32 (fetched)",
    "digits": "1,797 handwritten digits, 8 x 8; digits:28 enlarges them (scikit-learn's)",
    "diabetes": "442 patients, ten measurements: a regression (scikit-learn's)",
    "folder:DIR": "images, one folder a class; folder:DIR:64 chooses the side",
    "tiny-imagenet:DIR": "Tiny-ImageNet-200 as its authors ship it",
    "tiny-shakespeare:FILE": "a text, to predict its next characters; FILE:64 chooses the window",
    "package.module:function": "your own function; see the documentation",
}


def load_examples(
    name: str, progress: DownloadProgress = no_progress, *, skip_broken: bool = False
) -> Examples:
    """Return the examples that a name stands for.

    Args:
        name: The data set.
        progress: Told of every file fetched and every image decoded.
        skip_broken: Leave broken images out, naming each, instead of refusing.

    Raises:
        InputError: If there is no such data set; the nearest name is suggested.
        DataError: If it cannot be read.
    """
    kind, _, rest = name.partition(":")
    for entry in DATASETS:
        if not rest and entry in (f"{kind}:DIR", f"{kind}:FILE"):
            raise InputError(f"{name!r} does not say where the data are; write {entry}")
    if name in IDX_FILES:
        return load_idx(name, progress)
    if name == "cifar-10":
        return load_cifar(progress)
    if name == "diabetes":
        return load_diabetes()
    if kind == "digits":
        if rest and not (rest.isdigit() and 0 < int(rest) <= _LARGEST_DIGITS):
            raise InputError(
                f"{name!r}: behind digits: stands a number of pixels up to {_LARGEST_DIGITS}, "
                "as in digits:28"
            )
        return load_digits(int(rest) if rest else None)
    if kind in IMAGE_LAYOUTS:
        path, side = _path_and_number(rest, IMAGE_SIDE)
        reading = ImageReading(progress=progress, skip_broken=skip_broken, side=side)
        return IMAGE_LAYOUTS[kind](path, reading)
    if kind == "tiny-shakespeare":
        return load_text(*_path_and_number(rest, WINDOW_LENGTH))
    return _from_user(name)


def _path_and_number(rest: str, default: int) -> tuple[Path, int]:
    """Return the two parts of `PATH:NUMBER`, or a path alone and the default."""
    path, colon, number = rest.rpartition(":")
    if colon and number.isdigit() and int(number) > 0:
        return Path(path).expanduser(), int(number)
    return Path(rest).expanduser(), default


def _name_types(result: object) -> str:
    """Return the type of an object, of tuples and lists the types of what they hold."""
    if not isinstance(result, tuple | list):
        return type(result).__name__
    parts: Sequence[object] = result
    return f"({', '.join(map(_name_types, parts[:3]))}{', ...' if len(parts) > 3 else ''})"


def _from_user(name: str) -> Examples:
    """Call a user's function: it returns examples, or ((x, y), (x, y)) for train and test."""
    result = call_users_code(name, "data set", DATASETS)
    if isinstance(result, Examples):
        return result
    match result:
        case (
            (Tensor() as train_x, Tensor() as train_y),
            (Tensor() as test_x, Tensor() as test_y),
        ):
            task: Task = "regression" if train_y.is_floating_point() else "classification"
            return Examples(
                name=name,
                source=name,
                train=Split(train_x.detach(), train_y.detach()),
                test=Split(test_x.detach(), test_y.detach()),
                task=task,
            )
        case _:
            raise DataError(
                f"{name} returned {_name_types(result)}; return two pairs of tensors, "
                "((train inputs, targets), (test inputs, targets)), or Examples"
            )
