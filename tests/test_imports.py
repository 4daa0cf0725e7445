"""`import archlearn` costs nothing, and offers every public name."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import archlearn as al

# the names that design.md fixes
FIXED = (
    "add_gates", "inspect", "parameter_groups", "Strengths", "penalty", "clip_gates_",
    "read_architecture", "plan", "compact", "certify", "save", "load", "count_costs", "Learn",
    "TriState",
)  # fmt: skip
ERRORS = (
    "CertificateError",
    "FileError",
    "GateError",
    "InputError",
    "SurgeryError",
    "TracingError",
)


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout


def test_importing_does_not_import_torch() -> None:
    heavy = "{'torch', 'numpy', 'safetensors', 'jaxtyping'}"
    code = f"import sys, archlearn; dir(archlearn); print(sorted({heavy} & set(sys.modules)))"
    assert ast.literal_eval(run(code)) == []


def test_a_name_brings_torch_when_it_is_used() -> None:
    """The control: the same look at `sys.modules` does see torch."""
    assert (
        run("import sys, archlearn; archlearn.penalty; print('torch' in sys.modules)") == "True\n"
    )


def test_a_learn_flag_needs_no_torch() -> None:
    assert run("import sys, archlearn; archlearn.Learn; print('torch' in sys.modules)") == "False\n"


@pytest.mark.parametrize("name", FIXED)
def test_every_name_of_the_design_is_there(name: str) -> None:
    assert name in dir(al)
    assert name in al.__all__
    assert callable(getattr(al, name))


@pytest.mark.parametrize("name", al.__all__)
def test_every_public_name_says_what_it_is(name: str) -> None:
    value = getattr(al, name)
    assert value.__module__.startswith("archlearn.")
    assert value.__doc__
    assert value.__name__ == name


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_one_of_ours(name: str) -> None:
    assert issubclass(getattr(al, name), al.ArchlearnError)


def test_wrong_arguments_are_value_errors_too() -> None:
    assert issubclass(al.InputError, ValueError)
    assert issubclass(al.GateError, ValueError)
    assert issubclass(al.FileError, ValueError)


def test_a_name_that_is_not_there_is_refused() -> None:
    with pytest.raises(AttributeError, match="module 'archlearn' has no attribute 'prune'"):
        al.prune  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert al.__version__ == version("archlearn")


def test_no_two_modules_have_the_same_name() -> None:
    assert al.__file__ is not None
    files = Counter(path.name for path in Path(al.__file__).parent.rglob("*.py"))
    counted = {name for name, count in files.items() if count > 1}
    assert counted == {"__init__.py"}


def imports_a_submodule(path: Path) -> bool:
    """Return whether a file imports anything of ours but `archlearn` itself."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return any(name.startswith(("archlearn.", "archlearn_cli.")) for name in found)


def test_at_most_a_third_of_the_tests_import_a_submodule() -> None:
    """Tests of the public surface let the inside be rebuilt."""
    files = list(Path(__file__).parent.rglob("*.py"))
    inside = [path for path in files if imports_a_submodule(path)]
    assert len(inside) <= len(files) / 3, f"{len(inside)} of {len(files)}"


@pytest.mark.parametrize("room", ["data", "models", "training"])
def test_a_package_of_ours_is_loaded_when_it_is_used(room: str) -> None:
    name = f"archlearn_cli.{room}"
    code = f"import sys, archlearn_cli; {name}; print('{name}' in sys.modules)"
    assert run(code) == "True\n"
