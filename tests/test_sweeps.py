"""The examples of sweeps make a run for each budget and seed, and continue where they stopped."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SETTINGS = """
model = "mlp:24-16"
data = "digits"
limit = 300
epochs = 2

[gates]
learn = "width"

[hardware]
accelerator = "cpu"
threads = 1
"""


def sweep(name: str, folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run an example over two budgets and two seeds; return the summaries by folder."""
    (folder / "run.toml").write_text(SETTINGS)
    words = [str(EXAMPLES / name), str(folder / "run.toml"), str(folder / "s"), "60%,30%", "0,1"]
    patch.setattr(sys, "argv", words)
    runpy.run_path(words[0])
    paths = (folder / "s").glob("*/summary.json")
    return {path.parent.name: json.loads(path.read_text()) for path in paths}


def check(runs: dict[str, Any], said: str) -> None:
    assert runs.keys() == {"60%-seed-0", "60%-seed-1", "30%-seed-0", "30%-seed-1"}
    for name, run in runs.items():
        share = float(name.partition("%")[0]) / 100
        assert run["after"]["multiply_adds"] <= share * run["before"]["multiply_adds"]
        assert f"{run['after']['multiply_adds']:,} multiply-adds" in said


def test_optuna_makes_each_run_once_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed")
    check(sweep("sweep_optuna.py", tmp_path, monkeypatch), capsys.readouterr().out)
    again = sweep("sweep_optuna.py", tmp_path, monkeypatch)
    check(again, capsys.readouterr().out)
    assert all(run["resumed"] == 1 for run in again.values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own warnings
def test_ray_makes_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ray: Any = pytest.importorskip("ray", reason="ray is not installed")
    ray.init(num_cpus=2, include_dashboard=False)
    check(sweep("sweep_ray.py", tmp_path, monkeypatch), capsys.readouterr().out)
    ray.shutdown()
