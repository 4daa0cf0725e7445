"""Packages that only the command line needs are named before anything is done."""

from pathlib import Path

import pytest

from tests.cli.commands import run

pytestmark = pytest.mark.slow

LEARN = "learn --model mlp:5 --data digits --epochs 1 --threads 1 --out a"


@pytest.mark.parametrize("package", ["cyclopts", "matplotlib"])
def test_what_is_not_installed_is_named_first(package: str, tmp_path: Path) -> None:
    """A module that cannot be found stands in front of the one that is installed."""
    missing = f"raise ModuleNotFoundError('No module named {package}', name='{package}')\n"
    (tmp_path / f"{package}.py").write_text(missing)
    code, output = run(LEARN.split(), tmp_path)
    assert code == 1, output
    assert f"needs {package}, which is not installed; pip install 'archlearn[cli]'" in output
    assert "Traceback" not in output
    assert "epoch" not in output
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("command", ["paper table-1", "paper", "compare --quick"])
def test_the_paper_project_is_named_where_it_is_missing(command: str, tmp_path: Path) -> None:
    missing = "raise ModuleNotFoundError('No module', name='archlearn_paper')\n"
    (tmp_path / "archlearn_paper.py").write_text(missing)
    code, output = run(command.split(), tmp_path)
    assert code == 1, output
    assert "needs archlearn_paper, which is not installed; run `pip install ./paper`" in output
    assert "Traceback" not in output
