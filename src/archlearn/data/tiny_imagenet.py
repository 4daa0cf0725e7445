"""Tiny-ImageNet as its authors ship it: validation classes stand in a table of text."""

from dataclasses import replace
from pathlib import Path

from archlearn.data.dataset_building import Examples
from archlearn.data.image_folders import load_folder
from archlearn.data.image_listing import Listing, Reading, list_classes, list_images
from archlearn.data.images import read_images
from archlearn.errors import DataError

_NAME = "tiny-imagenet-200"
_SIDE = 64
_TABLE = "val_annotations.txt"


def load_tiny_imagenet(folder: Path, reading: Reading) -> Examples:
    """Return 200 classes of 64 x 64 images; the official validation part is the test.

    The labels of the official test part were never published, so a part of the train images is
    set apart to validate on. A folder whose `val` already has one folder a class works too, and
    so does the folder that holds `tiny-imagenet-200`.
    """
    folder = folder / _NAME if (folder / _NAME).is_dir() else folder
    side = reading.side or _SIDE
    table = folder / "val" / _TABLE
    if not table.is_file():
        return load_folder(folder, replace(reading, side=side))
    classes = list_classes(folder / "train")
    train = read_images(list_images(folder / "train", classes, side), reading)
    listed = _list_table(table, {name: n for n, name in enumerate(classes)}, side)
    test = read_images(listed, reading)
    return Examples(name="tiny-imagenet", source=f"folder {folder}", train=train, test=test)


def _list_table(table: Path, numbers: dict[str, int], side: int) -> Listing:
    """Return the images that a table of file, class and box lists."""
    paths: list[Path] = []
    targets: list[int] = []
    for line in table.read_text().splitlines():
        file, _, rest = line.partition("\t")
        name = rest.partition("\t")[0]
        if name not in numbers:
            raise DataError(f"{table} gives {file} the class {name!r}, which train/ does not have")
        paths.append(table.parent / "images" / file)
        targets.append(numbers[name])
    return Listing(paths=paths, targets=targets, side=side)
