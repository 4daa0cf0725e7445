"""Images of a list become a split: few in memory, many through a file of decoded images."""

import numpy as np
import torch

from archlearn.data.dataset import Split
from archlearn.data.decoding import BrokenImageError, decode_image
from archlearn.data.image_cache import read_through_cache
from archlearn.data.image_listing import Listing, Reading, named_broken
from archlearn.errors import DataError

FEWEST_TO_CACHE = 2000
"""Fewer images than this are decoded anew each time, which takes a second or two."""


def read_images(listing: Listing, reading: Reading) -> Split:
    """Return the images of a list as bytes, images x 3 x side x side, with their classes.

    Raises:
        DataError: If an image is missing, or broken and none may be left out; it is named.
    """
    _check_pillow()
    for path in listing.paths:
        if not path.is_file():
            raise DataError(f"the image {path} is listed but is not there; fetch the data again")
    if len(listing.paths) >= FEWEST_TO_CACHE:
        return read_through_cache(listing, reading)
    return _read_now(listing, reading)


def _check_pillow() -> None:
    try:
        import PIL  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise DataError("images need pillow; pip install 'archlearn[cli]'") from error


def _read_now(listing: Listing, reading: Reading) -> Split:
    images: list[np.ndarray] = []
    targets: list[int] = []
    for path, target in zip(listing.paths, listing.targets, strict=True):
        try:
            images.append(decode_image(str(path), listing.side))
            targets.append(target)
        except BrokenImageError as error:
            named_broken(path, str(error), reading)
        reading.progress("images", len(images), len(listing.paths))
    if not images:
        raise DataError(f"none of {len(listing.paths)} images can be read")
    return Split(torch.from_numpy(np.stack(images)), torch.tensor(targets))
