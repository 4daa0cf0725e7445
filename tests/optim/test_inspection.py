"""An inspection lists every activation site: what is learnt there, what is not, and why."""

import inspect as python_inspect
from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archlearn as al
import archlearn_cli as cli
from benchmarks.torchvision_import import import_models

DIGITS = torch.zeros(1, 1, 28, 28)


class Normed(nn.Module):
    """A LayerNorm reads the channels of the first layer, and none of the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 6), nn.LayerNorm(6)
        self.second, self.last = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.first(x))
        x = self.second(self.norm(x))
        return self.last(x.relu())


class Opaque(nn.Module):
    """A part whose path depends on the data."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Leafy(nn.Module):
    """A part in the middle that cannot be followed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 2)
        self.odd = Opaque()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        return self.last(self.odd(torch.relu(self.second(x))))


X = torch.ones(2, 4)


def line_of(cls: type, text: str) -> str:
    """Return `file:line` of a line of a class, as Python's own `inspect` finds it."""
    lines, start = python_inspect.getsourcelines(cls)
    (offset,) = [place for place, line in enumerate(lines) if text in line]
    return f"test_inspection.py:{start + offset}"


def test_rows_of_lenet() -> None:
    rows = al.inspect(cli.models.LeNet(), DIGITS).rows
    assert [(r.name, r.activation, r.channels, r.width, r.depth) for r in rows] == [
        ("conv1", "relu", 20, True, False),
        ("conv2", "relu", 50, True, False),
        ("fc1", "relu", 500, True, True),
    ]
    assert [r.learnt_channels for r in rows] == [20, 50, 500]
    assert rows[0].reason.startswith("depth: max_pool2d")
    assert rows[2].reason == rows[2].fix == ""


def test_a_gated_model_is_inspected_like_the_plain_one() -> None:
    assert al.inspect(al.add_gates(cli.models.LeNet(), DIGITS)) == al.inspect(
        cli.models.LeNet(), DIGITS
    )


def test_what_was_not_asked_for_is_not_learnt() -> None:
    rows = al.inspect(al.add_gates(cli.models.LeNet(), DIGITS, learn={"fc1": al.Learn.WIDTH})).rows
    assert [(row.name, row.width, row.depth) for row in rows] == [
        ("conv1", False, False),
        ("conv2", False, False),
        ("fc1", True, False),
    ]
    assert "width: not asked for in learn=" in rows[0].reason
    assert "depth: not asked for in learn=" in rows[2].reason
    assert rows[0].fix == "name it in learn="


