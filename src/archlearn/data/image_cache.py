"""Decode images in parallel, once, into a cache on disk.

The file is mapped into memory, so that a set larger than memory is read as it is needed. Its
images lie in a random order, always the same one: a part of them is then a slice.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from archlearn.data.dataset import Split
from archlearn.data.decoding import BrokenImageError, decode_image, decode_into
from archlearn.data.file_cache import DownloadProgress, cache_folder, no_progress
from archlearn.errors import DataError, check_installed

logger = logging.getLogger(__name__)
IMAGE_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tiff"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageReading:
    """How images are read: to a side, or the layout's own, and with broken ones or not."""

    progress: DownloadProgress = no_progress
    skip_broken: bool = False
    side: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageList:
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


def list_images(folder: Path, classes: Sequence[str], side: int) -> ImageList:
    """Return the images under each class's folder with the number of the class."""
    paths: list[Path] = []
    targets: list[int] = []
    for number, name in enumerate(classes):
        found = sorted(p for p in (folder / name).rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
        if not found:
            raise DataError(f"{folder / name} holds no image; remove the folder or fill it")
        paths += found
        targets += [number] * len(found)
    return ImageList(paths=paths, targets=targets, side=side)


def refuse_broken(path: Path, why: str, reading: ImageReading) -> None:
    """Name a broken image in a warning where it may be left out, else refuse."""
    if not reading.skip_broken:
        raise DataError(
            f"the image {path} is broken ({why}); repair it, take it out of the folder, or leave "
            "broken images out with --skip-broken (learn, inspect, evaluate and data take it)"
        )
    logger.warning("the image %s is broken (%s) and left out", path, why)


_CHUNK = 250


def decode_all(
    file: Path, paths: Sequence[Path], side: int, progress: DownloadProgress
) -> Iterator[tuple[int, str]]:
    """Decode images into a mapped file; yield position and reason of each broken one."""
    shape = (len(paths), 3, side, side)
    np.memmap(file, np.uint8, mode="w+", shape=shape).flush()
    starts = range(0, len(paths), _CHUNK)
    chunks = [paths[start : start + _CHUNK] for start in starts]
    decode = partial(decode_into, file, shape)
    # Not forked: a copy of a process that has threads may hang.
    affinity = getattr(os, "sched_getaffinity", None)
    n_cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    with ProcessPoolExecutor(min(n_cores, len(chunks)), get_context("spawn")) as pool:
        try:
            for start, broken in zip(starts, pool.map(decode, starts, chunks), strict=True):
                yield from broken.items()
                progress("images", min(start + _CHUNK, len(paths)), len(paths))
        except BrokenProcessPool as error:
            raise DataError(
                f"a process that decodes images ended early ({error}), as when memory runs out"
            ) from error


_FORMAT = 1
_ORDER_SEED = 4711
_IMAGES, _TARGETS, _ABOUT = "images.bin", "targets.npy", "about.json"


def read_through_cache(listing: ImageList, reading: ImageReading) -> Split:
    """Return the images of a list, decoded now or at an earlier time."""
    # The name differs where a file is another, newer or of another size.
    digest = hashlib.sha256(f"{_FORMAT} {listing.side} {reading.skip_broken}".encode())
    for path, target in zip(listing.paths, listing.targets, strict=True):
        state = path.stat()
        line = f"\n{path.absolute()} {state.st_size} {state.st_mtime_ns} {target}"
        digest.update(line.encode("utf-8", errors="surrogateescape"))
    folder = cache_folder("images") / digest.hexdigest()[:24]
    if not (folder / _ABOUT).is_file():
        _build(folder, listing, reading)
    about = json.loads((folder / _ABOUT).read_text())
    # Mapped for reading; a write would stay in memory and not reach the file.
    shape = (about["n_images"], 3, about["side"], about["side"])
    images = np.memmap(folder / _IMAGES, np.uint8, mode="c", shape=shape)
    targets = torch.from_numpy(np.load(folder / _TARGETS))
    return Split(torch.from_numpy(images), targets, mixed=True)


def _build(folder: Path, listing: ImageList, reading: ImageReading) -> None:
    """Decode into a folder beside, and give it its name when all is there."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    temporary.mkdir(parents=True, exist_ok=True)
    try:
        _fill(temporary, listing, reading)
        try:
            temporary.rename(folder)
        except OSError:
            if not (folder / _ABOUT).is_file():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _fill(folder: Path, listing: ImageList, reading: ImageReading) -> None:
    generator = torch.Generator().manual_seed(_ORDER_SEED)
    order = torch.randperm(len(listing.paths), generator=generator).tolist()
    paths = [listing.paths[place] for place in order]
    file = folder / _IMAGES
    n_bytes, free = len(paths) * 3 * listing.side**2, shutil.disk_usage(folder).free
    if n_bytes > free:
        raise DataError(
            f"{len(paths)} images of {listing.side} x {listing.side} need "
            f"{n_bytes / 2**30:.1f} GiB in {folder.parent}, where {free / 2**30:.1f} GiB are "
            "free; choose a smaller side (DIR:64), or set ARCHLEARN_CACHE to a larger disk"
        )
    broken: set[int] = set()
    for place, why in decode_all(file, paths, listing.side, reading.progress):
        refuse_broken(paths[place], why, reading)
        broken.add(place)
    kept = [place for place in range(len(paths)) if place not in broken]
    if broken:  # images move up to where those were, and the file is cut
        size = file.stat().st_size // len(paths)
        images = np.memmap(file, np.uint8, mode="r+", shape=(len(paths), size))
        for place, source in enumerate(kept):
            images[place] = images[source]
        images.flush()
        os.truncate(file, len(kept) * size)
    np.save(folder / _TARGETS, np.array([listing.targets[order[place]] for place in kept]))
    about = {
        "format": _FORMAT,
        "n_images": len(kept),
        "side": listing.side,
        "layout": "uint8, images x red green blue x height x width",
        "left_out": sorted(str(paths[place]) for place in broken),
    }
    (folder / _ABOUT).write_text(json.dumps(about, indent=1))


FEWEST_TO_CACHE = 2000
"""Fewer images than this are decoded anew each time, which takes a second or two."""


def read_images(listing: ImageList, reading: ImageReading) -> Split:
    """Return the images of a list as bytes, images x 3 x side x side, with their classes."""
    check_installed("a folder of images", "cli", "PIL")
    for path in listing.paths:
        if not path.is_file():
            raise DataError(f"the image {path} is listed but is not there; fetch the data again")
    if len(listing.paths) >= FEWEST_TO_CACHE:
        return read_through_cache(listing, reading)
    images: list[np.ndarray] = []
    targets: list[int] = []
    for path, target in zip(listing.paths, listing.targets, strict=True):
        try:
            images.append(decode_image(path, listing.side))
            targets.append(target)
        except BrokenImageError as error:
            refuse_broken(path, str(error), reading)
        reading.progress("images", len(images), len(listing.paths))
    if not images:
        raise DataError(f"none of {len(listing.paths)} images can be read")
    return Split(torch.from_numpy(np.stack(images)), torch.tensor(targets))
