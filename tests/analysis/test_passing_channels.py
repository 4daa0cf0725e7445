"""Layers that sum over another dimension than channels lie along let these pass (MLP-Mixer)."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archlearn as al

N_TOKENS, WIDTH, HIDDEN = 6, 8, 10


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


class Mixing(nn.Module):
    """A stream of which each channel is mixed over the tokens, by layers that subclasses write."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Linear(5, WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(N_TOKENS, HIDDEN), nn.Linear(HIDDEN, N_TOKENS)
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.join(x, self.norm(x))
        return self.head(self.last(x).mean(1))

    def join(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.mix(y.transpose(1, 2)).transpose(1, 2)

    def mix(self, y: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(y)))


class Behind(Mixing):
    """What is mixed stands first in the sum, and is scaled by a parameter for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(WIDTH))

    def join(self, x: Tensor, y: Tensor) -> Tensor:
        return self.scale * self.mix(y.transpose(1, 2)).transpose(1, 2) + x


class Pointwise(Mixing):
    """Convolutions over the tokens, whose places are the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Conv1d(N_TOKENS, HIDDEN, 1), nn.Conv1d(HIDDEN, N_TOKENS, 1)

    def join(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.mix(y)


class Gated(Mixing):
    """Half of what a layer gives gates the other half."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(N_TOKENS, 2 * HIDDEN)

    def mix(self, y: Tensor) -> Tensor:
        one, two = self.up(y).chunk(2, -1)
        return self.down(one * F.silu(two))


class Multiplied(Mixing):
    """Channels are multiplied by what is mixed of them (the gating unit of a gMLP)."""

    def join(self, x: Tensor, y: Tensor) -> Tensor:
        return x * self.mix(y.transpose(1, 2)).transpose(1, 2)


ALL = (Mixing, Behind, Pointwise, Gated, Multiplied)


@pytest.mark.parametrize("make", ALL)
def test_streams_and_units_over_tokens_are_learnt_exactly(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    net, x, fresh = make().double(), draw(2, N_TOKENS, 5), draw(3, N_TOKENS, 5)
    model = al.add_gates(net, x)
    gates = al.width_gates(model)
    assert {name: len(gate) for name, gate in gates.items()} == {"up": HIDDEN, "stem": WIDTH}
    torch.testing.assert_close(model(fresh), net(fresh), rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        gates["stem"][::2] = 0.0
        gates["up"][::5] = 0.0
    plan = al.plan(model)
    small = al.compact(model, plan=plan)
    torch.testing.assert_close(small(fresh), model(fresh), rtol=0, atol=1e-10)
    assert not torch.allclose(model(fresh), net(fresh))
    assert small.get_parameter("down.weight").shape[:2] == (N_TOKENS, HIDDEN - 2)
    assert small.get_parameter("head.weight").shape == (3, WIDTH // 2)
    assert al.count_costs(small, x) == plan.after


def test_layers_over_tokens_cost_as_often_as_there_are_channels() -> None:
    """The 60 products of each of two token layers for 8 channels, and then for 4."""
    torch.manual_seed(0)
    model = al.add_gates(Mixing().double(), draw(1, N_TOKENS, 5))
    with torch.no_grad():
        al.width_gates(model)["stem"][:4] = 0.0
    plan = al.plan(model)
    assert plan.before.multiply_adds == 6 * 5 * 8 + 2 * 60 * 8 + 3 * 8
    assert plan.after.multiply_adds == 6 * 5 * 4 + 2 * 60 * 4 + 3 * 4


def test_each_gate_has_the_gradient_that_closing_it_would_use() -> None:
    torch.manual_seed(0)
    model, x = al.add_gates(Mixing().double(), draw(2, N_TOKENS, 5)), draw(4, N_TOKENS, 5)
    gates = al.width_gates(model)
    with torch.no_grad():
        gates["up"][3] = gates["stem"][2] = 0.0
    model(x).square().sum().backward()
    for gate in gates.values():
        assert gate.grad is not None
        assert bool((gate.grad != 0).all())


class Normed(Mixing):
    """A norm over the hidden units of each channel: these stay, and the stream goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LayerNorm(HIDDEN)

    def mix(self, y: Tensor) -> Tensor:
        return self.down(F.gelu(self.inner(self.up(y))))


class Flattened(Mixing):
    """One layer reads all channels of all hidden units."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH * HIDDEN, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).transpose(1, 2)
        return self.head(F.relu(self.up(x)).flatten(1))


class Again(Mixing):
    """What lies beside is summed over next: first tokens, then channels."""

    def __init__(self) -> None:
        super().__init__()
        self.across = nn.Linear(WIDTH, 7)
        self.head = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.up(self.norm(self.stem(x)).transpose(1, 2)))
        return self.head(F.relu(self.across(y.transpose(1, 2))).amax(1))


@pytest.mark.parametrize(
    ("make", "learnt"),
    [
        (Normed, {"up": WIDTH}),  # the stream, at the activation that it passes
        (Flattened, {"stem": WIDTH, "up": HIDDEN}),
        (Again, {"stem": WIDTH, "across": 7}),  # the largest is taken over all of the others
    ],
)
def test_other_readers_of_what_layers_give_for_each_channel(
    make: Callable[[], nn.Module], learnt: dict[str, int]
) -> None:
    torch.manual_seed(0)
    net, fresh = make().double(), draw(3, N_TOKENS, 5)
    model = al.add_gates(net, draw(2, N_TOKENS, 5))
    gates = al.width_gates(model)
    assert {name: len(gate) for name, gate in gates.items()} == learnt
    with torch.no_grad():
        for gate in gates.values():
            gate[1::2] = 0.0
    small = al.compact(model)
    torch.testing.assert_close(small(fresh), model(fresh), rtol=0, atol=1e-10)
    assert small.get_parameter("stem.weight").shape == (WIDTH // 2, 5)


class Variates(nn.Module):
    """Variates of a series are scaled, as in RevIN, and are the tokens of attention then."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(5) + 0.5)
        self.stem, self.head = nn.Linear(12, WIDTH), nn.Linear(WIDTH, 3)
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 4, 10, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.stem((x * self.scale).transpose(1, 2))))


def test_a_scale_of_the_models_input_has_no_channels_to_pass() -> None:
    torch.manual_seed(0)
    model = al.add_gates(Variates().double().eval(), draw(2, 12, 5))
    gates = al.width_gates(model)
    assert len(gates["stem"]) == WIDTH
    with torch.no_grad():
        gates["stem"][::2] = 0.1
    small, fresh = al.compact(model), draw(3, 12, 5)
    torch.testing.assert_close(small(fresh), model(fresh), rtol=0, atol=1e-10)
    assert small.get_parameter("head.weight").shape == (3, WIDTH // 2)
