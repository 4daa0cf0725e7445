"""A learnt factor for each neuron, by L1 and L0 penalties: scaled, folded, cut."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import archlearn as al
from archlearn_cli.models import ConvNet, LeNet
from archlearn_paper.baselines.learnt_diagonals import (
    Scaled,
    add_diagonals,
    count_left,
    fold_diagonals,
    reduce_by_diagonals,
    scaled_layers,
    writers,
)
from archlearn_paper.baselines.parameter_budget import is_within

DIGITS = torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def spread_(network: nn.Module) -> None:
    """Give the diagonals numbers of both signs."""
    generator = torch.Generator().manual_seed(1)
    for scaled in scaled_layers(network).values():
        diagonal = scaled.diagonal
        diagonal.copy_(torch.randn(len(diagonal), generator=generator))


def test_it_starts_as_the_network_itself() -> None:
    net = LeNet().double()
    al.certify(net, add_diagonals(net, DIGITS.double(), 1e-3).network, DIGITS.double())
    assert list(scaled_layers(add_diagonals(net, DIGITS.double(), 1e-3))) == [
        "network.conv1", "network.conv2", "network.fc1",
    ]  # fmt: skip


def test_scaling_by_hand() -> None:
    scaled = Scaled(nn.Conv2d(1, 2, 1))
    with torch.no_grad():
        scaled.diagonal.copy_(torch.tensor([2.0, -3.0]))
    x = torch.ones(1, 1, 4, 4)
    expected = scaled.layer(x) * torch.tensor([2.0, -3.0])[None, :, None, None]
    torch.testing.assert_close(scaled(x), expected)
    linear = Scaled(nn.Linear(3, 2))
    with torch.no_grad():
        linear.diagonal.copy_(torch.tensor([2.0, -3.0]))
    x = torch.ones(5, 4, 3)
    torch.testing.assert_close(linear(x), linear.layer(x) * torch.tensor([2.0, -3.0]))


def test_the_penalty_is_the_sum_of_magnitudes() -> None:
    rider = add_diagonals(LeNet(), DIGITS, 0.01)
    # 20 + 50 + 500 ones
    assert rider.penalty(rider.network).item() == pytest.approx(5.7)
    with torch.no_grad():
        scaled_layers(rider.network)["conv1"].diagonal.fill_(-2.0)
    assert rider.penalty(rider.network).item() == pytest.approx(0.01 * (40 + 550))


@pytest.mark.parametrize("kind", ["lenet", "convnet"])
def test_folding_computes_the_same(kind: str) -> None:
    torch.manual_seed(0)
    net = (LeNet() if kind == "lenet" else ConvNet(1)).double()
    rider = add_diagonals(net, DIGITS.double(), 1e-3).eval()
    spread_(rider)
    folded = fold_diagonals(rider.network)
    al.certify(rider.network, folded, DIGITS.double(), tolerance=1e-10)
    assert type(folded) is type(net)
    assert folded.state_dict().keys() == net.state_dict().keys()


def test_norms_carry_the_diagonal_where_there_are_any() -> None:
    found = {writer[0] for writer in writers(ConvNet(1), DIGITS).values()}
    assert found == {f"norms.{n}" for n in range(6)}


@torch.no_grad()
def test_convolutions_in_groups_lose_their_channels_together() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, 3, groups=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(6 * 16, 3),
    ).double()  # fmt: skip
    x = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    network = add_diagonals(net, x, 1e-3).network
    scaled_layers(network)["0"].diagonal.copy_(
        torch.tensor([0.0, 0.1, 3.0, 4.0, 0.0, 5.0, 2.0, 1.0])
    )
    # the first of each half is zero: two rows of 10, and one column of 9 in each of 6 filters go
    small = reduce_by_diagonals(network, x, sum(p.numel() for p in net.parameters()) - 20 - 54)
    al.certify(network, small, x, tolerance=1e-10)
    assert small.get_parameter("0.weight").shape[0] == 6


@torch.no_grad()
def test_cutting_zeros_is_exact_and_the_smallest_go() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    x = torch.randn(2, 3, dtype=torch.float64)
    network = add_diagonals(net, x, 1e-3).network
    scaled_layers(network)["0"].diagonal.copy_(torch.tensor([0.5, 0.0, -2.0, 0.0]))
    # 2 of 4 neurons: 2 x 4 + 2 x 3 = 14
    small = reduce_by_diagonals(network, x, 14)
    al.certify(network, small, x, tolerance=1e-10)
    expected = network.get_parameter("0.layer.weight")[[0, 2]] * torch.tensor([[0.5], [-2.0]])
    torch.testing.assert_close(small.get_parameter("0.weight"), expected)
    assert torch.equal(reduce_by_diagonals(network, x, 8).get_parameter("0.weight"), expected[1:])


@pytest.mark.parametrize("budget", [5_000, 40_000])
def test_budgets_are_met(budget: int) -> None:
    rider = add_diagonals(LeNet(), DIGITS, 1e-3)
    spread_(rider)
    small = reduce_by_diagonals(rider.network, DIGITS, budget)
    assert is_within(al.count_costs(small, DIGITS).parameters, budget)


def test_l0_factors_are_drawn_in_training_and_settle_after_it() -> None:
    torch.manual_seed(0)
    scaled = Scaled(nn.Linear(3, 4), "l0")
    with torch.no_grad():
        scaled.diagonal.copy_(torch.tensor([-9.0, -0.2, 0.0, 9.0]))
    draws = torch.stack([scaled.factors() for _ in range(2000)]).detach()
    assert ((draws >= 0) & (draws <= 1)).all()
    # log odds 0: open with probability sigmoid(2/3 log 11), at the cap of log 100 nearly always
    shares = (draws > 0).double().mean(0)
    odds = torch.tensor([-math.log(100), -1.0, 0.0, math.log(100)]) + 2 / 3 * math.log(11)
    torch.testing.assert_close(shares, torch.sigmoid(odds).double(), atol=0.03, rtol=0)
    assert scaled.cost().item() == pytest.approx(torch.sigmoid(odds).sum().item(), rel=1e-5)
    scaled.eval()
    settled = (1.2 * torch.sigmoid(odds - 2 / 3 * math.log(11)) - 0.1).clamp(0, 1)
    torch.testing.assert_close(scaled.factors().detach(), settled)


def test_the_cap_of_l0_has_a_gradient_that_leads_back() -> None:
    scaled = Scaled(nn.Linear(3, 2), "l0")
    with torch.no_grad():
        scaled.diagonal.copy_(torch.tensor([7.0, -7.0]))
    scaled.log_odds().sum().backward()
    assert scaled.diagonal.grad is not None
    assert (scaled.diagonal.grad > 0).all()


def test_l0_networks_learn_small_sizes_and_are_cut_to_budgets(tmp_path: Path) -> None:
    torch.manual_seed(0)
    y = torch.randint(4, (400,))
    x = torch.randn(4, 8)[y] + 0.3 * torch.randn(400, 8)
    net = nn.Sequential(nn.Linear(8, 40), nn.ReLU(), nn.Linear(40, 4))
    rider = add_diagonals(net, x[:2], 3e-3, "l0")
    optimizer = torch.optim.SGD(rider.parameters(), lr=0.1, momentum=0.9)
    for _ in range(300):
        nn.functional.cross_entropy(rider(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    rider.eval()
    layer = scaled_layers(rider.network)["0"]
    n_left = int((layer.factors() > 0).sum())
    assert 1 <= n_left < 30
    assert count_left(rider.train().network, x[:2]) == n_left * 9 + 4 * n_left + 4
    rider.eval()
    al.certify(rider.network, fold_diagonals(rider.network), x[:4])
    al.save(rider, tmp_path / "a.safetensors", example_inputs=x[:2])
    again = add_diagonals(net, x[:2], 0.0, "l0")
    again.load_state_dict(al.load(tmp_path / "a.safetensors").state_dict())
    # 20 neurons: 20 x 9 + 4 x 20 + 4
    small = reduce_by_diagonals(again.network, x[:2], 264)
    assert sum(p.numel() for p in small.parameters()) == 264
    assert (small(x).argmax(1) == y).float().mean() > 0.9


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x) + self.second(x)))


def test_channels_of_two_layers_are_refused() -> None:
    with pytest.raises(al.InputError, match="are written by first, second; a diagonal needs one"):
        add_diagonals(Sum(), torch.zeros(1, 3), 1e-3)


def test_a_trained_model_is_saved_and_its_numbers_come_back(tmp_path: Path) -> None:
    rider = add_diagonals(LeNet(), DIGITS, 1e-3)
    spread_(rider)
    al.save(rider, tmp_path / "a.safetensors", example_inputs=DIGITS)
    again = add_diagonals(LeNet(), DIGITS, 1e-3)
    again.load_state_dict(al.load(tmp_path / "a.safetensors").state_dict())
    assert al.certify(rider, again, DIGITS).difference == 0
