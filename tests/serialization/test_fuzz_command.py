"""The command that fuzzes readers of files, on a small scale, and what it must be able to see."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.fuzz_files import CONTROLS
from benchmarks.hostile_files import FAMILIES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.fuzz_files", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)


def test_mutated_and_hostile_files_are_read_or_refused(tmp_path: Path) -> None:
    small = ["--mutated", "300", "--hostile", str(3 * len(FAMILIES)), "--largest", "300"]
    done = fuzz(*small, "--seed", "1", "--out", str(tmp_path / "fuzz.md"))
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "fuzz.md").read_text()
    assert f"300 mutated files, and {3 * len(FAMILIES)} hostile ones" in page
    assert "0 executed, 0 with an error that is not ours, 0 over 5 s" in page
    assert all(f"| {name} | 3 |" in page for name in FAMILIES)
    assert len(FAMILIES) >= 20


def test_the_fuzzer_sees_what_must_not_happen() -> None:
    done = fuzz("--control", "--seconds", "0.5")
    assert done.returncode == 1
    verdicts = re.findall(r"verdict='(\w+)'", done.stdout)
    assert verdicts == list(CONTROLS)
