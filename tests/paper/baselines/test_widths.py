"""A network at the widths that a search proposes."""

import pytest
import torch

import archlearn as al
from archlearn.models.lenet import LeNet
from archlearn_paper.baselines.bayesian_search import find_widths, start_at_widths

DIGITS = torch.zeros(1, 1, 28, 28)


def test_widths_of_the_lenet() -> None:
    assert find_widths(LeNet(), DIGITS) == {"conv1": 20, "conv2": 50, "fc1": 500}


def test_a_fresh_network_has_the_widths_asked_for() -> None:
    net = LeNet()
    small = start_at_widths(net, DIGITS, {"conv2": 7, "fc1": 20}, seed=1)
    # 20 x 26, 7 x 501, 20 x (16 x 7 + 1) and 10 x 21
    assert al.count_costs(small, DIGITS).parameters == 520 + 7 * 501 + 20 * 113 + 210
    assert not torch.equal(small.get_parameter("conv1.weight"), net.conv1.weight)
    again = start_at_widths(net, DIGITS, {"conv2": 7, "fc1": 20}, seed=1)
    assert torch.equal(small.get_parameter("fc1.weight"), again.get_parameter("fc1.weight"))
    assert al.count_costs(net, DIGITS).parameters == 431_080


@pytest.mark.parametrize("widths", [{"fc1": 501}, {"fc1": 0}, {"fc2": 3}])
def test_other_widths_are_refused(widths: dict[str, int]) -> None:
    with pytest.raises(al.InputError, match=r"widths to choose: conv1 \(1 to 20\), conv2"):
        start_at_widths(LeNet(), DIGITS, widths, seed=0)