class Highway(nn.Module):
    """A sigmoid weighs channels whose gates stand behind another activation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.carry = nn.Linear(8, 6), nn.Linear(6, 6)
        self.hidden, self.last = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        carry = torch.sigmoid(self.carry(x))
        return self.last(carry * torch.relu(self.hidden(x)) + (1 - carry) * x)


def test_a_sigmoid_that_weighs_learnt_channels_is_learnt_with_them() -> None:
    net, x = Highway(), torch.randn(2, 8)
    row = next(row for row in al.inspect(net, x).rows if row.name == "carry")
    assert (row.width, row.learnt_channels) == (True, 6)
    assert "learn=" not in row.reason + row.fix
    al.add_gates(net, x, learn=dict.fromkeys(["first", "carry", "hidden"], al.Learn.WIDTH))


def test_the_table_of_lenet() -> None:
    head, *lines, reason, costs, legend = str(al.inspect(cli.models.LeNet(), DIGITS)).splitlines()
    assert head.split("  ")[0] == "layer"
    assert reason == (
        "depth not learnt at conv1, conv2: max_pool2d() comes between the layer and its activation"
    )
    assert legend.startswith("width: channels that may be removed; depth: the activation may be")
    # The smallest network: one channel of each convolution, and the linear layers as one.
    assert costs == (
        "costs: 431,080 parameters, 2,293,000 multiply-adds; the smallest network that gates can "
        "leave: 89 parameters, 16,026 multiply-adds"
    )
    assert [line.split()[:5] for line in lines] == [
        ["conv1", "relu", "20", "learnt", "-"],
        ["conv2", "relu", "50", "learnt", "-"],
        ["fc1", "relu", "500", "learnt", "learnt"],
    ]
    column = head.index("width")
    assert all(line[column:].startswith("learnt") for line in lines)


def test_a_layer_norm_leaves_widths_to_be_learnt_and_no_depth() -> None:
    first, second = al.inspect(Normed(), X).rows
    assert (first.name, first.activation, first.width, first.depth) == (
        "first",
        "gelu",
        True,
        False,
    )
    assert "LayerNorm comes between the activation and the next layer" in first.reason
    assert (second.name, second.width, second.depth) == ("second", True, True)


def test_a_norm_over_channels_and_places_holds_its_channels() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.LayerNorm([4, 6, 6]), nn.Flatten())
    (row,) = al.inspect(nn.Sequential(net, nn.Linear(144, 2)), torch.randn(2, 1, 8, 8)).rows
    assert not row.width
    assert "normalised together with other channels by '0.2'" in row.reason
    assert "BatchNorm" in row.fix


def test_source_lines_are_those_of_the_calls() -> None:
    first, second = al.inspect(Normed(), X).rows
    assert first.source == line_of(Normed, "F.gelu(")
    assert second.source == line_of(Normed, "x.relu()")


def test_source_lines_of_a_gated_model_are_those_of_the_users_code() -> None:
    first, second = al.inspect(al.add_gates(Normed(), X)).rows
    assert first.source == line_of(Normed, "F.gelu(")
    assert second.source == line_of(Normed, "x.relu()")


def test_source_lines_of_our_own_models_are_theirs() -> None:
    assert all(
        row.source.startswith("lenet.py:") for row in al.inspect(cli.models.LeNet(), DIGITS).rows
    )


def test_a_part_that_cannot_be_followed_is_named() -> None:
    inspection = al.inspect(Leafy(), X)
    first, second = inspection.rows
    assert first.width
    assert not second.width
    assert "odd" in second.reason
    assert list(inspection.opaque) == ["odd"]
    last = str(inspection).splitlines()[-2]
    assert last.startswith("called unchanged, nothing inside is learnt: odd: ")
    assert line_of(Opaque, "return x if") in last


HELD = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm([2, 4]), nn.Linear(4, 2))


@pytest.mark.parametrize("net", [HELD, Leafy()])
def test_there_is_a_reason_wherever_width_is_not_learnt(net: nn.Module) -> None:
    held = [row for row in al.inspect(net, X).rows if not row.width]
    assert held
    assert all(row.reason.startswith("width: ") for row in held)


def test_a_model_on_which_nothing_can_be_learnt_is_shown_all_the_same() -> None:
    (row,) = al.inspect(HELD, X).rows
    assert (row.name, row.width, row.depth) == ("0", False, False)


def test_gates_placed_by_hand_are_sites() -> None:
    net = nn.Sequential(nn.Linear(4, 6), al.TriState(6), nn.Linear(6, 2))
    (row,) = al.inspect(net, X).rows
    assert (row.name, row.channels, row.width, row.depth) == ("0", 6, True, True)


def test_a_plain_model_needs_inputs() -> None:
    with pytest.raises(al.InputError, match="LeNet does not know its inputs; give example_inputs"):
        al.inspect(cli.models.LeNet())


def test_a_layer_with_a_hook_is_named_with_what_to_do() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    net[2].register_forward_hook(lambda *_: None)
    first, second = al.inspect(net, torch.randn(2, 4)).rows
    for row in (first, second):
        assert not row.width
        assert "width: '2' has a forward hook, which may change what it reads or ret" in row.reason
        assert row.fix.startswith("remove the hook before add_gates")


def test_a_site_of_a_plain_sequence_is_where_the_users_code_calls_for_it() -> None:
    model = al.add_gates(
        nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)), torch.ones(2, 4)
    )
    (row,) = al.inspect(model).rows
    assert row.source.startswith("test_inspection.py:")


def test_leaves_are_those_of_add_gates() -> None:
    net = nn.Sequential(cli.models.LeNet(), nn.Linear(10, 6), nn.ReLU(), nn.Linear(6, 2))
    names = [row.name for row in al.inspect(net, DIGITS).rows]
    assert names == ["0.conv1", "0.conv2", "0.fc1", "1", "0.fc2"]
    for found in (
        al.inspect(net, DIGITS, leaves=[cli.models.LeNet]),
        al.inspect(al.add_gates(net, DIGITS, leaves=[cli.models.LeNet])),
    ):
        assert [(row.name, row.width) for row in found.rows] == [("1", True)]
    with pytest.raises(al.InputError, match="LeNet2"):
        al.inspect(net, DIGITS, leaves=["LeNet2"])


class SpatialGate(nn.Module):
    """Half of the channels are multiplied by sums over places and over channels beside."""

    def __init__(self) -> None:
        super().__init__()
        self.widen, self.norm = nn.Linear(6, 16), nn.LayerNorm(8)
        self.places = nn.Conv1d(5, 5, 3, padding=1)
        self.back, self.hidden, self.head = nn.Linear(8, 6), nn.Linear(6, 7), nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        u, v = F.gelu(self.widen(x)).chunk(2, dim=-1)
        u = u * self.places(self.norm(v))
        return self.head(F.relu(self.hidden(self.back(u))))


def test_channels_that_could_only_go_all_at_once_are_not_learnt() -> None:
    net = SpatialGate()
    found = {row.name: row for row in al.inspect(net, torch.randn(2, 5, 6)).rows}
    assert not found["widen"].width
    assert "all at once" in found["widen"].reason
    assert set(al.width_gates(al.add_gates(net, torch.randn(2, 5, 6)))) == {"hidden", "back"}


def test_a_single_channel_is_not_learnt() -> None:
    net = nn.Sequential(nn.Linear(4, 1), nn.ReLU(), nn.Linear(1, 5), nn.ReLU(), nn.Linear(5, 2))
    row = al.inspect(net, torch.randn(3, 4)).rows[0]
    assert not row.width
    assert "one channel, which must stay" in row.reason
    assert set(al.width_gates(al.add_gates(net, torch.randn(3, 4)))) == {"2"}


@pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")
def test_every_width_gate_of_gmlp_could_be_closed() -> None:
    import_models()  # timm imports torchvision
    from timm.layers import GatedMlp
    from timm.models.mlp_mixer import MlpMixer, SpatialGatingBlock

    net = MlpMixer(
        num_classes=5, num_blocks=1, embed_dim=12, img_size=32, patch_size=8, mlp_ratio=6,
        block_layer=SpatialGatingBlock, mlp_layer=GatedMlp,
    )  # fmt: skip
    model = al.add_gates(net.double(), torch.randn(2, 3, 32, 32, dtype=torch.float64))
    gates = al.width_gates(model)
    assert list(gates) == ["blocks.0.mlp_channels.fc1", "stem.proj"]
    with torch.no_grad():
        for gate in gates.values():
            gate[::2] = 0.1
    small: Any = al.compact(model)
    assert small.certificate.difference < 1e-10


class MixedLater(nn.Module):
    """Nothing is learnt in the second layer, and no activation would list it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 6)
        self.third, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cummax(self.second(F.relu(self.first(x))), dim=1)[0]
        return self.last(F.relu(self.third(x)))


