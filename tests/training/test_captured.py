"""On a GPU a captured run learns what an ordinary one learns, compiled or not."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from archlearn.gating.gate_container import LEFT_OUT, STANDING
from archlearn_cli.data import no_progress
from archlearn_cli.training import RunSettings, Session, learn, override, prepare
from archlearn_cli.training.checkpoint import collect_tensors, order_of_epoch, read_checkpoint
from archlearn_cli.training.cuda_graph import CapturedStepper
from archlearn_cli.training.train_step import EagerStepper
from tests.run_files import GATES, METRICS, read_lines

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU"),
    pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning"),
]
ASKED: dict[str, Any] = {
    "model": "lenet",
    "data": "digits:28",
    "epochs": 3,
    "batch_size": 60,
    "limit": 720,
    "start_after": 0.0,
    "gate_rate": 0.5,
}


def make_session(tmp_path: Path, **given: object) -> Session:
    return prepare(override(RunSettings(), ASKED | given), tmp_path, no_progress)


def run_epoch(session: Session) -> dict[str, Tensor]:
    session.stepper.begin_epoch(order_of_epoch(len(session.dataset.train), 0, 0), 0.0, 0.0)
    place = 0
    while place < session.steps_per_epoch:
        place += session.stepper.advance(place, place)
    tensors = collect_tensors(session.work.model, session.work.optimizers)
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_epoch_is_the_same_epoch(tmp_path: Path, optimizer: str, compiled: bool) -> None:
    """Up to TF32: products there have ten bits."""
    ordinary = make_session(tmp_path, optimizer=optimizer, capture="no")
    captured = make_session(tmp_path, optimizer=optimizer, compile=compiled)
    assert isinstance(ordinary.stepper, EagerStepper)
    assert isinstance(captured.stepper, CapturedStepper)
    expected, found = run_epoch(ordinary), run_epoch(captured)
    for name, tensor in expected.items():
        if name in found and tensor.is_floating_point():
            torch.testing.assert_close(found[name], tensor, rtol=0.05, atol=0.02, msg=name)
    assert captured.stepper.sums() == pytest.approx(ordinary.stepper.sums(), rel=0.02)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_whole_run_writes_every_epoch(tmp_path: Path, compiled: bool) -> None:
    settings = override(RunSettings(), ASKED | {"compile": compiled})
    summary = learn(settings, tmp_path / "run")
    for name in (METRICS, GATES):
        assert [line["epoch"] for line in read_lines(tmp_path / "run" / name)] == [0, 1, 2, 3]
    assert summary["test_accuracy"] > 0.5


@pytest.mark.parametrize("compiled", [False, True])
def test_a_captured_run_shrinks_as_an_ordinary_one(tmp_path: Path, compiled: bool) -> None:
    asked = ASKED | {"epochs": 10, "gate_rate": None, "budget": ("parameters=10%",),
                     "gate_schedule": ("patience=3", "cuts=3"), "report": False,
                     "shrink": True}  # fmt: skip
    learn(override(RunSettings(), asked | {"compile": compiled}), tmp_path / "captured")
    rows = read_lines(tmp_path / "captured" / METRICS)
    trained = [row["trained"]["parameters"] for row in rows]
    assert trained[-1] < 0.2 * trained[0]
    assert len(set(trained)) > 2
    assert rows[-1]["train_loss"] < 1.0


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_decision_does_not_wait_for_the_device(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"gate_rate": None, "budget": ("parameters=50%",), "learn": "width"}
    session = make_session(tmp_path, **asked)
    run_epoch(session)
    gates = session.work.gate_optimizer
    assert gates is not None
    with torch.no_grad():
        gates._decide_(last=False)  # what was prepared on the host comes over
        torch.cuda.set_sync_debug_mode("error")
        try:
            gates._decide_(last=False)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_widths_are_cut_to_multiples_of_eight(tmp_path: Path) -> None:
    asked = ASKED | {"epochs": 10, "gate_rate": None, "budget": ("parameters=10%",),
                     "gate_schedule": ("patience=3",), "report": False, "shrink": True}  # fmt: skip
    learn(override(RunSettings(), asked), tmp_path / "run")
    states = read_checkpoint(tmp_path / "run")
    assert states is not None
    kept = {name: each for name, each in states[1].items() if ".kept." in name}
    sizes = [len(each) for name, each in kept.items() if not name.endswith((STANDING, LEFT_OUT))]
    assert len(sizes) == 3
    assert all(n % 8 == 0 or n in (20, 50, 500) for n in sizes)
    assert max(sizes) < 500
