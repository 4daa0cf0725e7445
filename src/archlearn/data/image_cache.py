"""Decoded images are kept in a file, found again by what they were decoded from.

The file is mapped into memory, so that a set larger than memory is read as it is needed. Its
images lie in a random order, always the same one: a part of them is then a slice.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import torch

from archlearn.data.dataset import Split
from archlearn.data.decoding_workers import decode_all
from archlearn.data.file_cache import cache_folder
from archlearn.data.image_listing import Listing, Reading, named_broken
from archlearn.errors import DataError

_FORMAT = 1
_ORDER_SEED = 4711
_IMAGES, _TARGETS, _ABOUT = "images.bin", "targets.npy", "about.json"


def read_through_cache(listing: Listing, reading: Reading) -> Split:
    """Return the images of a list, decoded now or at an earlier time.

    Raises:
        DataError: If an image is broken and none may be left out, or the disk has no room.
    """
    folder = cache_folder("images") / _key(listing, reading)
    if not (folder / _ABOUT).is_file():
        _build(folder, listing, reading)
    about = json.loads((folder / _ABOUT).read_text())
    # Mapped for reading; a write would stay in memory and not reach the file.
    shape = (about["n_images"], 3, about["side"], about["side"])
    images = np.memmap(folder / _IMAGES, np.uint8, mode="c", shape=shape)
    targets = torch.from_numpy(np.load(folder / _TARGETS))
    return Split(torch.from_numpy(images), targets, mixed=True)


def _key(listing: Listing, reading: Reading) -> str:
    """Return a name that differs where a file is another, newer or of another size."""
    digest = hashlib.sha256(f"{_FORMAT} {listing.side} {reading.skip_broken}".encode())
    for path, target in zip(listing.paths, listing.targets, strict=True):
        state = path.stat()
        line = f"\n{path.absolute()} {state.st_size} {state.st_mtime_ns} {target}"
        digest.update(line.encode("utf-8", errors="surrogateescape"))
    return digest.hexdigest()[:24]


def _build(folder: Path, listing: Listing, reading: Reading) -> None:
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


def _fill(folder: Path, listing: Listing, reading: Reading) -> None:
    generator = torch.Generator().manual_seed(_ORDER_SEED)
    order = torch.randperm(len(listing.paths), generator=generator).tolist()
    paths = [listing.paths[place] for place in order]
    file, n_bytes = folder / _IMAGES, 3 * listing.side**2
    _make_room(file, len(paths) * n_bytes, listing)
    broken: list[int] = []
    for place, why in decode_all(file, paths, listing.side, reading.progress):
        named_broken(paths[place], why, reading)
        broken.append(place)
    targets = np.array([listing.targets[place] for place in order])
    n_images = _close_gaps(file, targets, n_bytes, broken)
    np.save(folder / _TARGETS, targets[:n_images])
    about = {
        "format": _FORMAT,
        "n_images": n_images,
        "side": listing.side,
        "layout": "uint8, images x red green blue x height x width",
        "left_out": sorted(str(paths[place]) for place in broken),
    }
    (folder / _ABOUT).write_text(json.dumps(about, indent=1))


def _make_room(file: Path, n_bytes: int, listing: Listing) -> None:
    free = shutil.disk_usage(file.parent).free
    if n_bytes > free:
        raise DataError(
            f"{len(listing.paths)} images of {listing.side} x {listing.side} need "
            f"{n_bytes / 2**30:.1f} GiB in {file.parent.parent}, where {free / 2**30:.1f} GiB are "
            "free; choose a smaller side (DIR:64), or set ARCHLEARN_CACHE to a larger disk"
        )
    with file.open("wb") as handle:
        # A file with holes would end the process when the disk fills up under a mapping.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle.fileno(), 0, n_bytes)
        else:
            handle.truncate(n_bytes)


def _close_gaps(file: Path, targets: np.ndarray, n_bytes: int, broken: list[int]) -> int:
    """Put the last images in the place of broken ones; return how many images there are."""
    n_images = len(targets)
    if not broken:
        return n_images
    images = np.memmap(file, np.uint8, mode="r+", shape=(n_images, n_bytes))
    for place in sorted(broken, reverse=True):
        n_images -= 1
        images[place], targets[place] = images[n_images], targets[n_images]
    images.flush()
    del images
    os.truncate(file, n_images * n_bytes)
    return n_images
