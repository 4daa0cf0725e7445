"""A user's own code that fails is answered with what failed and where."""

from pathlib import Path

import pytest

import archlearn_cli as cli
from archlearn import InputError

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
        cli.models.build_network(f"code_with_mistakes:{function}", (1, 8, 8), 10)


def test_data_that_cannot_be_made_are_answered_with_the_line() -> None:
    with pytest.raises(InputError, match=r"raised OSError: no such table \(.*mistakes.py:9\)"):
        cli.data.load_examples("code_with_mistakes:data")


def test_module_that_cannot_be_read_is_answered_with_the_line() -> None:
    with pytest.raises(InputError, match=r"raised SyntaxError: .*code_that_breaks.py, line 1"):
        cli.models.build_network("code_that_breaks:build", (1, 8, 8), 10)


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("own.py:Net", "without .py: own:Net"),
        ("nets/own.py:Net", "without .py: nets.own:Net"),
        ("./own.py", "without .py: own:build"),
        ("/home/me/own.py:Net", "go to the folder '/home/me' and name the module .*: own:Net"),
    ],
)
def test_a_file_is_answered_with_the_name_of_its_module(name: str, right: str) -> None:
    with pytest.raises(InputError, match=rf"{name!r} is a file; .*{right}$"):
        cli.models.build_network(name, (1, 8, 8), 10)
    with pytest.raises(InputError, match=rf"{name!r} is a file; .*{right}$"):
        cli.data.load_examples(name)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install packages that cannot be imported: of another version, and without a dependency."""
    packages = tmp_path / "site-packages"
    broken = {
        "vision_of_old": "import vision_of_old.operators\n",
        "vision_of_old/operators": "raise RuntimeError('operator nms does not exist')\n",
        "needy_vision": "import a_package_nobody_has\n",
    }
    for name, code in broken.items():
        file = packages / (f"{name}.py" if "/" in name else f"{name}/__init__.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code)
    monkeypatch.syspath_prepend(packages)


@pytest.mark.usefixtures("installed")
def test_a_package_that_is_broken_is_named_beside_the_line_that_imports_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "net_with_vision.py").write_text("from torch import nn\nimport vision_of_old\n")
    places = (
        r"'net_with_vision:Net' raised RuntimeError: operator nms does not exist "
        r"\(.*net_with_vision.py:2, .*vision_of_old/operators.py:1\)"
    )
    with pytest.raises(InputError, match=places):
        cli.models.build_network("net_with_vision:Net", (1, 8, 8), 10)
    with pytest.raises(InputError, match=r"nms does not exist \([^,]*operators.py:1\)"):
        cli.models.build_network("vision_of_old:net", (1, 8, 8), 10)


@pytest.mark.usefixtures("installed")
def test_what_a_module_lacks_is_named_and_not_the_module(tmp_path: Path) -> None:
    (tmp_path / "net_in_need.py").write_text("import needy_vision\n")
    answer = r"'net_in_need:Net' needs 'a_package_nobody_has' \(.*needy_vision/__init__.py:1\)"
    with pytest.raises(InputError, match=answer):
        cli.models.build_network("net_in_need:Net", (1, 8, 8), 10)
    with pytest.raises(InputError, match=r"No module named 'nowhere'; run the command in the fold"):
        cli.models.build_network("nowhere:Net", (1, 8, 8), 10)
