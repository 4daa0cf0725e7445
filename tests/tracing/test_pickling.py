"""A class with a generated `forward` can be pickled: it is made again from its graphs."""

import copy
import pickle
import subprocess
import sys
from abc import ABC
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archlearn as al
import archlearn_cli as cli

X = torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))


class Modes(nn.Module, ABC):
    """Has two graphs, a metaclass of its own, and functions that pickle does not find."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(1, 6, 5), nn.BatchNorm2d(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(F.max_pool2d(self.norm(self.first(x)), 2))
        x = F.dropout(x, 0.5, training=self.training) if self.training else x
        return self.last(torch.relu(x.mean((2, 3))))


@torch.no_grad()
def gate(net: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    model = al.add_gates(net, X)
    for each in al.width_gates(model).values():
        each[::2] = 0.1
    for each in al.depth_gates(model).values():
        each.fill_(0.9)
    return model.eval()


def assert_same(one: nn.Module, two: nn.Module) -> None:
    assert torch.equal(one(X), two(X))
    assert type(one).__name__ == type(two).__name__
    assert list(one.state_dict()) == list(two.state_dict())


@pytest.mark.parametrize("build", [cli.models.LeNet, Modes])
def test_a_gated_model_is_pickled_whole(build: type[nn.Module]) -> None:
    model = gate(build())
    found = pickle.loads(pickle.dumps(model))
    assert_same(found, model)
    assert isinstance(found, build)
    assert str(al.plan(found)) == str(al.plan(model))
    assert str(al.inspect(found)) == str(al.inspect(model))
    assert_same(al.compact(found), al.compact(model))


@pytest.mark.parametrize("build", [cli.models.LeNet, Modes])
def test_both_modes_come_back(build: type[nn.Module]) -> None:
    model = gate(build()).train()
    found = pickle.loads(pickle.dumps(model))
    torch.manual_seed(1)
    expected = model(X)
    torch.manual_seed(1)
    assert torch.equal(found(X), expected)


def test_a_compact_model_with_a_forward_of_ours_is_pickled(tmp_path: Path) -> None:
    small = al.compact(gate(Modes()))
    torch.save(small, tmp_path / "small.pt")
    found = torch.load(tmp_path / "small.pt", weights_only=False)
    assert_same(found, small)
    assert found.certificate == small.certificate


def test_a_loaded_model_is_pickled(tmp_path: Path) -> None:
    al.save(al.compact(gate(Modes())), tmp_path / "small.safetensors")
    loaded = al.load(tmp_path / "small.safetensors")
    assert_same(pickle.loads(pickle.dumps(loaded)), loaded)


def test_another_process_reads_it(tmp_path: Path) -> None:
    model = gate(cli.models.LeNet())
    torch.save((model, X, model(X)), tmp_path / "model.pt")
    code = (
        "import sys, torch\n"
        "model, x, y = torch.load(sys.argv[1], weights_only=False)\n"
        "assert torch.equal(model(x), y)\n"
        "import archlearn as al\n"
        "print(al.read_architecture(model))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "model.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(al.read_architecture(model)), done.stderr


def test_a_copy_is_of_the_same_class() -> None:
    model = gate(Modes())
    assert type(copy.deepcopy(model)) is type(model)


def test_a_model_that_was_on_the_meta_device_is_loaded_whole() -> None:
    net, x = cli.models.LeNet(), torch.randn(2, 1, 28, 28)
    model, strengths = al.add_gates(net, x), al.Strengths.from_width_cost(1e-3)
    empty = al.add_gates(net, x).to("meta").to_empty(device="cpu")
    for buffer in empty.buffers():
        buffer.fill_(0)
    empty.load_state_dict(model.state_dict())
    torch.testing.assert_close(empty(x), model(x))
    assert al.penalty(empty, strengths).item() == al.penalty(model, strengths).item()
    assert al.read_architecture(empty) == al.read_architecture(model)
