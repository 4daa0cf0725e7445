"""A run that learns from a frozen network beside the labels."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

import archlearn as al
import archlearn_cli as cli
from archlearn import RunInterruptedError, SettingsError
from archlearn_cli.data import no_progress
from archlearn_cli.training.train_step import loss_of
from tests.run_files import COMPACT, METRICS

QUIET = cli.training.Audience(observer=cli.training.SilentCallback(), command="test")
PLAIN = cli.training.RunSettings(
    model="mlp:32",
    data="digits",
    epochs=12,
    hardware=cli.training.HardwareSettings(accelerator="cpu"),
    gates=cli.training.GateSettings(learn="nothing"),
)
LEARNT = replace(PLAIN, epochs=6, gates=cli.training.GateSettings(budget=("parameters=60%",)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("trained") / "run"
    cli.training.learn(PLAIN, folder, QUIET)
    return str(folder / COMPACT)


def train_loss(folder: Path) -> float:
    return json.loads((folder / METRICS).read_text().splitlines()[-1])["train_loss"]


def test_the_original_teaches_and_is_the_same_as_its_own_file(trained: str, tmp_path: Path) -> None:
    asked = replace(LEARNT, start_from=trained, teacher="original")
    cli.training.learn(asked, tmp_path / "original", QUIET)
    cli.training.learn(replace(asked, teacher=trained), tmp_path / "file", QUIET)
    cli.training.learn(replace(asked, teacher=None), tmp_path / "none", QUIET)
    assert train_loss(tmp_path / "original") == train_loss(tmp_path / "file")
    assert train_loss(tmp_path / "original") != train_loss(tmp_path / "none")
    small, taught, original = (
        al.load(path).eval()
        for path in (
            tmp_path / "none" / COMPACT,
            tmp_path / "original" / COMPACT,
            trained,
        )
    )
    x = torch.randn(500, 1, 8, 8)
    with torch.no_grad():
        assert al.distill(taught(x), original(x)) < al.distill(small(x), original(x))


def test_nine_tenths_of_the_loss_are_the_teachers(trained: str, tmp_path: Path) -> None:
    asked = replace(LEARNT, start_from=trained, teacher="original")
    session = cli.training.prepare(asked, tmp_path / "run", no_progress)
    work, x, y = session.work, torch.randn(9, 1, 8, 8), torch.arange(9)
    assert work.teacher is not None
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    labels, told = cross_entropy(model(x), y), al.distill(model(x), work.teacher(x))
    loss = loss_of(work, model, x, y)
    torch.testing.assert_close(loss, 0.1 * labels + 0.9 * told)


class StopsAt(cli.training.SilentCallback):
    """Asks the run to stop, as Ctrl-C does, at a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def stepped(self, step: int) -> None:
        if step == self._step:
            os.kill(os.getpid(), signal.SIGINT)


def test_a_resumed_run_goes_on_with_its_teacher(trained: str, tmp_path: Path) -> None:
    asked = replace(LEARNT, start_from=trained, teacher="original")
    cli.training.learn(asked, tmp_path / "whole", QUIET)
    with pytest.raises(RunInterruptedError):
        cli.training.learn(asked, tmp_path / "cut", replace(QUIET, observer=StopsAt(20)))
    cli.training.resume(tmp_path / "cut", audience=QUIET)
    assert train_loss(tmp_path / "cut") == train_loss(tmp_path / "whole")


def test_fresh_weights_and_numbers_teach_nothing(trained: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--teacher original was given, but the run starts"):
        cli.training.learn(replace(LEARNT, teacher="original"), tmp_path / "a", QUIET)
    asked = replace(LEARNT, data="diabetes", teacher=trained)
    with pytest.raises(SettingsError, match="has numbers to predict"):
        cli.training.learn(asked, tmp_path / "b", QUIET)
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()
