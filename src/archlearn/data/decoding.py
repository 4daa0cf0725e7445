"""Decode image files; without torch, so that worker processes start at once."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np


class BrokenImageError(Exception):
    """An image cannot be decoded."""


def decode_image(path: Path, side: int) -> np.ndarray:
    """Return an image's middle square, scaled to a side, as 3 x side x side bytes."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            # A JPEG that is much too large is made smaller while it is decoded.
            image.draft("RGB", (side, side))
            square = ImageOps.fit(image.convert("RGB"), (side, side))
    except Exception as error:  # Pillow raises whatever odd bytes make it stumble over.
        raise BrokenImageError(str(error) or type(error).__name__) from error
    return np.asarray(square).transpose(2, 0, 1)


def decode_into(
    file: Path, shape: tuple[int, ...], first: int, paths: Sequence[Path]
) -> dict[int, str]:
    """Decode images into a mapped file, from a position on; return why each broken one is so."""
    images = np.memmap(file, np.uint8, mode="r+", shape=shape)
    broken: dict[int, str] = {}
    for place, path in enumerate(paths, start=first):
        try:
            images[place] = decode_image(path, shape[-1])
        except BrokenImageError as error:
            broken[place] = str(error)
    images.flush()
    return broken
