"""A run that starts from a pretrained network computes its function at step 0."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import nn

import archlearn as al
from archlearn import RunInterruptedError
from archlearn_cli.commands.display import describe_run_start
from archlearn_cli.data import no_progress
from archlearn_cli.models import LeNet
from archlearn_cli.training import (
    Audience,
    GateSettings,
    HardwareSettings,
    RunSettings,
    RunStart,
    Session,
    SilentCallback,
    learn,
    load_gated_model,
    prepare,
    resume,
)
from tests.run_files import COMPACT, LATEST

SIZES: dict[str, Any] = {"n_channels": 3, "side": 67, "n_outputs": 3, "widths": (4, 6, 8)}
MODEL = "lenet:4-6-8"


def pretrained() -> LeNet:
    torch.manual_seed(5)
    net = LeNet(**SIZES).eval()
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.1)
    return net


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three classes of noise, each of its own brightness, smaller than the network's input."""
    random = np.random.default_rng(0)
    for number, name in enumerate("abc"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for place in range(12):
            image = random.integers(60 * number, 60 * number + 100, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(image).save(tmp_path / "photos" / name / f"{place}.png")
    return tmp_path / "photos"


def settings(photos: Path, path: Path | None, **others: object) -> RunSettings:
    asked = RunSettings(
        model=MODEL,
        data=f"folder:{photos}:16",
        resize=67,
        augment="crop-flip",
        start_from=None if path is None else str(path),
        epochs=2,
        batch_size=8,
        validation=0.2,
        hardware=HardwareSettings(accelerator="cpu"),
    )
    return replace(asked, **others)


def begin(asked: RunSettings, tmp_path: Path) -> Session:
    return prepare(asked, tmp_path / "run", no_progress)


def assert_same_at_step_0(session: Session, net: nn.Module) -> None:
    x = session.example
    assert x.shape == (2, 3, 67, 67)
    model = session.work.model.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(x), net(x), rtol=0, atol=1e-5)
        assert torch.equal(session.network.eval()(x), net(x))
    assert al.width_gates(model)


@pytest.mark.parametrize("learn", ["all", "width", "depth"])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_gates_start_without_disturbing_the_pretrained_network(
    photos: Path, tmp_path: Path, suffix: str, learn: str
) -> None:
    net, path = pretrained(), tmp_path / f"net{suffix}"
    if suffix == ".pth":
        torch.save(net.state_dict(), path)
    else:
        safetensors.torch.save_file(net.state_dict(), path)
    gates = GateSettings(learn=learn)  # pyright: ignore[reportArgumentType]
    session = begin(settings(photos, path, gates=gates), tmp_path)
    model = session.work.model
    moved = {"width": al.width_gates(model), "depth": al.depth_gates(model)}
    assert {kind for kind, found in moved.items() if found} == (
        {"width", "depth"} if learn == "all" else {learn}
    )
    x = session.example
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), net(x), rtol=0, atol=1e-5)
        assert torch.equal(session.network.eval()(x), net(x))


def test_network_that_was_saved_compact_is_learnt_further(photos: Path, tmp_path: Path) -> None:
    gated = al.add_gates(pretrained(), torch.zeros(2, 3, 67, 67))
    with torch.no_grad():
        for gate in al.width_gates(gated).values():
            gate[::2] = 0.2
    small = al.compact(gated)
    al.save(small, tmp_path / "small.safetensors")
    asked = settings(photos, tmp_path / "small.safetensors", model="lenet")
    session = begin(asked, tmp_path)
    assert_same_at_step_0(session, small)
    summary = learn(asked, tmp_path / "again")
    assert summary["before"]["parameters"] == sum(p.numel() for p in small.parameters())
    revived = load_gated_model(tmp_path / "again")
    final = al.load(tmp_path / "again" / "compact.safetensors").eval()
    with torch.no_grad():
        x = revived.example
        torch.testing.assert_close(revived.model.eval()(x), final(x), rtol=1e-4, atol=1e-5)


