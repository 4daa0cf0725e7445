"""Layers of low rank: numbers worked by hand."""

import pytest
import torch
from torch import nn

import archlearn as al
from archlearn_cli.models import LeNet
from archlearn_paper.baselines.parameter_budget import BudgetError, is_within
from archlearn_paper.baselines.svd import (
    choose_ranks,
    count_factorised,
    factorise,
    quarter_ranks,
    reduce_by_svd,
)

DIGITS = torch.zeros(1, 1, 28, 28)


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def test_rank_one_of_a_diagonal_keeps_its_largest_entry() -> None:
    layer = nn.Linear(3, 3).double()
    layer.weight.copy_(torch.diag(torch.tensor([1.0, 3.0, 2.0])))
    net = nn.Sequential(layer)
    pair = factorise(net, {"0": 1})
    expected = torch.tensor([[0.0, 3.0, 0.0]], dtype=torch.float64) + layer.bias
    torch.testing.assert_close(pair(torch.ones(1, 3, dtype=torch.float64)), expected)
    two = factorise(net, {"0": 2})
    expected = torch.tensor([[0.0, 3.0, 2.0]], dtype=torch.float64) + layer.bias
    torch.testing.assert_close(two(torch.ones(1, 3, dtype=torch.float64)), expected)


def test_full_rank_computes_the_same() -> None:
    torch.manual_seed(0)
    net = LeNet().double()
    same = factorise(net, {"conv1": 20, "conv2": 50, "fc1": 500, "fc2": 10})
    assert al.certify(net, same, DIGITS.double()).difference < 1e-10


def test_strided_and_padded_convolutions_keep_their_geometry() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, padding=1, dilation=2)).double()
    x = torch.randn(2, 2, 11, 11, dtype=torch.float64)
    torch.testing.assert_close(factorise(net, {"0": 4})(x), net(x))


def test_the_papers_ranks_of_layer_three() -> None:
    net = LeNet()
    # 431,080 - 800 x 500 + rank x (800 + 500)
    assert count_factorised(net, {"fc1": 10}) == 44_080
    assert count_factorised(net, {"fc1": 40}) == 83_080
    assert count(factorise(net, {"fc1": 10})) == 44_080


def test_a_quarter_of_each_rank_is_the_papers_caffenet() -> None:
    with torch.device("meta"):
        classifier = nn.Sequential(
            nn.Linear(9216, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(),
            nn.Linear(4096, 1000),
        )  # fmt: skip
    ranks = quarter_ranks(classifier)
    assert ranks == {"0": 1024, "2": 1024, "4": 250}
    convolutions = 34_944 + 307_456 + 885_120 + 663_936 + 442_624
    assert round((count_factorised(classifier, ranks) + convolutions) / 1e6, 1) == 25.6


def test_the_original_is_left_alone() -> None:
    net = LeNet()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    factorise(net, {"fc1": 3})
    assert before.keys() == net.state_dict().keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_ranks_go_where_the_energy_is() -> None:
    net = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(torch.diag(torch.tensor([3.0, 3.0, 3.0] + [0.0] * 7)))
        net[1].weight.copy_(torch.diag(torch.tensor([3.0, 1.0, 1.0] + [0.0] * 7)))
    # both at rank 1 take 40; then 9/27, 9/27 of the first and 1/11 of the second
    assert choose_ranks(net, 80) == {"0": 3, "1": 1}
    assert choose_ranks(net, 100) == {"0": 3, "1": 2}


@torch.no_grad()
def test_no_layer_is_left_at_rank_one_for_the_others() -> None:
    net = nn.Sequential(nn.Linear(40, 40, bias=False), nn.Linear(20, 20, bias=False))
    for layer in net:
        layer.weight.copy_(torch.eye(len(layer.weight)))
    # ranks cost 80 and 40; log 2 / 80 of the first goes after log 2 / 40 and log 1.5 / 40 of the
    # second, and before log 4/3 / 40
    assert choose_ranks(net, 120 + 2 * 40 + 80) == {"0": 2, "1": 3}


@torch.no_grad()
def test_a_rank_may_pass_the_budget_a_little_where_too_much_would_be_left() -> None:
    net = nn.Sequential(nn.Linear(40, 40, bias=False), nn.Linear(40, 40, bias=False))
    for layer in net:
        layer.weight.copy_(torch.eye(len(layer.weight)))
    # ranks cost 80 each: 160 is thirty per cent below 230, and 240 four above
    assert sum(choose_ranks(net, 230).values()) == 3
    assert sum(choose_ranks(net, 220).values()) == 2  # 240 would be nine above
    assert sum(choose_ranks(net, 245).values()) == 3


def test_a_rank_is_worth_what_it_holds_per_parameter() -> None:
    net = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 40, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(torch.diag(torch.tensor([8.0, 2.0] + [0.0] * 8).sqrt()))
        net[1].weight.zero_()
        net[1].weight[:2, :2] = torch.diag(torch.tensor([7.0, 3.0]).sqrt())
    # rank 1 takes 20 + 50, and 50 are left: 0.2 for 20 goes before 0.3 for 50
    assert choose_ranks(net, 120)["1"] == 1
    assert choose_ranks(net, 140) == {"0": 2, "1": 2}


@pytest.mark.parametrize("budget", [5_000, 10_000, 20_000, 40_000])
def test_the_referees_budgets_are_met(budget: int) -> None:
    torch.manual_seed(0)
    reduced = reduce_by_svd(LeNet(), DIGITS, budget)
    assert is_within(al.count_costs(reduced, DIGITS).parameters, budget)


def test_too_small_a_budget_is_refused() -> None:
    with pytest.raises(BudgetError, match="100 parameters were asked for, but at rank 1"):
        reduce_by_svd(LeNet(), DIGITS, 100)
