"""Runs learn to a budget: they land, are refused before training, and can be cut further."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import archlearn as al
from archlearn_cli.training import (
    Audience,
    GateSettings,
    RunSettings,
    SilentCallback,
    learn,
    load_gated_model,
    override,
    resume,
)
from archlearn_cli.training.run_setup import (
    count_cuts,
    cut_to_budget_,
    read_schedule,
    shrinks_by_default,
)
from tests.run_files import COMPACT, METRICS, read_lines

ASKED = {"model": "mlp:40-30", "data": "digits", "epochs": 8, "limit": 800, "batch_size": 50,
         "accelerator": "cpu", "threads": 1, "report": False, "learn": "width"}  # fmt: skip


class Impatient(SilentCallback):
    """Presses Ctrl-C after five steps."""

    def stepped(self, step: int) -> None:
        if step == 5:
            os.kill(os.getpid(), signal.SIGINT)


def run(folder: Path, **given: Any) -> dict[str, Any]:
    return dict(learn(override(RunSettings(), ASKED | given), folder))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that learnt 60 % of its parameters."""
    made = tmp_path_factory.mktemp("runs") / "a"
    run(made, budget=("parameters=60%",))
    return made


def test_a_run_lands_on_its_budget_and_writes_the_path(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    before, after = (summary[when]["parameters"] for when in ("before", "after"))
    assert 0.58 * before <= after <= 0.6 * before
    rows = read_lines(folder / METRICS)
    paths = [row["budget_path"]["parameters"] for row in rows]
    assert paths == sorted(paths, reverse=True)
    assert paths[0] == before
    assert paths[-1] == pytest.approx(0.6 * before, abs=1)
    for row, allowed in zip(rows, paths, strict=True):
        assert row["parameters"] <= allowed + 0.05 * before
    assert rows[-1]["price"] > 0


def test_a_finished_run_is_cut_further_and_opens_nothing(folder: Path) -> None:
    revived = load_gated_model(folder)
    opened = {name: gate >= 0.5 for name, gate in al.width_gates(revived.model).items()}
    cut_to_budget_(revived, {"parameters": "30%"})
    plan = al.plan(revived.model)
    start = json.loads((folder / "summary.json").read_text())["before"]["parameters"]
    assert plan.after.parameters <= 0.3 * start  # of the original: it has shrunk meanwhile
    assert plan.before.parameters < 0.7 * start
    for name, gate in al.width_gates(revived.model).items():
        assert not bool(((gate >= 0.5) & ~opened[name]).any())
    roomy = load_gated_model(folder)
    cut_to_budget_(roomy, {"parameters": "90%"})
    assert al.plan(roomy.model).after.parameters <= 0.6 * start


def test_a_finished_run_is_cut_to_widths_that_are_multiples(folder: Path) -> None:
    revived = load_gated_model(folder)
    opened = {name: gate >= 0.5 for name, gate in al.width_gates(revived.model).items()}
    cut_to_budget_(revived, {}, multiple_of=4)
    for name, gate in al.width_gates(revived.model).items():
        kept = gate >= 0.5
        assert int(kept.sum()) == int(opened[name].sum()) // 4 * 4
        assert not bool((kept & ~opened[name]).any())


def test_a_run_keeps_multiples_of_channels(tmp_path: Path) -> None:
    summary = run(tmp_path / "a", budget=("parameters=50%",), multiple_of=8, epochs=3)
    small = al.load(tmp_path / "a" / COMPACT)
    widths = [p.shape[0] for p in small.parameters() if p.dim() == 2]
    assert all(n % 8 == 0 or n in (30, 10) for n in widths)
    assert summary["after"]["parameters"] <= 0.5 * summary["before"]["parameters"]


def test_multiples_are_refused_under_a_penalty(tmp_path: Path) -> None:
    with pytest.raises(al.SettingsError, match="gates learn by a penalty, which closes them one"):
        run(tmp_path / "a", width_cost=1e-3, multiple_of=8)


def test_a_budget_that_is_met_at_the_end_is_not_called_missed_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path / "a", budget=("parameters=60%",), epochs=2)
    assert "was asked for, but the compact model has" not in caplog.text


