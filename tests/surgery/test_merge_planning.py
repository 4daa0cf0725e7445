"""A run of linear layers merges only as far as that is exact, and raises neither cost."""

import pytest
import torch
from torch import Tensor, nn

import archlearn as al


@torch.no_grad()
def make_linear(net: nn.Module, x: Tensor) -> nn.Module:
    """Return a gated copy in which every layer that may be linear is."""
    model = al.add_gates(net.double(), x).eval()
    for gate in al.depth_gates(model).values():
        gate.fill_(0.9)
    return model


def test_a_merge_that_lowers_parameters_may_not_raise_multiply_adds() -> None:
    """At 5-3-8: (5+1)·3 + (3+1)·8 parameters against (5+1)·8, but 15 + 24 products against 40."""
    net = nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 8))
    model = make_linear(net, torch.randn(1, 5, dtype=torch.float64))
    (merge,) = al.plan(model).merges
    assert (merge.before, merge.after) == (50, 48)
    assert not merge.made
    assert al.count_costs(al.compact(model)) == al.Costs(50, 39)


def three(first: nn.Module, *behind: nn.Module) -> nn.Module:
    """Return a convolution, a 1×1 without bias, and a padded one, which reads a border of zeros."""
    middle, last = nn.Conv2d(6, 6, 1, bias=False), nn.Conv2d(6, 6, 3, padding=1)
    return nn.Sequential(first, *behind, nn.ReLU(), middle, nn.ReLU(), last)


@pytest.mark.parametrize(
    ("net", "n_first"),
    [
        (three(nn.Conv2d(2, 6, 1, bias=False)), 3),
        (three(nn.Conv2d(2, 6, 1)), 2),
        (three(nn.Conv2d(2, 6, 3, bias=False)), 2),
        (three(nn.Conv2d(2, 6, 1, padding=1, bias=False)), 2),
        (three(nn.Conv2d(2, 6, 1, bias=False), nn.BatchNorm2d(6)), 2),
    ],
    ids=["point", "bias", "kernel", "padding", "norm"],
)
def test_what_does_not_end_in_zeros_is_not_merged_across_a_border_of_zeros(
    net: nn.Module, n_first: int
) -> None:
    x = torch.randn(2, 2, 7, 7, dtype=torch.float64)
    model = make_linear(net, x)
    assert [len(merge.layers) for merge in al.plan(model).merges if merge.made] == [n_first]
    torch.testing.assert_close(al.compact(model)(x), model(x), rtol=1e-10, atol=1e-10)
