"""An architecture is the width of every layer, after narrowing and merging."""

from dataclasses import astuple
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import archlearn as al
import archlearn_cli as cli

DIGITS = torch.zeros(1, 1, 28, 28)


@torch.no_grad()
def keep_(model: nn.Module, **widths: int) -> None:
    for name, width in widths.items():
        gate = al.width_gates(model)[name]
        gate.copy_((torch.arange(len(gate)) < width).float())


def test_a_chain_prints_as_the_paper_writes_it() -> None:
    model = al.add_gates(cli.models.LeNet(), DIGITS)
    found = al.read_architecture(model)
    assert str(found) == "20-50-500-10"
    assert found.widths == (20, 50, 500, 10)
    assert astuple(found.layers[0]) == ("conv1", 20, 20)


def test_widths_follow_the_gates() -> None:
    model = al.add_gates(cli.models.LeNet(), DIGITS)
    keep_(model, conv1=9, conv2=26, fc1=32)
    found = al.read_architecture(model)
    assert str(found) == "9-26-32-10"
    assert [astuple(layer) for layer in found.layers] == [
        ("conv1", 9, 20), ("conv2", 26, 50), ("fc1", 32, 500), ("fc2", 10, 10),
    ]  # fmt: skip


def test_a_linear_layer_is_gone_where_merging_pays() -> None:
    model = al.add_gates(cli.models.LeNet(), DIGITS)
    keep_(model, conv1=9, conv2=26)
    with torch.no_grad():
        al.depth_gates(model)["fc1"].fill_(0.5)
    assert str(al.read_architecture(model)) == "9-26-10"


def test_a_linear_layer_stays_where_merging_does_not_pay() -> None:
    """416 · 5 + 5 and 5 · 10 + 10 are fewer than 416 · 10 + 10."""
    model = al.add_gates(cli.models.LeNet(), DIGITS)
    keep_(model, conv1=9, conv2=26, fc1=5)
    with torch.no_grad():
        al.depth_gates(model)["fc1"].fill_(0.5)
    assert str(al.read_architecture(model)) == "9-26-5-10"


def test_a_layer_whose_gates_are_all_closed_keeps_one_channel() -> None:
    model = al.add_gates(cli.models.LeNet(), DIGITS)
    keep_(model, conv1=0, fc1=0)
    assert str(al.read_architecture(model)) == "1-50-1-10"


class Graph(nn.Module):
    """A residual sum, so that the layers are no chain."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.stem(x))
        return self.head(y + torch.relu(self.left(y)))


def test_a_graph_prints_by_the_names_of_its_layers() -> None:
    model = al.add_gates(Graph(), torch.zeros(1, 3))
    (name,) = al.width_gates(model)
    keep_(model, **{name: 3})
    assert str(al.read_architecture(model)).splitlines() == [
        "stem  3 of 4",
        "left  3 of 4",
        "head  2",
    ]


def test_the_architecture_is_that_of_the_compact_model() -> None:
    model = al.add_gates(cli.models.LeNet(), DIGITS)
    keep_(model, conv1=3, conv2=4, fc1=6)
    small = al.compact(model)
    sizes = [small.conv1.out_channels, small.conv2.out_channels, small.fc1.out_features, 10]
    assert al.read_architecture(model).widths == tuple(sizes)


def test_gates_placed_by_hand_need_inputs() -> None:
    net = nn.Sequential(nn.Linear(4, 6), al.TriState(6), nn.Linear(6, 2))
    assert str(al.read_architecture(net, torch.zeros(1, 4))) == "6-2"
    with pytest.raises(al.InputError, match="does not know its inputs"):
        al.read_architecture(net)


class Decoder(nn.Module):
    """A residual sum and a grouped transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(8, 12, 2, 2, groups=2), nn.Conv2d(12, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        return self.last(self.up(x + self.inner(x).relu()).relu())


CHAIN = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 4))


@pytest.mark.parametrize("net", [CHAIN, Decoder()], ids=["chain", "decoder"])
def test_compact_loaded_and_plain_models_have_an_architecture(
    net: nn.Module, tmp_path: Path
) -> None:
    x = torch.rand(2, 1, 8, 8)
    gated = al.add_gates(net, x)
    with torch.no_grad():
        for gate in al.width_gates(gated).values():
            gate[::2] = 0.1
    small = al.compact(gated)
    al.save(small, tmp_path / "small.safetensors")
    expected = al.read_architecture(gated)
    assert any(layer.width < layer.initial_width for layer in expected.layers)
    for model in (small, al.load(tmp_path / "small.safetensors")):
        found = al.read_architecture(model)
        assert [(layer.name, layer.width) for layer in found.layers] == [
            (layer.name, layer.width) for layer in expected.layers
        ]
        assert found.is_chain == expected.is_chain
    whole = al.read_architecture(net, x)
    assert whole.widths == tuple(layer.initial_width for layer in expected.layers)
