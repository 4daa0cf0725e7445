"""How a budget falls, what counts above it, and which channels may come back."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import archlearn as al
from archlearn.optim.gate_ranking import find_savings


def learn(
    n_steps: int, schedule: al.GateSchedule, budget: dict[str, str | float], upto: int
) -> tuple[nn.Module, al.GateOptimizer]:
    torch.manual_seed(0)
    x, y = torch.randn(32, 16), torch.randint(4, (32,))
    net = nn.Sequential(nn.Linear(16, 200), nn.ReLU(), nn.Linear(200, 4))
    model = al.add_gates(net, x)
    gates = al.GateOptimizer(model, n_steps, budget=budget, schedule=schedule)
    for _ in range(upto):
        cross_entropy(model(x), y).backward()
        gates.step()
        gates.zero_grad()
    return model, gates


@pytest.mark.parametrize(("power", "share"), [(3.0, 0.2 + 0.8 * 0.5**3), (1.0, 0.2 + 0.8 * 0.5)])
def test_the_budget_falls_with_a_power_of_the_time_that_is_left(power: float, share: float) -> None:
    schedule = al.GateSchedule(begin=0.0, end=1.0, power=power, decisions=100)
    _, gates = learn(100, schedule, {"parameters": "20%"}, upto=50)
    whole = 16 * 200 + 200 + 200 * 4 + 4
    assert share - 0.03 < gates.costs()["parameters"] / whole <= share + 0.02


def test_the_last_four_channels_of_a_group_are_never_closed_for_good() -> None:
    schedule = al.GateSchedule(begin=0.0, end=0.9, patience=1, decisions=50)
    model, gates = learn(100, schedule, {"parameters": "20%"}, upto=80)
    (gate,) = al.width_gates(model).values()
    times = gates.state[gate]["closed"]
    n_closed, n_for_good = int((gate < 0.5).sum()), int((times == times.max()).sum())
    assert n_closed > 100
    assert n_for_good == n_closed - 4


def test_of_several_budgets_the_one_that_is_further_above_counts_more() -> None:
    def cost(opened: torch.Tensor, gone: torch.Tensor) -> torch.Tensor:
        """Two costs: of the first channel alone 1, of the second alone 1, beside what stays."""
        return opened * torch.ones(2) + torch.tensor([99.0, 999.0])

    cost.n_depth = 0  # pyright: ignore[reportFunctionMemberAccess]
    opened, gone = torch.ones(2), torch.zeros(0)
    # twice its limit of 50, and a tenth above 909: as parts of themselves 1 / 100 and 0.1 / 1,000
    savings, _ = find_savings(cost, opened, gone, torch.tensor([50.0, 1000 / 1.1]))  # pyright: ignore
    torch.testing.assert_close(savings, torch.tensor([100.0, 1.0]) / 101.0)