def test_a_layer_without_a_site_that_keeps_its_channels_is_named_with_the_reason() -> None:
    for model in (MixedLater(), al.add_gates(MixedLater(), torch.randn(2, 4))):
        found = al.inspect(model, torch.randn(2, 4))
        assert list(found.kept) == ["second"]
        said = "\nwidth not learnt at second: read by cummax() at test_inspection.py:"
        assert said in str(found)


class Reader(nn.Module):
    """Reads tokens by a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.reader = nn.Embedding(9, 4), nn.GRU(4, 6, batch_first=True)
        self.hidden, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.reader(self.words(x))
        return self.last(F.relu(self.hidden(states[:, -1])))


def test_units_of_a_recurrent_layer_go_by_its_name() -> None:
    found = al.inspect(Reader(), torch.randint(9, (2, 5)))
    learnt = {row.name: row.learnt_channels for row in found.rows if row.width}
    assert learnt == {"hidden": 8, "words": 4, "reader": 6}
    assert found.kept == {}


def test_no_layer_is_named_where_all_are_learnt() -> None:
    assert al.inspect(cli.models.LeNet(), DIGITS).kept == {}


def test_a_slope_and_a_norm_of_the_input_are_no_layers_that_mix_channels() -> None:
    net = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 6), nn.PReLU(), nn.Linear(6, 3))
    assert al.inspect(net, torch.randn(2, 4)).kept == {}


class MixedAtASite(nn.Module):
    """The first layer has an activation behind it, which lists it already."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 6), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = x + torch.cummax(x, dim=1)[0]
        return self.last(F.relu(self.second(x)))


