"""Folders of images: one folder a class, Tiny ImageNet.

Classes are numbered in the alphabetical order of their names (n01440764 is 0), as Caffe and
torchvision do.
"""

from dataclasses import replace
from pathlib import Path

from archlearn.data.dataset import Examples, carve_test
from archlearn.data.image_cache import (
    ImageList,
    ImageReading,
    list_classes,
    list_images,
    read_images,
)
from archlearn.errors import DataError

DEFAULT_SIDE = 64
_TEST_SHARE = 0.2


def load_folder(folder: Path, reading: ImageReading) -> Examples:
    """Return the images of a folder, made square, in red, green and blue.

    With `train` and `test` (or `val`) inside, those are the parts; else a fifth is set apart.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give the folder that holds one folder a class")
    side = reading.side or DEFAULT_SIDE
    test_folder = next((folder / n for n in ("test", "val") if (folder / n).is_dir()), None)
    if (folder / "train").is_dir() and test_folder is not None:
        classes = list_classes(folder / "train")
        train = read_images(list_images(folder / "train", classes, side), reading)
        test = read_images(list_images(test_folder, classes, side), reading)
    else:
        everything = read_images(list_images(folder, list_classes(folder), side), reading)
        train, test = carve_test(everything, _TEST_SHARE)
    return Examples(name=folder.name, source=f"folder {folder}", train=train, test=test)


_NAME = "tiny-imagenet-200"
_SIDE = 64
_TINY_TABLE = "val_annotations.txt"


def load_tiny_imagenet(folder: Path, reading: ImageReading) -> Examples:
    """Return 200 classes of 64 x 64 images; the official validation part is the test.

    The labels of the official test part were never published, so a part of the train images is
    set apart to validate on. A folder whose `val` already has one folder a class works too, and
    so does the folder that holds `tiny-imagenet-200`.
    """
    folder = folder / _NAME if (folder / _NAME).is_dir() else folder
    side = reading.side or _SIDE
    table = folder / "val" / _TINY_TABLE
    if not table.is_file():
        return load_folder(folder, replace(reading, side=side))
    classes = list_classes(folder / "train")
    train = read_images(list_images(folder / "train", classes, side), reading)
    listed = _list_table(table, {name: n for n, name in enumerate(classes)}, side)
    test = read_images(listed, reading)
    return Examples(name="tiny-imagenet", source=f"folder {folder}", train=train, test=test)


def _list_table(table: Path, numbers: dict[str, int], side: int) -> ImageList:
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
    return ImageList(paths=paths, targets=targets, side=side)
