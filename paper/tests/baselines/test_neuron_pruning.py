"""Like neurons are merged: numbers worked by hand, and exactness for duplicates."""

import pytest
import torch
from torch import nn

import archlearn as al
from archlearn_cli.models import LeNet
from archlearn_paper.baselines.neuron_pruning import Neurons, reduce_by_merging
from archlearn_paper.baselines.parameter_budget import is_within

DIGITS = torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def test_saliency_worked_by_hand() -> None:
    incoming = torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 5.0]])
    outgoing = torch.tensor([[1.0, 0.0], [2.0, 0.0], [1.0, 2.0]])
    neurons = Neurons(incoming, outgoing)
    # squared distances 25, 34, 1; squared outgoing norms 1, 4, 5: the last two differ by 1, and
    # the one that speaks less goes: 4 x 1
    assert neurons.saliency() == pytest.approx(4.0)
    neurons.close()
    assert neurons.is_kept.tolist() == [True, False, True]
    assert neurons.outgoing.tolist() == [[1.0, 0.0], [0.0, 0.0], [3.0, 2.0]]
    # left: 34 apart, norms 1 and 13
    assert neurons.saliency() == pytest.approx(34.0)
    assert len(neurons) == 2


def test_a_merge_is_the_best_of_all_pairs() -> None:
    generator = torch.Generator().manual_seed(3)
    incoming = torch.randn(12, 4, generator=generator)
    outgoing = torch.randn(12, 3, generator=generator)
    neurons = Neurons(incoming, outgoing)
    for _ in range(10):
        kept = torch.nonzero(neurons.is_kept).flatten().tolist()
        every = [
            (neurons.outgoing[j].square().sum() * (incoming[i] - incoming[j]).square().sum()).item()
            for i in kept
            for j in kept
            if i != j
        ]
        assert neurons.saliency() == pytest.approx(min(every), rel=1e-5)
        neurons.close()


@torch.no_grad()
def duplicate_(layer: nn.Linear | nn.Conv2d, first: int, second: int) -> None:
    layer.weight[second] = layer.weight[first]
    assert layer.bias is not None
    layer.bias[second] = layer.bias[first]


def test_duplicates_merge_without_a_trace() -> None:
    torch.manual_seed(0)
    net = LeNet().double()
    duplicate_(net.conv1, 3, 7)
    duplicate_(net.conv2, 0, 49)
    duplicate_(net.fc1, 11, 12)
    n_left = 520 - 26 + 49 * 476 + 499 * 785 + 5000
    merged = reduce_by_merging(net, DIGITS.double(), n_left)
    al.certify(net, merged, DIGITS.double(), tolerance=1e-10)
    assert al.count_costs(merged).parameters == n_left


def test_what_is_not_alike_leaves_a_trace() -> None:
    torch.manual_seed(0)
    net = LeNet().double()
    merged = reduce_by_merging(net, DIGITS.double(), 431_000)
    with pytest.raises(al.CertificateError):
        al.certify(net, merged, DIGITS.double())


def test_duplicates_in_convolutions_with_groups_merge_too() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, 3, groups=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(6 * 16, 3),
    ).double()  # fmt: skip
    # channels 1 and 2 of the first half, and with them 5 and 6 of the second
    for first, second in ((1, 2), (5, 6)):
        duplicate_(net[0], first, second)
    x = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    n_left = 6 * 10 + 6 * (3 * 9 + 1) + 3 * 97
    merged = reduce_by_merging(net, x, n_left)
    assert [layer.weight.shape[0] for layer in (merged[0], merged[2])] == [6, 6]
    assert al.certify(net, merged, x).difference < 1e-10


@pytest.mark.parametrize("budget", [5_000, 40_000])
def test_the_referees_budgets_are_met(budget: int) -> None:
    torch.manual_seed(0)
    net = LeNet()
    merged = reduce_by_merging(net, DIGITS, budget)
    assert is_within(al.count_costs(merged, DIGITS).parameters, budget)
    assert al.count_costs(net, DIGITS).parameters == 431_080