def test_a_layer_that_has_a_row_is_not_named_again() -> None:
    found = al.inspect(MixedAtASite(), torch.randn(2, 4))
    assert [row.name for row in found.rows if not row.width] == ["first"]
    assert found.kept == {}


def test_a_network_without_any_site_is_said_to_have_none() -> None:
    said = str(al.inspect(nn.GRU(4, 6), torch.randn(2, 3, 4)))
    assert said.startswith(
        "nothing can be learnt: it calls no activation that archlearn knows; use"
    )


def test_looking_at_a_model_in_training_moves_no_spectral_norm() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).train()
    torch.nn.utils.parametrizations.spectral_norm(net[2])
    model = al.add_gates(net, torch.randn(2, 4))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    al.inspect(model)
    al.GateOptimizer(model, total_steps=100)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_it_says_which_layers_may_merge_and_that_padded_convolutions_stay() -> None:
    layers = [nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 2)]
    convolutions = [nn.Conv2d(1, 9, 3, padding=1), nn.ReLU(), nn.Conv2d(9, 9, 3, padding=1)]
    pooled = [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    net = nn.Sequential(*convolutions, *pooled, *layers)
    found = al.inspect(net, torch.randn(2, 1, 8, 8))
    assert found.merges == ("8",)  # the first hidden layer of a chain stays
    lines = str(found).splitlines()
    assert "may merge with the next layer under a budget: 8" in lines
    assert any(line.startswith("depth not learnt at 0: the next") for line in lines)


class TwoBlocks(nn.Module):
    """Residual blocks of padded convolutions, as in a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last = nn.Conv2d(1, 6, 3, padding=1), nn.Linear(6, 3)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(6, 6, 3, 1, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, 1, 1))
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = torch.relu(x + block(x))
        return self.last(x.mean((2, 3)))


def test_one_sentence_says_why_depth_is_not_learnt_at_all_padded_convolutions() -> None:
    """Padding by 0 there would break the residual sum."""
    said = str(al.inspect(TwoBlocks(), torch.rand(2, 1, 8, 8)))
    assert said.count("pads by (1, 1)") == 1
    assert "depth not learnt at blocks.0.0, blocks.1.0: the next convolution pads" in said
    assert "padding=0" not in said


@pytest.mark.parametrize("net", [TwoBlocks(), HELD, Leafy(), MixedLater()])
def test_nobody_is_told_that_nothing_is_needed(net: nn.Module) -> None:
    sizes = (2, 1, 8, 8) if isinstance(net, TwoBlocks) else (2, 4)
    said = str(al.inspect(net, torch.rand(*sizes)))
    assert "nothing is needed" not in said
    assert "Fix: " not in said
