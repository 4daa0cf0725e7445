"""What cannot be saved at the end of a run is refused before its first step."""

from pathlib import Path

import pytest
import torch

import archlearn as al
from tests.cli.commands import exit_code

NETWORKS = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.linear, self.activation = nn.Linear(n_in, n_out), nn.ReLU()
    def forward(self, x):
        y = self.activation(self.linear(x))
        return x + y if y.shape == x.shape else y

class Shy(Block):
    def forward(self, x):
        return super().forward(x) if x.sum() > -1e9 else x

def asking(n_outputs):
    return nn.Sequential(nn.Flatten(), Block(64, 20), Block(20, 20), nn.Linear(20, n_outputs))

def shy(n_outputs):
    body = nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 20), Shy(20, 20)
    return nn.Sequential(nn.Flatten(), *body, nn.Linear(20, n_outputs))
"""


@pytest.fixture(autouse=True)
def saving_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the module of networks where it is found."""
    (tmp_path / "saving_networks.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)


def code_of(words: str, out: Path) -> object:
    return exit_code([*words.split(), "--out", str(out)])


COMMAND = "learn --data digits --epochs 1 --threads 1 --no-report --model saving_networks:"


def test_a_network_without_gates_that_asks_about_shapes_is_saved(tmp_path: Path) -> None:
    assert code_of(COMMAND + "asking --learn nothing", tmp_path / "a") == 0
    saved = al.load(tmp_path / "a" / "compact.safetensors")
    assert saved(torch.zeros(3, 1, 8, 8)).shape == (3, 10)


@pytest.mark.parametrize("learnt", ["nothing", "all"])
def test_a_network_that_no_file_can_hold_is_refused_before_it_is_trained(
    learnt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(f"{COMMAND}shy --learn {learnt}", tmp_path / "a") == 1
    said = capsys.readouterr()
    assert "this run is not begun" in said.err
    assert "the layer '4' of class Shy" in said.err
    assert "archlearn inspect saving_networks:shy" in said.err
    assert "epoch" not in said.out
    assert not (tmp_path / "a").exists()
