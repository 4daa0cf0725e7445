"""A run in this process: stopped inside an epoch, resumed, and what its folder then holds."""

import os
import signal
from pathlib import Path

import pytest
import torch

from archlearn import RunInterruptedError, SettingsError
from archlearn_cli.training import (
    Audience,
    RunSettings,
    SilentCallback,
    learn,
    override,
    read_checkpoint,
    read_settings,
    resume,
)
from archlearn_cli.training.trainer import TrainingLoop
from tests.run_files import COMPACT, GATES, METRICS, read_lines

ASKED = {
    "model": "mlp:20-10",
    "data": "digits",
    "epochs": 6,
    "batch_size": 60,
    "limit": 600,
    "accelerator": "cpu",
    "checkpoint_seconds": 1e9,
}
STEPS_PER_EPOCH = 10


class Impatient(SilentCallback):
    """Presses Ctrl-C after a step, and may do more."""

    def __init__(self, at_step: int, *then: int) -> None:
        self._at_step = at_step
        self._signals = (signal.SIGINT, *then)

    def stepped(self, step: int) -> None:
        if step == self._at_step:
            for number in self._signals:
                os.kill(os.getpid(), number)


def run_until(folder: Path, at_step: int, *then: int) -> None:
    with pytest.raises(RunInterruptedError, match=f"interrupted at step {at_step} "):
        learn(override(RunSettings(), ASKED), folder, Audience(observer=Impatient(at_step, *then)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "a"
    learn(override(RunSettings(), ASKED), folder)
    return folder


def test_a_polite_kill_behind_ctrl_c_leaves_a_checkpoint(tmp_path: Path) -> None:
    run_until(tmp_path / "a", 3, signal.SIGTERM)
    assert read_checkpoint(tmp_path / "a") is not None


def test_a_second_ctrl_c_ends_a_run_at_once(tmp_path: Path) -> None:
    impatient = Impatient(3, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        learn(override(RunSettings(), ASKED), tmp_path / "a", Audience(observer=impatient))
    assert read_checkpoint(tmp_path / "a") is None


@pytest.mark.parametrize("at_step", [1, 33, 40, 59])
def test_interrupted_at_a_step_and_resumed_ends_the_same(
    whole: Path, tmp_path: Path, at_step: int
) -> None:
    folder = tmp_path / "a"
    run_until(folder, at_step)
    found = read_checkpoint(folder)
    assert found is not None
    assert (found[0].epoch, found[0].step) == (at_step // STEPS_PER_EPOCH, at_step)
    assert (found[0].loss_sum > 0) == (at_step % STEPS_PER_EPOCH > 0)
    summary = resume(folder)
    assert summary["resumed"] == 1
    expected, ended = read_checkpoint(whole), read_checkpoint(folder)
    assert expected is not None
    assert ended is not None
    for name, tensor in expected[1].items():
        assert tensor.numpy().tobytes() == ended[1][name].numpy().tobytes(), name
    for name in (METRICS, GATES):
        for first, second in zip(read_lines(whole / name), read_lines(folder / name), strict=True):
            assert first | {"seconds": 0} == second | {"seconds": 0}


@pytest.fixture
def host_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the loop do as on a GPU: lines are written while the next epoch is under way."""
    monkeypatch.setattr(TrainingLoop, "_is_ahead_of_device", lambda _: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)


@pytest.mark.usefixtures("host_ahead")
@pytest.mark.parametrize("at_step", [30, 33])
def test_lines_that_are_put_off_are_the_same_lines(
    whole: Path, tmp_path: Path, at_step: int
) -> None:
    run_until(tmp_path / "a", at_step)
    assert [row["epoch"] for row in read_lines(tmp_path / "a" / METRICS)] == [0, 1, 2, 3]
    resume(tmp_path / "a")
    for name in (METRICS, GATES):
        lines = zip(read_lines(whole / name), read_lines(tmp_path / "a" / name), strict=True)
        for first, second in lines:
            assert first | {"seconds": 0} == second | {"seconds": 0}


def test_compact_model_is_not_written_before_the_end(tmp_path: Path) -> None:
    run_until(tmp_path / "a", 25)
    assert not (tmp_path / "a" / COMPACT).exists()


def test_what_is_fixed_cannot_be_changed_when_resuming(tmp_path: Path) -> None:
    run_until(tmp_path / "a", 5)
    settings = read_settings(tmp_path / "a" / "config.toml")
    with pytest.raises(SettingsError, match="seed, batch_size cannot be changed"):
        resume(tmp_path / "a", override(settings, {"seed": 3, "batch_size": 5}))


def test_a_network_that_learnt_nothing_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learn(override(RunSettings(), ASKED | {"learning_rate": 1e-9}), tmp_path / "dead")
    assert "has learnt little or nothing: its train loss of 2.3" in caplog.text
    assert "a larger --budget" in caplog.text
    caplog.clear()
    priced = ASKED | {"learning_rate": 1e-9, "gate_optimizer": "penalty"}
    learn(override(RunSettings(), priced), tmp_path / "priced")
    assert "a lower --width-cost" in caplog.text
    caplog.clear()
    plain = ASKED | {"learning_rate": 1e-9, "learn": "nothing"}
    learn(override(RunSettings(), plain), tmp_path / "plain")
    assert "has learnt little" in caplog.text
    assert "width-cost" not in caplog.text
    caplog.clear()
    learn(override(RunSettings(), ASKED), tmp_path / "alive")
    assert "learnt little" not in caplog.text
