"""An environment where torchvision does not import says what to do, and that works."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.torchvision_import import explain_import

if find_spec("torchvision") is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_torchvision_for_another_torch_comes_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    said = explain_import()
    assert "does not import beside torch" in said
    assert "operator nms does not exist" in said
    assert "pip install --no-deps --force-reinstall torchvision==" in said


def test_the_lines_of_the_advice_make_torchvision_import() -> None:
    failed = run("import torchvision")
    if failed.returncode == 0:
        pytest.skip("torchvision imports here without them")
    page = (Path(__file__).parents[1] / "docs" / "troubleshooting.md").read_text()
    lines = page.partition("torchvision::nms does not exist")[2].split("```python\n")[1]
    done = run(lines.split("```")[0] + "\nimport torchvision, transformers")
    assert done.returncode == 0, done.stderr
