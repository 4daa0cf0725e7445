"""Decode images in parallel, once, into a cache on disk.

The file is mapped into memory, so that a set larger than memory is read as it is needed. Its
images lie in a random order, always the same one: a part of them is then a slice.
"""

import hashlib
import json
import logging
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from archlearn.data.dataset import Split
from archlearn.data.decoding import BrokenImageError, Job, decode_image
from archlearn.data.downloads import Progress, no_progress
from archlearn.data.file_cache import cache_folder
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


_FEWEST_A_WORKER = 500


_ENDED: dict[str, Any] = {"ended": True}


def decode_all(
    file: Path, paths: Sequence[Path], side: int, progress: Progress
) -> Iterator[tuple[int, str]]:
    """Decode images into a file of the right size; yield place and reason of each broken one.

    Workers end with the iterator, whether it is exhausted or given up.

    Raises:
        DataError: If a worker does not get to its end.
    """
    n_workers = max(1, min(_n_cores(), len(paths) // _FEWEST_A_WORKER))
    jobs = [_share(file, paths, side, range(k, len(paths), n_workers)) for k in range(n_workers)]
    done = 0
    with _started(jobs, file.with_name("workers.log")) as said:
        running, finished = n_workers, 0
        while running:
            message = said.get()
            done += message.get("done", 0)
            finished += message.get("finished", False)
            if "broken" in message:
                yield message["broken"], message["why"]
            elif "ended" in message:
                running -= 1
            else:
                progress("images", done, len(paths))
    if finished < n_workers:
        raise DataError(
            f"{n_workers - finished} of {n_workers} processes that decode images ended early; "
            f"{_last_words(file.with_name('workers.log'))}"
        )


def _n_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _share(file: Path, paths: Sequence[Path], side: int, places: range) -> Job:
    return Job(
        file=str(file),
        n_images=len(paths),
        side=side,
        places=list(places),
        paths=[str(paths[place]) for place in places],
    )


@contextmanager
def _started(jobs: Sequence[Job], log: Path) -> Generator["queue.Queue[dict[str, Any]]"]:
    """Start a worker for each job; in the end none is left."""
    said: queue.Queue[dict[str, Any]] = queue.Queue()
    workers: list[subprocess.Popen[str]] = []
    listeners: list[threading.Thread] = []
    with log.open("w") as errors:
        try:
            for job in jobs:
                workers.append(_start(job, errors))
                listeners.append(threading.Thread(target=_listen, args=(workers[-1], said)))
                listeners[-1].start()
            yield said
        finally:
            for worker in workers:
                worker.kill()
            for worker, listener in zip(workers, listeners, strict=False):
                listener.join()
                worker.wait()
                assert worker.stdout is not None
                worker.stdout.close()


def _start(job: Job, errors: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "archlearn.data.decoding"]
    # The package may be on this process's path alone, as in a checkout that is not installed.
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path.rstrip(os.pathsep)}
    worker = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env=environment,
    )
    assert worker.stdin is not None
    try:
        worker.stdin.write(json.dumps(asdict(job)))
        worker.stdin.close()
    except BrokenPipeError:
        pass
    return worker


def _listen(worker: "subprocess.Popen[str]", said: "queue.Queue[dict[str, Any]]") -> None:
    assert worker.stdout is not None
    for line in worker.stdout:
        said.put(json.loads(line))
    said.put(_ENDED)


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "they left no word, as when memory runs out"


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
