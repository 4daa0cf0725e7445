"""Folders of images: one folder a class, ImageNet, Tiny ImageNet.

The folder holds `train` (one folder a class), `val` and the unpacked development kit, as the
archives give them. Classes are numbered in the alphabetical order of their names (n01440764 is
0), as Caffe and torchvision do; the kit has numbers of its own, which its table translates.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from archlearn.data.dataset import Examples, carve_test
from archlearn.data.image_cache import (
    IMAGE_SUFFIXES,
    ImageList,
    ImageReading,
    list_classes,
    list_images,
    read_images,
)
from archlearn.errors import DataError, check_installed

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


IMAGENET_SIDE = 256
_LABELS = "ILSVRC2012_validation_ground_truth.txt"
_TABLE = "meta.mat"
_KITS = ("ILSVRC2012_devkit_t12/data", "devkit/data", "data", ".")


def load_imagenet(folder: Path, reading: ImageReading) -> Examples:
    """Return ILSVRC-2012; its validation part is the test, as its test labels are not public."""
    side = reading.side or IMAGENET_SIDE
    classes = list_classes(folder / "train")
    listed = _list_validation(folder, classes, side)
    train = read_images(list_images(folder / "train", classes, side), reading)
    test = read_images(listed, reading)
    return Examples(name="imagenet", source=f"folder {folder}", train=train, test=test)


def _list_validation(folder: Path, classes: list[str], side: int) -> ImageList:
    inside = folder / "val"
    if not inside.is_dir():
        raise DataError(f"{folder} has no folder val with the validation images of ILSVRC-2012")
    if all((inside / name).is_dir() for name in classes):
        return list_images(inside, classes, side)
    paths = sorted(path for path in inside.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
    kit = _find_kit(folder)
    words = (kit / _LABELS).read_bytes().split()
    odd = next((word for word in words if not word.isdigit()), None)
    if odd is not None:
        raise DataError(
            f"{kit / _LABELS} holds {odd!r}, but one number a line is wanted; unpack it anew"
        )
    labels = [int(word) for word in words]
    if len(paths) != len(labels):
        raise DataError(
            f"{inside} holds {len(paths)} images, but {kit / _LABELS} has {len(labels)} labels; "
            "unpack both anew"
        )
    names, numbers = _read_table(kit / _TABLE), {name: n for n, name in enumerate(classes)}
    unknown = next((n for n in labels if names.get(n) not in numbers), None)
    if unknown is not None:
        raise DataError(
            f"the kit's class {unknown} is {names.get(unknown)!r}, which {folder / 'train'} does "
            "not have; unpack all classes"
        )
    return ImageList(paths=paths, targets=[numbers[names[n]] for n in labels], side=side)


def _find_kit(folder: Path) -> Path:
    for place in _KITS:
        if (folder / place / _LABELS).is_file() and (folder / place / _TABLE).is_file():
            return folder / place
    raise DataError(
        f"the labels of {folder / 'val'} are missing: unpack the development kit "
        f"(ILSVRC2012_devkit_t12.tar.gz) in {folder}, or sort the images into one folder a class"
    )


def _read_table(path: Path) -> dict[int, str]:
    """Return the names of the classes by the kit's numbers, from its MATLAB table."""
    check_installed(str(path), "cli", "scipy")
    from scipy.io import loadmat

    try:
        rows: Any = loadmat(path, squeeze_me=True)["synsets"]
        return {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in rows}
    except Exception as error:  # Whatever scipy raises on odd bytes.
        raise DataError(
            f"{path} is not the table of the development kit ({error}); unpack it anew"
        ) from error


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