def test_a_run_ends_although_the_file_it_started_from_is_gone(photos: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    al.save(pretrained(), path)

    class Mover(SilentCallback):
        def started(self, start: RunStart) -> None:
            path.unlink()

    asked = settings(photos, path, model="lenet")
    summary = learn(asked, tmp_path / "run", Audience(observer=Mover()))
    assert summary["model"] == str(path)


def test_network_for_other_data_is_refused(photos: Path, tmp_path: Path) -> None:
    al.save(LeNet(**SIZES | {"n_outputs": 7}), tmp_path / "seven.safetensors")
    with pytest.raises(
        al.InputError, match=r"gives \(2, 7\) for two examples, but .* has 3 outputs"
    ):
        begin(settings(photos, tmp_path / "seven.safetensors"), tmp_path)
    al.save(nn.Linear(4, 3), tmp_path / "linear.safetensors")
    with pytest.raises(al.InputError, match="does not take examples of shape"):
        begin(settings(photos, tmp_path / "linear.safetensors"), tmp_path)


class Impatient(SilentCallback):
    """Presses Ctrl-C after the third step."""

    def stepped(self, step: int) -> None:
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)


def test_run_on_varied_images_resumes_bit_by_bit(photos: Path, tmp_path: Path) -> None:
    """Random windows come from the generator whose state a checkpoint holds."""
    asked = settings(photos, None)
    whole = learn(asked, tmp_path / "whole")
    with pytest.raises(RunInterruptedError):
        learn(asked, tmp_path / "halves", Audience(observer=Impatient()))
    halves = resume(tmp_path / "halves")
    assert halves["resumed"] == 1
    assert halves["test_loss"] == whole["test_loss"]
    one, two = (al.load(tmp_path / name / "compact.safetensors") for name in ("whole", "halves"))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_spread_gates_start_open_at_places_of_their_own(photos: Path, tmp_path: Path) -> None:
    torch.save(pretrained().state_dict(), tmp_path / "net.pth")
    gates = GateSettings(learn="width", width_start=0.51, width_spread=0.15)
    session = begin(settings(photos, tmp_path / "net.pth", gates=gates), tmp_path)
    assert_same_at_step_0(session, pretrained())
    values = torch.cat([gate.detach() for gate in al.width_gates(session.work.model).values()])
    assert 0.51 <= values.min() < 0.53
    assert 0.64 < values.max() <= 0.66
    again = begin(settings(photos, tmp_path / "net.pth", gates=gates), tmp_path)
    other = torch.cat([gate.detach() for gate in al.width_gates(again.work.model).values()])
    assert torch.equal(values, other)


def test_gate_rate_follows_from_how_far_cost_is_to_push(photos: Path, tmp_path: Path) -> None:
    rates = [
        begin(
            settings(photos, None, gates=GateSettings(travel=travel)), tmp_path
        ).settings.gates.gate_rate
        for travel in (1.5, 0.5)
    ]
    assert rates[0] == pytest.approx(3 * (rates[1] or 0.0))


def test_a_run_and_its_checkpoint_are_answered_with_its_compact_network(
    photos: Path, tmp_path: Path
) -> None:
    run = tmp_path / "first"
    learn(settings(photos, None, epochs=1), run)
    for found in (run, run / LATEST):
        with pytest.raises(al.FileError, match=rf"start from {run / COMPACT}"):
            begin(settings(photos, found), tmp_path)


class Heading(SilentCallback):
    """Keeps what the display would say first."""

    text = ""

    def started(self, start: RunStart) -> None:
        self.text = describe_run_start(start)


def test_heading_and_summary_name_the_network_that_a_run_starts_from(
    photos: Path, tmp_path: Path
) -> None:
    net, whole, weights = pretrained(), tmp_path / "a.safetensors", tmp_path / "b.pth"
    al.save(net, whole)
    torch.save(net.state_dict(), weights)
    names = {whole: f"{whole} on ", weights: f"{MODEL} with the weights of {weights} on "}
    for path, name in names.items():
        heading, asked = Heading(), settings(photos, path, epochs=1)
        asked = replace(asked, model="lenet") if path == whole else asked
        summary = learn(asked, tmp_path / path.stem, Audience(observer=heading))
        assert heading.text.startswith(name)
        assert f"{summary['model']} on ".startswith(name)
