"""Decode image files; `python -m archlearn.data.decoding` does so for a worker process.

A worker is a process of its own that knows nothing of torch, so that it starts at once. It reads
its job as JSON, writes images into a file that the caller has made, and says line by line how far
it is and which images are broken:

    python -m archlearn.data.decoding < job.json
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

_SAY_EVERY = 50
Say = Callable[[dict[str, Any]], None]


class BrokenImageError(Exception):
    """An image cannot be decoded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Images to be decoded into places of one array, images x 3 x side x side, in a file."""

    file: str
    n_images: int
    side: int
    places: list[int]
    paths: list[str]


def decode_image(path: str, side: int) -> np.ndarray:
    """Return an image's middle square, scaled to a side, as 3 x side x side bytes.

    Raises:
        BrokenImageError: If it is no image, or breaks off.
        ImportError: If pillow is not installed.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            # A JPEG that is much too large is made smaller while it is decoded.
            image.draft("RGB", (side, side))
            square = ImageOps.fit(image.convert("RGB"), (side, side))
    except Exception as error:  # Pillow raises whatever odd bytes make it stumble over.
        raise BrokenImageError(str(error) or type(error).__name__) from error
    return np.asarray(square).transpose(2, 0, 1)


def work_off(job: Job, say: Say) -> None:
    """Decode every image of a job into its place."""
    shape = (job.n_images, 3, job.side, job.side)
    images = np.memmap(job.file, np.uint8, mode="r+", shape=shape)
    done = 0
    for place, path in zip(job.places, job.paths, strict=True):
        try:
            images[place] = decode_image(path, job.side)
        except BrokenImageError as error:
            say({"broken": place, "why": str(error)})
        done += 1
        if done % _SAY_EVERY == 0:
            say({"done": _SAY_EVERY})
    images.flush()
    say({"done": done % _SAY_EVERY, "finished": True})


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    work_off(Job(**json.load(sys.stdin)), _say)
