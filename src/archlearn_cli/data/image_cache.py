"""Decode images in parallel, once, into a cache on disk.

The file is mapped into memory, so that a set larger than memory is read as it is needed. Its
images lie in a random order, always the same one: a part of them is then a slice.
"""

import hashlib
import logging
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from archlearn.errors import DataError, check_installed
from archlearn_cli.data.dataset import Split
from archlearn_cli.data.file_cache import DownloadProgress, no_progress, writing_cache

logger = logging.getLogger(__name__)
IMAGE_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tiff"}
)
IMAGE_SIDE = 64
Listing = list[tuple[Path, int]]
"""Image files with the class of each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageReading:
    """How images are read: to which side, and whether broken ones are left out."""

    progress: DownloadProgress = no_progress
    skip_broken: bool = False
    side: int = IMAGE_SIDE


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


def list_images(folder: Path, classes: Sequence[str]) -> Listing:
    """Return the images under each class's folder with the number of the class."""
    listing: Listing = []
    for number, name in enumerate(classes):
        paths = sorted(p for p in (folder / name).rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
        if not paths:
            raise DataError(f"{folder / name} holds no image; remove the folder or fill it")
        listing += [(path, number) for path in paths]
    return listing


_CHUNK = 25
"""Images that a thread decodes at a time; those begun are finished after an interruption."""


def decode_all(images: np.ndarray, listing: Listing, reading: ImageReading) -> list[int]:
    """Decode images into an array, and return the places of those that are not broken.

    Threads do, for Pillow lets others work while it decodes.
    """
    from PIL import Image

    Image.init()  # plugins, which threads that begin together would miss
    starts = range(0, len(listing), _CHUNK)
    chunks = [listing[start : start + _CHUNK] for start in starts]
    parts = [images[start : start + _CHUNK] for start in starts]
    kept: list[int] = []
    with ThreadPoolExecutor() as pool:
        decoded = pool.map(_decode_chunk, parts, chunks)
        for start, chunk, broken in zip(starts, chunks, decoded, strict=True):
            for index, (path, _) in enumerate(chunk):
                if index not in broken:
                    kept.append(start + index)
                elif reading.skip_broken:
                    logger.warning("the image %s is broken (%s) and left out", path, broken[index])
                else:
                    pool.shutdown(cancel_futures=True)
                    raise DataError(
                        f"the image {path} is broken ({broken[index]}); repair it, take it out of "
                        "the folder, or leave broken images out with --skip-broken (learn, "
                        "inspect, evaluate and data take it)"
                    )
            reading.progress("images", min(start + _CHUNK, len(listing)), len(listing))
    if not kept:
        raise DataError(f"none of {len(listing)} images can be read")
    return kept


def _decode_chunk(images: np.ndarray, listing: Listing) -> dict[int, str]:
    """Make each image's middle square 3 x side x side bytes; return why each broken one is so."""
    from PIL import Image, ImageOps

    size, broken = images.shape[2:], dict[int, str]()
    for index, (path, _) in enumerate(listing):
        try:
            with Image.open(path) as image:
                # A JPEG that is much too large is made smaller while it is decoded.
                image.draft("RGB", size)
                square = ImageOps.fit(image.convert("RGB"), size)
        except Exception as error:  # Pillow raises whatever odd bytes make it stumble over.
            broken[index] = str(error) or type(error).__name__
        else:
            images[index] = np.asarray(square).transpose(2, 0, 1)
    return broken


_FORMAT = 2
_ORDER_SEED = 4711
_IMAGES, _TARGETS = "images.npy", "targets.npy"


def read_through_cache(listing: Listing, reading: ImageReading) -> Split:
    """Return the images of a list, decoded now or at an earlier time."""
    # The name differs where a file is another, newer or of another size.
    digest = hashlib.sha256(f"{_FORMAT} {reading.side} {reading.skip_broken}".encode())
    for path, target in listing:
        state = path.stat()
        line = f"\n{path.absolute()} {state.st_size} {state.st_mtime_ns} {target}"
        digest.update(line.encode("utf-8", errors="surrogateescape"))
    with writing_cache("images") as cache:
        folder = cache / digest.hexdigest()[:24]
        if not folder.is_dir():
            _build(folder, listing, reading)
    targets = torch.from_numpy(np.load(folder / _TARGETS))
    # Mapped for reading; a write would stay in memory and not reach the file.
    images = np.load(folder / _IMAGES, mmap_mode="c")[: len(targets)]
    return Split(torch.from_numpy(images), targets, mixed=True)


def _build(folder: Path, listing: Listing, reading: ImageReading) -> None:
    """Decode into a folder beside, and give it its name when all is there."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    temporary.mkdir(parents=True, exist_ok=True)
    try:
        _fill(temporary, listing, reading)
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process was faster
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _fill(folder: Path, listing: Listing, reading: ImageReading) -> None:
    generator = torch.Generator().manual_seed(_ORDER_SEED)
    order = torch.randperm(len(listing), generator=generator).tolist()
    mixed, side = [listing[index] for index in order], reading.side
    n_bytes, free = len(mixed) * 3 * side**2, shutil.disk_usage(folder).free
    if n_bytes > free:
        raise DataError(
            f"{len(mixed)} images of {side} x {side} need {n_bytes / 2**30:.1f} GiB in "
            f"{folder.parent}, where {free / 2**30:.1f} GiB are free; choose a smaller side "
            "(DIR:64), or set ARCHLEARN_CACHE to a larger disk"
        )
    shape = (len(mixed), 3, side, side)
    images = np.lib.format.open_memmap(folder / _IMAGES, "w+", np.uint8, shape)
    kept = decode_all(images, mixed, reading)
    for index, source in enumerate(kept):
        if index != source:  # move up to where a broken one was; what is behind is not read
            images[index] = images[source]
    images.flush()
    np.save(folder / _TARGETS, np.array([mixed[index][1] for index in kept]))


FEWEST_TO_CACHE = 2000
"""Fewer images than this are decoded anew each time, which takes a second or two."""


def read_images(listing: Listing, reading: ImageReading) -> Split:
    """Return the images of a list as bytes, images x 3 x side x side, with their classes."""
    check_installed("a folder of images", "cli", "PIL")
    for path, _ in listing:
        if not path.is_file():
            raise DataError(f"the image {path} is listed but is not there; fetch the data again")
    if len(listing) >= FEWEST_TO_CACHE:
        return read_through_cache(listing, reading)
    images = np.empty((len(listing), 3, reading.side, reading.side), np.uint8)
    kept = decode_all(images, listing, reading)
    targets = torch.tensor([listing[index][1] for index in kept])
    return Split(torch.from_numpy(images[kept]), targets)
