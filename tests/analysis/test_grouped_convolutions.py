"""Convolutions of many groups lose whole groups, and the same channels of each."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import archlearn as al

GROUPS, N_IN, N_OUT = 4, 5, 6


class Functional(nn.Module):
    """A grouped convolution, called as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(GROUPS * N_OUT, N_IN, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, None, 1, 1, 1, GROUPS)


MIDDLES: dict[str, Callable[[], nn.Module]] = {
    "convolution": lambda: nn.Conv2d(
        GROUPS * N_IN, GROUPS * N_OUT, 3, padding=1, groups=GROUPS, bias=False
    ),
    "transposed": lambda: nn.ConvTranspose2d(
        GROUPS * N_IN, GROUPS * N_OUT, 3, padding=1, groups=GROUPS, bias=False
    ),
    "function": Functional,
}


def build(middle: Callable[[], nn.Module], act: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    torch.manual_seed(0)
    first, last = nn.Conv2d(3, GROUPS * N_IN, 1), nn.Conv2d(GROUPS * N_OUT, 2, 1)
    return nn.Sequential(first, act(), middle(), act(), last).double().eval()


def draw(n: int) -> Tensor:
    return torch.randn(n, 3, 7, 7, dtype=torch.float64)


def close_(gate: Tensor, *places: int) -> None:
    with torch.no_grad():
        gate[list(places)] = 0.0


@pytest.mark.parametrize("act", [nn.ReLU, nn.Identity])
@pytest.mark.parametrize("name", MIDDLES)
def test_groups_go_and_channels_of_every_group(name: str, act: Callable[[], nn.Module]) -> None:
    net = build(MIDDLES[name], act)
    model = al.add_gates(net, draw(2))
    x, gates = draw(3), al.width_gates(model)
    assert sorted(len(gate) for gate in gates.values()) == [GROUPS, N_IN, N_OUT]
    torch.testing.assert_close(model(x), net(x), rtol=0, atol=1e-12)
    by_size = {len(gate): gate for gate in gates.values()}
    close_(by_size[GROUPS], 1)
    close_(by_size[N_IN], 0, 3)
    close_(by_size[N_OUT], 5)
    small: Any = al.compact(model)
    torch.testing.assert_close(small(x), model(x), rtol=0, atol=1e-10)
    assert small[0].out_channels == 3 * 3
    assert small[4].in_channels == 3 * 5
    assert small[2].weight.shape[:2] == ((9, 5) if name == "transposed" else (15, 3))
    assert getattr(small[2], "groups", 3) == 3
    n_left = 3 * 9 + 9 + 15 * 3 * 9 + 15 * 2 + 2
    assert sum(p.numel() for p in small.parameters()) == al.plan(model).after.parameters == n_left


def test_the_gradient_of_a_gate_is_that_of_all_channels_it_stands_for() -> None:
    net: Any = build(MIDDLES["convolution"])
    model = al.add_gates(net, draw(2))
    places = al.width_gates(model)["0/2"]
    hidden = net[1](net[0](x := draw(3))).detach().requires_grad_()
    net[2:](hidden).square().sum().backward()
    model(x).square().sum().backward()
    worth = (hidden * hidden.grad).sum((0, 2, 3)).view(GROUPS, N_IN).sum(0)
    torch.testing.assert_close(places.grad, worth)


def test_a_closed_group_has_the_gradient_of_its_coming_back() -> None:
    net: Any = build(MIDDLES["convolution"])
    model = al.add_gates(net, draw(2))
    group = al.width_gates(model)["0"]
    close_(group, 1)
    behind = net[:4](x := draw(3)).detach()
    is_open = torch.tensor([1.0, 0.0, 1.0, 1.0]).double().requires_grad_()
    net[4](behind * is_open.repeat_interleave(N_OUT)[:, None, None]).square().sum().backward()
    model(x).square().sum().backward()
    assert group.grad is not None
    assert group.grad[1] != 0
    torch.testing.assert_close(group.grad, is_open.grad)


@pytest.mark.parametrize(("groups", "size", "expected"), [(8, 3, 8), (3, 8, 8)])
def test_of_few_groups_or_small_ones_the_finer_choice_goes(
    groups: int, size: int, expected: int
) -> None:
    n = groups * size
    net = nn.Sequential(nn.Conv2d(3, n, 1), nn.ReLU(), nn.Conv2d(n, n, 1, groups=groups), nn.ReLU())
    model = al.add_gates(nn.Sequential(*net, nn.Conv2d(n, 2, 1)), torch.randn(2, 3, 5, 5))
    assert {len(gate) for gate in al.width_gates(model).values()} == {expected}


@pytest.mark.parametrize(
    ("n_groups", "sizes"),
    [(GROUPS, [N_IN, N_OUT]), (12, [3, GROUPS, N_IN]), (1, [GROUPS, N_IN, N_OUT])],
)
def test_a_norm_behind_ties_groups_or_channels_within(n_groups: int, sizes: list[int]) -> None:
    """It loses the same of each of its own groups or, of twelve, these as a whole."""
    n = GROUPS * N_OUT
    parts: Any = build(MIDDLES["convolution"])
    norm = nn.GroupNorm(n_groups, n)
    net = nn.Sequential(*parts[:3], norm, nn.ReLU(), nn.Conv2d(n, 2, 1)).double().eval()
    model = al.add_gates(net, draw(2))
    assert sorted(len(gate) for gate in al.width_gates(model).values()) == sizes
    for gate in al.width_gates(model).values():
        close_(gate, 0, 2)
    x = draw(3)
    torch.testing.assert_close(al.compact(model)(x), model(x), rtol=0, atol=1e-10)


def test_channels_within_groups_go_where_the_groups_stay() -> None:
    """The first convolution reads the network's input, which stays as it is."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(16, 24, 3, groups=4), nn.ReLU(), nn.Conv2d(24, 2, 1)).double()
    model: Any = al.add_gates(net.eval(), torch.randn(2, 16, 7, 7, dtype=torch.float64))
    (gate,) = al.width_gates(model).values()
    assert len(gate) == 6
    close_(gate, 1, 2)
    x = torch.randn(3, 16, 6, 6, dtype=torch.float64)
    small: Any = al.compact(model)
    assert (small[0].out_channels, small[0].groups) == (16, 4)
    torch.testing.assert_close(small(x), model(x), rtol=0, atol=1e-10)
