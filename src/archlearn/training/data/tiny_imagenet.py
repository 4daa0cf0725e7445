"""Tiny-ImageNet as its authors ship it: validation classes stand in a table of text."""

from pathlib import Path

import torch

from archlearn.training.data.building import Examples
from archlearn.training.data.datasets import Split
from archlearn.training.data.fetching import Progress
from archlearn.training.data.folders import list_classes, load_folder, read_classes, read_images
from archlearn.training.errors import DataError

_SIDE = 64
_TABLE = "val_annotations.txt"


def load_tiny_imagenet(folder: Path, progress: Progress) -> Examples:
    """Return 200 classes of 64 x 64 images; the official validation part is the test.

    The labels of the official test part were never published, so a part of the train images is
    set apart to validate on. A folder whose `val` already has one folder a class works too.
    """
    table = folder / "val" / _TABLE
    if not table.is_file():
        return load_folder(folder, _SIDE, progress)
    classes = list_classes(folder / "train")
    train = read_classes(folder / "train", classes, _SIDE, progress)
    test = _read_table(table, {name: n for n, name in enumerate(classes)}, progress)
    return Examples(name="tiny-imagenet", source=f"folder {folder}", train=train, test=test)


def _read_table(table: Path, numbers: dict[str, int], progress: Progress) -> Split:
    """Return the images that a table of file, class and box lists."""
    paths: list[Path] = []
    targets: list[int] = []
    for line in table.read_text().splitlines():
        file, name, *_ = line.split("\t")
        if name not in numbers:
            raise DataError(f"{table} gives {file} the class {name!r}, which train/ does not have")
        paths.append(table.parent / "images" / file)
        targets.append(numbers[name])
    return Split(read_images(paths, _SIDE, progress), torch.tensor(targets))
