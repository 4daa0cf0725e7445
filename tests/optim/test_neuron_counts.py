"""Gates that stand for many neurons: how many these are, and what follows."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import archlearn as al
from archlearn.gating.gate_container import find_container
from archlearn.optim.neuron_counts import NeuronCounts
from archlearn_cli.models.model_registry import build_network

WIDTH, HIDDEN, N_HEADS, HEAD = 16, 24, 4, 5


class Encoder(nn.Module):
    """A stream that three layers write, one branch of attention and one of hidden units."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv = nn.Linear(WIDTH, 3 * N_HEADS * HEAD)
        self.out = nn.Linear(N_HEADS * HEAD, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        heads = self.qkv(self.norms[0](x)).view(len(x), -1, 3, N_HEADS, HEAD)
        mixed = F.scaled_dot_product_attention(*heads.permute(2, 0, 3, 1, 4).unbind(0))
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        x = x + self.down(F.relu(self.up(self.norms[1](x))))
        return self.last(x.mean(1))


def gated() -> nn.Module:
    torch.manual_seed(0)
    return al.add_gates(Encoder(), torch.randn(2, 5, 6))


def count(model: nn.Module) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return the neurons of each gate, by group, and those of each branch."""
    container = find_container(model)
    assert container is not None
    acting = torch.cat([gate.detach().reshape(-1) for gate in container()]).double()
    widths, depths, branches = acting.tensor_split(
        [container.n_width, container.n_width + container.n_depth]
    )
    assert not len(depths) or not depths.any()
    found, inside = NeuronCounts(container.learnable)(widths, 1.0 - branches)
    pieces = found.split([gate.numel() for gate in al.width_gates(model).values()])
    by_group = {n: p.tolist() for n, p in zip(al.width_gates(model), pieces, strict=True)}
    return by_group, dict(zip(al.branch_gates(model), inside.tolist(), strict=True))


def close_(gate: Tensor, *places: int) -> None:
    with torch.no_grad():
        gate.view(-1)[list(places)] = 0.0


def test_neurons_are_counted_by_the_gate_and_the_branch_that_they_go_with() -> None:
    by_group, inside = count(gated())
    assert {name: set(counts) for name, counts in by_group.items()} == {
        "up": {1.0},
        "first": {3.0},
        "qkv": {3.0 * HEAD},
        "qkv/2": {3.0 * N_HEADS},
    }
    assert inside == {"qkv": 3 * N_HEADS * HEAD + WIDTH, "up": HIDDEN + WIDTH}


def test_closed_neurons_do_not_count() -> None:
    model = gated()
    widths = al.width_gates(model)
    close_(widths["qkv"], 0)
    close_(widths["qkv/2"], 1, 2)
    close_(widths["up"], *range(10))
    close_(widths["first"], 3)
    by_group, inside = count(model)
    assert set(by_group["qkv"]) == {3.0 * (HEAD - 2)}
    assert set(by_group["qkv/2"]) == {3.0 * (N_HEADS - 1)}
    small: Any = al.compact(model)
    assert inside["qkv"] == small.qkv.out_features + small.out.out_features
    assert inside["up"] == small.up.out_features + small.down.out_features
    close_(al.branch_gates(model)["up"], 0)
    assert set(count(model)[0]["first"]) == {2.0}


def test_a_cut_changes_no_count() -> None:
    model = gated()
    widths = al.width_gates(model)
    gates = al.GateOptimizer(model, 10, budget={"multiply_adds": "90%"})
    weights = torch.optim.SGD(al.weights(model), lr=0.1)
    close_(widths["up"], *range(10))
    close_(widths["qkv"], 0)
    close_(widths["qkv/2"], 1)
    close_(al.branch_gates(model)["up"], 0)
    gates.accept_gates()
    gates.param_groups[0]["frozen"] = True  # what is closed now is closed for good
    before = count(model)
    al.shrink_(model, weights, gates)
    assert al.width_gates(model)["qkv"].numel() == N_HEADS - 1
    after = count(model)
    assert after[0]["qkv"] == before[0]["qkv"][1:]
    assert after[0]["first"] == before[0]["first"]
    assert after[1]["qkv"] == before[1]["qkv"]


def test_hidden_units_over_tokens_are_not_counted_with_a_channel_of_the_stream() -> None:
    """A Mixer's layers over tokens are applied to every channel beside."""
    torch.manual_seed(0)
    net: Any = build_network("mixer:0.1", (3, 32, 32), 10)
    model = al.add_gates(net, torch.randn(2, 3, 32, 32))
    by_group, _ = count(model)
    assert set(by_group["patches"]) == {1.0 + len(net.blocks)}
    assert set(by_group["blocks.0.tokens_up"]) == {1.0}
    close_(al.width_gates(model)["patches"], 0)
    close_(al.width_gates(model)["blocks.0.tokens_up"], 0, 2)
    widths = {layer.name: layer.width for layer in al.read_architecture(model).layers}
    small: dict[str, Any] = dict(al.compact(model).named_modules())
    assert widths["blocks.0.tokens_up"] == small["blocks.0.tokens_up"].out_features
    assert widths["blocks.1.tokens_up"] == small["blocks.1.tokens_up"].out_features


def test_a_group_counts_for_its_inputs_and_outputs_and_a_place_for_all_groups() -> None:
    layers = [nn.Conv2d(3, 20, 1), nn.ReLU(), nn.Conv2d(20, 24, 1, groups=4), nn.ReLU()]
    model = al.add_gates(nn.Sequential(*layers, nn.Conv2d(24, 2, 1)), torch.randn(2, 3, 5, 5))
    by_group, _ = count(model)
    assert by_group == {"0": [5.0 + 6.0] * 4, "0/2": [4.0] * 5, "2": [4.0] * 6}
    close_(al.width_gates(model)["0"], 1)
    close_(al.width_gates(model)["2"], 0, 1, 2)
    by_group, _ = count(model)
    assert by_group == {"0": [5.0 + 3.0] * 4, "0/2": [3.0] * 5, "2": [3.0] * 6}


def test_channels_go_where_a_whole_group_would_leave_much_room() -> None:
    """All gates earn the same; the last group to go would leave an eighth of the budget."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 40, 3), nn.ReLU()]
    for _ in range(2):
        middle = nn.Conv2d(32, 32, 3, padding=1, groups=4)
        layers += [nn.Conv2d(40, 32, 1), nn.ReLU(), middle, nn.ReLU()]
        layers += [nn.Conv2d(32, 40, 1), nn.ReLU()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, 4))
    model = al.add_gates(net, torch.randn(2, 3, 8, 8))
    gates = al.GateOptimizer(model, 60, budget={"multiply_adds": "50%"})
    for _ in range(60):
        for gate in gates.param_groups[0]["params"]:
            gate.grad = torch.ones_like(gate)
        gates.step()
    plan = al.plan(model)
    assert 0.49 < plan.after.multiply_adds / plan.before.multiply_adds <= 0.5


@pytest.mark.parametrize(("size_power", "goes"), [(0.5, False), (0.0, True)])
def test_a_branch_goes_no_sooner_than_its_channels_would(size_power: float, goes: bool) -> None:
    """All channels earn the same, and each branch earns what they earn together."""
    torch.manual_seed(0)
    blocks = [Block(16, 24) for _ in range(6)]
    model = al.add_gates(nn.Sequential(nn.Linear(8, 16), *blocks), torch.randn(2, 8))
    schedule = al.GateSchedule(size_power=size_power)
    gates = al.GateOptimizer(model, 60, budget={"multiply_adds": "60%"}, schedule=schedule)
    branches = list(al.branch_gates(model).values())
    for _ in range(60):
        for gate in gates.param_groups[0]["params"]:
            gate.grad = torch.ones_like(gate)
        for branch in branches:
            branch.grad = torch.full_like(branch, 24.0**0.5)
        gates.step()
    assert any(branch.item() < 0.5 for branch in branches) == goes


class Block(nn.Module):
    """A residual block of two layers."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.relu(self.up(x)))
