"""A folder of images, one folder a class, becomes bytes in memory."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from archlearn.training.data.building import Examples
from archlearn.training.data.datasets import Split, carve_test
from archlearn.training.data.fetching import Progress
from archlearn.training.errors import DataError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tiff"})
DEFAULT_SIDE = 64
_TEST_SHARE = 0.2
_MOST_BYTES = 32 << 30


def load_folder(folder: Path, side: int | None, progress: Progress) -> Examples:
    """Return the images of a folder, made `side` x `side` pixels in red, green and blue.

    With `train` and `test` (or `val`) inside, those are the parts; else a fifth is set apart.

    Raises:
        DataError: If there is nothing to read, or an image is broken; it is named.
    """
    _must_exist(folder)
    test_folder = next((folder / n for n in ("test", "val") if (folder / n).is_dir()), None)
    side = side or DEFAULT_SIDE
    if (folder / "train").is_dir() and test_folder is not None:
        classes = list_classes(folder / "train")
        train = read_classes(folder / "train", classes, side, progress)
        test = read_classes(test_folder, classes, side, progress)
    else:
        everything = read_classes(folder, list_classes(folder), side, progress)
        train, test = carve_test(everything, _TEST_SHARE)
    return Examples(name=folder.name, source=f"folder {folder}", train=train, test=test)


def _must_exist(folder: Path) -> None:
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give the folder that holds one folder a class")


def list_classes(folder: Path) -> list[str]:
    """Return the names of the classes, in alphabetical order."""
    classes = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if len(classes) < 2:
        raise DataError(
            f"{folder} holds {len(classes)} folder(s); one folder a class, at least two, is needed"
        )
    return classes


def read_classes(folder: Path, classes: Sequence[str], side: int, progress: Progress) -> Split:
    """Return the images under each class's folder with the number of the class."""
    paths: list[Path] = []
    targets: list[int] = []
    for number, name in enumerate(classes):
        found = sorted(p for p in (folder / name).rglob("*") if p.suffix.lower() in SUFFIXES)
        if not found:
            raise DataError(f"{folder / name} holds no image; remove the folder or fill it")
        paths += found
        targets += [number] * len(found)
    return Split(read_images(paths, side, progress), torch.tensor(targets))


def read_images(paths: Sequence[Path], side: int, progress: Progress) -> Tensor:
    """Return images as bytes, examples x 3 x side x side."""
    needed = len(paths) * 3 * side * side
    if needed > _MOST_BYTES:
        raise DataError(
            f"{len(paths)} images of {side} x {side} need {needed >> 30} GiB of memory; choose a "
            "smaller side (folder:DIR:64), or give your own loader as mypackage.data:build"
        )
    images = torch.empty(len(paths), 3, side, side, dtype=torch.uint8)
    for place, path in enumerate(paths):
        images[place] = read_image(path, side)
        progress("images", place + 1, len(paths))
    return images


def read_image(path: Path, side: int) -> Tensor:
    """Return one image, its middle square scaled to `side`, as 3 x side x side bytes."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise DataError("images need pillow; pip install 'archlearn[cli]'") from error
    try:
        with Image.open(path) as image:
            square = ImageOps.fit(image.convert("RGB"), (side, side))
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(
            f"the image {path} is broken ({error}); repair it or take it out of the folder"
        ) from error
    content = torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8)
    return content.reshape(side, side, 3).permute(2, 0, 1)
