"""A user's own code that fails is answered with what failed and where."""

from pathlib import Path

import pytest

from archlearn.errors import InputError
from archlearn.models.choosing import build_network
from archlearn.training.data.choosing import load_examples

CODE = """
def build(input_shape, n_outputs):
    return 1 / 0

def build_with_more(input_shape, n_outputs, colour):
    return None

def data():
    raise OSError("no such table")
"""


@pytest.fixture(autouse=True)
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a module with mistakes, and one that cannot be read, where a user would."""
    (tmp_path / "code_with_mistakes.py").write_text(CODE)
    (tmp_path / "code_that_breaks.py").write_text("def build(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("function", "answer"),
    [
        ("build", r"raised ZeroDivisionError: division by zero \(.*mistakes.py:3\)"),
        ("build_with_more", r"raised TypeError: .*'colour'; try it in Python alone"),
    ],
)
def test_model_that_cannot_be_built_is_answered_with_the_line(function: str, answer: str) -> None:
    with pytest.raises(InputError, match=answer):
        build_network(f"code_with_mistakes:{function}", (1, 8, 8), 10)


def test_data_that_cannot_be_made_are_answered_with_the_line() -> None:
    with pytest.raises(InputError, match=r"raised OSError: no such table \(.*mistakes.py:9\)"):
        load_examples("code_with_mistakes:data")


def test_module_that_cannot_be_read_is_answered_with_the_line() -> None:
    with pytest.raises(InputError, match=r"raised SyntaxError: .*code_that_breaks.py, line 1"):
        build_network("code_that_breaks:build", (1, 8, 8), 10)