def test_a_run_on_a_budget_of_latency_writes_its_table_and_what_it_measured_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("archlearn.optim.latency._SECONDS", 0.0)
    run(tmp_path / "a", budget=("latency=100%",), epochs=1)
    table = json.loads((tmp_path / "a" / "latency.json").read_text())
    assert (table["conditions"]["device"], table["batch_size"]) == ("cpu", 2)
    row = read_lines(tmp_path / "a" / METRICS)[-1]
    assert row["budget_path"].keys() == {"latency"}
    assert row["latency"] > 0
    measured = json.loads((tmp_path / "a" / "speed.json").read_text())["rows"]
    assert [(each["device"], each["batch_size"]) for each in measured] == [("cpu", 2)]


def test_a_resumed_run_goes_by_the_table_of_latencies_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("archlearn.optim.latency._SECONDS", 0.0)
    settings = override(RunSettings(), ASKED | {"budget": ("latency=100%",), "epochs": 1})
    with pytest.raises(al.RunInterruptedError):
        learn(settings, tmp_path / "a", Audience(observer=Impatient()))
    path = tmp_path / "a" / "latency.json"
    table = json.loads(path.read_text())
    slower = {name: [1000 * time for time in times] for name, times in table["calls"].items()}
    path.write_text(json.dumps(table | {"calls": slower}))
    resume(tmp_path / "a")
    first, *_, last = read_lines(tmp_path / "a" / METRICS)
    assert last["budget_path"]["latency"] == pytest.approx(1000 * first["budget_path"]["latency"])


def test_without_a_budget_half_of_what_can_go_goes(tmp_path: Path) -> None:
    summary = run(tmp_path / "a")
    share = summary["after"]["multiply_adds"] / summary["before"]["multiply_adds"]
    assert 0.45 <= share <= 0.53


def test_a_width_cost_asks_for_the_penalty(tmp_path: Path) -> None:
    run(tmp_path / "a", width_cost=1e-3, epochs=1)
    assert "budget_path" not in read_lines(tmp_path / "a" / METRICS)[-1]
    run(tmp_path / "b", width_cost=1e-3, gate_optimizer="budget", epochs=1)
    assert read_lines(tmp_path / "b" / METRICS)[-1]["budget_path"] == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget": ("parameters=20",)}, "20 parameters cannot be reached"),
        ({"budget": ("parameters",)}, r"write it as --budget multiply_adds=50%"),
        ({"budget": ("speed=50%",)}, "budget names 'speed'"),
        ({"budget": ("parameters=50%",), "width_cost": 1e-3}, "a budget and a price were asked"),
        ({"gate_schedule": ("nosuch=1",)}, "gate_schedule names 'nosuch'; there are begin, end"),
        ({"gate_schedule": ("memory=x",)}, "gate_schedule has memory=x; give a number"),
        ({"gate_schedule": ("patience=2.5",)}, "has patience=2.5; give a whole number"),
        ({"gate_schedule": ("memory",)}, "write it as --gate-schedule branch_discount=16"),
    ],
)
def test_what_cannot_be_is_refused_before_training(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(al.ArchlearnError, match=message):
        run(tmp_path / "a", **given)
    assert not (tmp_path / "a").exists()


def test_a_schedule_is_read_from_the_settings() -> None:
    asked = replace(GateSettings(), gate_schedule=("signal=size", "decisions=9", "cost_power=2"))
    schedule = read_schedule(asked)
    assert (schedule.signal, schedule.decisions, schedule.cost_power) == ("size", 9, 2.0)
    assert read_schedule(GateSettings()) == al.GateSchedule()
    with pytest.raises(al.InputError, match="signal is 'loud'"):
        read_schedule(replace(asked, gate_schedule=("signal=loud",)))


def test_the_compact_file_of_a_budget_loads(folder: Path) -> None:
    revived = load_gated_model(folder)
    small = al.load(folder / COMPACT)
    costs = al.count_costs(small, revived.example)
    assert costs.parameters == al.plan(revived.model).after.parameters


def test_a_captured_step_is_cut_seldom_and_in_a_short_run_only_at_the_end() -> None:
    captured = [count_cuts(n, captured=True, compiled=False) for n in (1_000, 5_000, 10**6)]
    assert captured == [0, 2, 3]
    assert count_cuts(5_000, captured=False, compiled=True) == al.GateSchedule().cuts
    assert count_cuts(5_000, captured=False, compiled=False) == 20


def test_a_run_on_a_gpu_shrinks_by_itself_where_it_is_long_and_nothing_is_compiled() -> None:
    assert shrinks_by_default("cpu", 1e6, compiled=True)
    found = [shrinks_by_default("cuda", n, compiled=c) for n in (1e13, 1e15) for c in (True, False)]
    assert found == [False, False, False, True]
