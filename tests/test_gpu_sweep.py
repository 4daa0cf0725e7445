"""The sweep of networks on a device says what became of each, and which must not be so."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_sweep import find_faults, page
from benchmarks.zoo.on_device import list_names, measure

ROW = {"device": "cuda", "commit": "abc"}


def test_it_has_the_networks_of_the_zoo_and_real_models_in_float64() -> None:
    names = list_names()
    assert sum(name.startswith("zoo/") for name in names) > 250
    assert sum(not name.startswith("zoo/") for name in names) == 272
    assert len({*names}) == len(names)


def test_a_network_learns_and_is_cut_exactly() -> None:
    row = measure("zoo/shuffle_unit", "cpu")
    assert row["result"] == "exact"
    assert row["left"] < 0.9


def test_a_network_that_does_not_get_to_a_device_is_no_refusal() -> None:
    assert measure("zoo/residual_projection", "nowhere")["result"] == "fails by itself"


def test_crashes_and_what_the_cpu_alone_takes_are_faults() -> None:
    rows = [
        {**ROW, "model": "hf/a", "result": "exact", "difference": 1e-15},
        {**ROW, "model": "hf/b", "result": "refused", "cpu": "refused", "said": "nothing learnt"},
        {**ROW, "model": "hf/c", "result": "refused", "cpu": "exact", "said": "an index"},
        {**ROW, "model": "zoo/d", "result": "crash", "cpu": "exact", "said": "RuntimeError: x"},
    ]
    assert [row["model"] for row in find_faults(rows)] == ["hf/c", "zoo/d"]
    text = page(rows, ["hf/a", "hf/b", "hf/c", "zoo/d", "zoo/e"], CIRCUMSTANCES)
    assert "1 exact, 2 refused, 1 crash; 1 not measured; 2 faults" in text
    assert "| hf | 1 | 2 | 0 |" in text
    assert "* zoo/d (on the CPU: exact): RuntimeError: x" in text
    assert "commit abc" in text


CIRCUMSTANCES = {"command": "make gpu", "date": "today", "hardware": "a GPU", "commit": "abc"}


@pytest.mark.slow
def test_a_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    out, written = tmp_path / "gpu.jsonl", tmp_path / "gpu.md"
    options = ["--device", "cpu", "--jobs", "2", "--out", str(out), "--page", str(written)]
    for pattern, n_rows in (("zoo/module_se*", 1), ("zoo/module_s[ei]*", 3)):
        command = [sys.executable, "-m", "benchmarks.gpu_sweep", *options, "--only", pattern]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        assert len(rows) == n_rows
        assert {row["result"] for row in rows} == {"exact"}
    assert "3 exact; 0 not measured; 0 faults" in written.read_text()
