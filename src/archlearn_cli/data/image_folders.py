"""Folders of images: one folder a class, Tiny ImageNet.

Classes are numbered in the alphabetical order of their names (n01440764 is 0), as
torchvision does.
"""

from pathlib import Path

from archlearn.errors import DataError
from archlearn_cli.data.dataset import Examples, carve_test
from archlearn_cli.data.image_cache import (
    ImageReading,
    Listing,
    list_classes,
    list_images,
    read_images,
)

_TEST_SHARE = 0.2


def load_folder(folder: Path, reading: ImageReading) -> Examples:
    """Return the images of a folder, made square, in red, green and blue.

    With `train` and `test` (or `val`) inside, those are the parts; else a fifth is set apart.
    """
    test_folder = next((folder / n for n in ("test", "val") if (folder / n).is_dir()), None)
    if (folder / "train").is_dir() and test_folder is not None:
        classes = list_classes(folder / "train")
        train = read_images(list_images(folder / "train", classes), reading)
        test = read_images(list_images(test_folder, classes), reading)
    else:
        everything = read_images(list_images(folder, list_classes(folder)), reading)
        train, test = carve_test(everything, _TEST_SHARE)
    return Examples(name=folder.name, source=f"folder {folder}", train=train, test=test)


_NAME = "tiny-imagenet-200"
_TINY_TABLE = "val_annotations.txt"


def load_tiny_imagenet(folder: Path, reading: ImageReading) -> Examples:
    """Return 200 classes of 64 x 64 images; the official validation part is the test.

    The labels of the official test part were never published, so a part of the train images is
    set apart to validate on. A folder whose `val` already has one folder a class works too, and
    so does the folder that holds `tiny-imagenet-200`.
    """
    folder = folder / _NAME if (folder / _NAME).is_dir() else folder
    table = folder / "val" / _TINY_TABLE
    if not table.is_file():
        return load_folder(folder, reading)
    classes = list_classes(folder / "train")
    train = read_images(list_images(folder / "train", classes), reading)
    test = read_images(_list_table(table, classes), reading)
    return Examples(name="tiny-imagenet", source=f"folder {folder}", train=train, test=test)


def _list_table(table: Path, classes: list[str]) -> Listing:
    """Return the images that a table of file, class and box lists."""
    listing: Listing = []
    for line in table.read_text().splitlines():
        file, name, *_ = [*line.split("\t"), ""]
        if name not in classes:
            raise DataError(f"{table} gives {file} the class {name!r}, which train/ does not have")
        listing.append((table.parent / "images" / file, classes.index(name)))
    return listing
