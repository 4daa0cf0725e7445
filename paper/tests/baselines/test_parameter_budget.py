"""Channels that the loss does not notice go first."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import archlearn as al
from archlearn_cli.models import LeNet
from archlearn_paper.baselines.parameter_budget import (
    BudgetError,
    ParameterCounts,
    Ranked,
    is_within,
    prune_by_taylor,
    prune_until_budget,
    taylor_importance,
)

DIGITS = torch.zeros(1, 1, 28, 28)


def chain() -> nn.Sequential:
    """Two inputs, three neurons that give 1, 2 and 3 times their sum, one output."""
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1, bias=False)).double()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]))
        net[0].bias.zero_()
        net[2].weight.copy_(torch.tensor([[1.0, 1.0, 1.0]]))
    return net


def losses(model: nn.Module) -> Iterator[Tensor]:
    for scale in (1.0, 2.0):
        yield model(torch.full((1, 2), scale, dtype=torch.float64)).sum()


def test_worth_by_hand() -> None:
    gated = al.add_gates(chain(), torch.ones(1, 2).double(), width_start=1.0)
    (worth,) = taylor_importance(gated, losses).values()
    # gradients 2, 4, 6 on the first batch and twice that on the second; means of the squares
    torch.testing.assert_close(worth, torch.tensor([10.0, 40.0, 90.0], dtype=torch.float64))


def test_the_least_worth_goes_first() -> None:
    small = prune_by_taylor(chain(), torch.ones(1, 2).double(), 8, losses)
    assert small.get_parameter("0.weight").tolist() == [[2.0, 2.0], [3.0, 3.0]]


def test_a_model_within_its_budget_is_left_as_it_is() -> None:
    net = chain()
    same = prune_by_taylor(net, torch.ones(1, 2).double(), 12, losses)
    al.certify(net, same, torch.ones(1, 2).double(), tolerance=1e-12)
    assert sum(p.numel() for p in same.parameters()) == 12


def test_sizes_are_those_of_the_compact_model() -> None:
    sizes = ParameterCounts(al.add_gates(LeNet(), DIGITS))
    assert sizes.groups == ("conv1", "conv2", "fc1")
    assert sizes.parameters([20, 50, 500]) == 431_080
    assert sizes.parameters([20, 50, 20]) == 41_800
    # a neuron of fc1: 800 + 1 in, 10 out; a channel of conv2: 500 + 1 in, 16 x 500 out
    assert sizes.savings([20, 50, 500]) == [26 + 25 * 50, 501 + 8_000, 811]


@pytest.mark.parametrize("budget", [3_000, 5_000, 10_000, 40_000, 200_000])
def test_budgets_are_met_from_any_ranking(budget: int) -> None:
    generator = torch.Generator().manual_seed(budget)
    sizes = ParameterCounts(al.add_gates(LeNet(), DIGITS))
    ranked = [Ranked(torch.rand(n, generator=generator)) for n in (20, 50, 500)]
    assert is_within(prune_until_budget(sizes, ranked, budget), budget)


def test_a_channel_that_would_lead_below_the_budget_is_passed_over() -> None:
    # 52 + 153 + 4,410 + 910; a channel of conv2 takes 51 + 16 x 90 with it, a neuron 49 + 10
    sizes = ParameterCounts(al.add_gates(LeNet(widths=(2, 3, 90)), DIGITS))
    harms = torch.full((2,), 9.0), torch.full((3,), 1e-9), torch.ones(90)
    ranked = [Ranked(harm) for harm in harms]
    assert prune_until_budget(sizes, ranked, 5_000) == 5_525 - 9 * 59
    assert [len(group) for group in ranked] == [2, 3, 81]


def test_a_budget_below_one_channel_each_is_refused() -> None:
    sizes = ParameterCounts(al.add_gates(LeNet(), DIGITS))
    ranked = [Ranked(torch.ones(n)) for n in (20, 50, 500)]
    # one channel each: 26 + 26 + 17 + 20
    with pytest.raises(BudgetError, match=r"50 parameters were asked for, but .* still has 89"):
        prune_until_budget(sizes, ranked, 50)
