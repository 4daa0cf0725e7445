"""What is to be read is listed first: files with their classes, and how to read them."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from archlearn.data.downloads import Progress, no_progress
from archlearn.errors import DataError

logger = logging.getLogger(__name__)

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tiff"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How images are read.

    Attributes:
        skip_broken: Leave broken images out, naming each, instead of refusing.
        side: Height and width they are made; None is the layout's own.
    """

    progress: Progress = no_progress
    skip_broken: bool = False
    side: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """Image files and the class of each."""

    paths: Sequence[Path]
    targets: Sequence[int]
    side: int


def list_classes(folder: Path) -> list[str]:
    """Return the names of the classes, in alphabetical order."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give the folder that holds one folder a class")
    classes = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if len(classes) < 2:
        raise DataError(
            f"{folder} holds {len(classes)} folder(s); one folder a class, at least two, is needed"
        )
    return classes


def list_images(folder: Path, classes: Sequence[str], side: int) -> Listing:
    """Return the images under each class's folder with the number of the class."""
    paths: list[Path] = []
    targets: list[int] = []
    for number, name in enumerate(classes):
        found = sorted(p for p in (folder / name).rglob("*") if p.suffix.lower() in SUFFIXES)
        if not found:
            raise DataError(f"{folder / name} holds no image; remove the folder or fill it")
        paths += found
        targets += [number] * len(found)
    return Listing(paths=paths, targets=targets, side=side)


def named_broken(path: Path, why: str, reading: Reading) -> None:
    """Name a broken image in a warning where it may be left out, else refuse.

    Raises:
        DataError: If it may not.
    """
    if not reading.skip_broken:
        raise DataError(
            f"the image {path} is broken ({why}); repair it, take it out of the folder, or leave "
            "broken images out with --skip-broken (learn, inspect, evaluate and data take it)"
        )
    logger.warning("the image %s is broken (%s) and left out", path, why)
