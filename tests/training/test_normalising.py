"""`--normalise imagenet` gives a network the inputs that ImageNet's weights expect."""

import json
from pathlib import Path

import pytest
import torch

import archlearn_cli as cli
from archlearn import SettingsError
from tests.cli.commands import run_here
from tests.run_files import COMPACT, SUMMARY

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
CODE = """
import torch

def build():
    torch.manual_seed(0)
    images = torch.randint(0, 256, (120, 3, 8, 8), dtype=torch.uint8)
    targets = torch.arange(120) % 4
    return (images[:80], targets[:80]), (images[80:], targets[80:])
"""
ASKED = {
    "model": "resnet20:0.25",
    "data": "colours:build",
    "normalise": "imagenet",
    "epochs": 1,
    "accelerator": "cpu",
}


def test_images_are_normalised_as_imagenet_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "colours_here.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    settings = cli.training.RunSettings(data="colours_here:build", normalise="imagenet")
    dataset = cli.training.load_dataset(settings, cli.data.no_progress)
    images = dataset.train.inputs
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    expected = (images / 255 - mean) / std
    torch.testing.assert_close(cli.training.objective_of(dataset).inputs(images), expected)
    own = cli.training.load_dataset(
        cli.training.RunSettings(data="colours_here:build"), cli.data.no_progress
    )
    assert cli.training.objective_of(own).inputs(images).mean().abs() < 1e-3 < expected.mean().abs()


def test_images_of_one_colour_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"normalise imagenet .* three colours.*\(1, 8, 8\)"):
        cli.training.load_dataset(
            cli.training.RunSettings(data="digits", normalise="imagenet"), cli.data.no_progress
        )


def test_run_keeps_its_normalisation_and_a_file_is_measured_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "colours.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    run = tmp_path / "a"
    cli.training.learn(cli.training.override(cli.training.RunSettings(), ASKED), run)
    summary = json.loads((run / SUMMARY).read_text())
    assert summary["normalisation"]["mean"] == pytest.approx(MEAN)
    assert summary["normalisation"]["std"] == pytest.approx(STD)
    line = f"loss {summary['test_loss']:.4f}"
    assert line in run_here(["evaluate", str(run)], tmp_path)[1]
    words = ["evaluate", str(run / COMPACT), "--data", "colours:build"]
    assert line in run_here([*words, "--normalise", "imagenet"], tmp_path)[1]
    assert line not in run_here(words, tmp_path)[1]
