"""A text file as windows of character tokens, each with the characters that come next."""

from pathlib import Path

import torch
from torch import Tensor

from archlearn.data.dataset import Examples, Split
from archlearn.errors import DataError

DEFAULT_LENGTH = 128
_FILE = "input.txt"
"""What a folder's text is called, as the tiny Shakespeare is shipped."""


def load_text(path: Path, length: int = DEFAULT_LENGTH) -> Examples:
    """Return a text as windows that do not overlap; its last tenth is the test part.

    A token is the place of its character among the sorted ones of the whole text.

    Args:
        path: A text file in UTF-8, or a folder that holds `input.txt`.
        length: Characters of a window.

    Raises:
        DataError: If there is no such text, or it is too short.
    """
    path = path / _FILE if path.is_dir() else path
    text = _read(path)
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
            f"window, as {path}:16"
        )
    return Examples(
        name=path.name,
        source=f"file {path}",
        train=_windows(tokens[:n_train], length),
        test=_windows(tokens[n_train:], length),
        task="next_token",
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text in UTF-8: {error}") from error
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}): there is no such text file; give one, as "
            "tiny-shakespeare:input.txt"
        ) from error


def _windows(tokens: Tensor, length: int) -> Split:
    """Return whole windows, and the same one character further on as their targets."""
    n = (len(tokens) - 1) // length
    return Split(
        tokens[: n * length].reshape(n, length), tokens[1 : n * length + 1].reshape(n, length)
    )
