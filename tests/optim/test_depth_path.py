"""Under a budget the last hidden layers merge first, and only where nothing goes around them."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import archlearn as al
from archlearn.optim.depth_path import DepthChoice, plan_merges

STEPS = 100
BEGIN, END = 10, 70
"""Of the default schedule: the path is over at step 40, and a layer takes 6 steps."""


def chain(width: int = 16, n_hidden: int = 6) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(12, width), nn.ReLU()]
    for _ in range(n_hidden - 1):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 4)).double()


class Mixed(nn.Module):
    """A hidden layer in a branch, one that a concatenation passes, and two that nothing does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = (
            nn.Linear(12, 16),
            nn.Linear(16, 16),
            nn.Linear(16, 16),
        )
        self.inner, self.outer = nn.Linear(16, 16), nn.Linear(16, 16)
        self.side, self.beside = nn.Linear(16, 16), nn.Linear(16, 16)
        self.last = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.third(self.second(self.first(x).relu()).relu()).relu()
        n = x.size(0)  # a size goes around the layers behind, but carries no features
        x = x + self.outer(self.inner(x).relu())
        return self.last(torch.cat([x, self.beside(self.side(x).relu())], 1)).view(n, -1)


def draw(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(32, 12, generator=generator, dtype=torch.float64)
    return x, x[:, :4].argmax(1)


def prepare(net: nn.Module, **options: Any) -> tuple[nn.Module, Any, Any]:
    model = al.add_gates(net, draw(0)[0][:2])
    options = {"budget": {"parameters": "10%"}} | options
    gates = al.GateOptimizer(model, STEPS, **options)
    return model, gates, torch.optim.AdamW(al.weights(model), lr=0.01)


def train(model: nn.Module, gates: Any, weights: Any, steps: range) -> None:
    for step in steps:
        x, y = draw(step)
        cross_entropy(model(x), y).backward()
        for each in (weights, gates):
            each.step()
            each.zero_grad()


def linear_layers(model: nn.Module) -> list[str]:
    return list(al.plan(model).linear)


def test_a_chain_that_is_too_deep_loses_its_last_hidden_layers_and_lands() -> None:
    model, gates, weights = prepare(chain(), budget={"parameters": "20%"})
    train(model, gates, weights, range(STEPS))
    small: Any = al.compact(model)
    assert linear_layers(model) == ["4", "6", "8", "10"]
    assert sum(isinstance(module, nn.Linear) for module in small.modules()) == 3
    limit = 0.2 * sum(p.numel() for p in chain().parameters())
    assert 0.9 * limit < al.count_costs(small).parameters <= limit
    x = draw(0)[0]
    assert (small(x) - model(x)).abs().max() < 1e-10


def test_a_layer_becomes_linear_by_and_by_and_is_not_compacted_meanwhile() -> None:
    model, gates, weights = prepare(chain(), schedule=al.GateSchedule(decisions=1))
    train(model, gates, weights, range(BEGIN + 3))
    assert linear_layers(model) == ["10"]
    x = draw(0)[0]
    before = hidden = x
    layers: Any = [module for module in model.modules() if isinstance(module, nn.Linear)]
    for layer in layers[:-1]:
        before, hidden = layer(hidden), layer(hidden).relu()
    half = (hidden + before) / 2  # 3 of its 6 steps are over
    assert (layers[-1](half) - model(x)).abs().max() < 1e-10
    with pytest.raises(al.SurgeryError, match="while '10' becomes linear: 50% of its activation"):
        al.compact(model)
    gates.finish()
    assert (al.compact(model)(x) - model(x)).abs().max() < 1e-10


@pytest.mark.parametrize("shrinks", [False, True])
def test_a_run_resumed_while_a_layer_becomes_linear_is_bit_for_bit_the_same(
    shrinks: bool,
) -> None:
    runs: list[Tensor] = []
    for stops in (False, True):
        options = {"schedule": al.GateSchedule(patience=2, power=30)}
        model, gates, weights = prepare(chain(width=40), **options)
        stop = next(merge.begin for merge in gates.param_groups[0]["merges"][1:]) + 2
        train(model, gates, weights, range(stop))
        before = model(draw(0)[0])
        if shrinks:
            al.shrink_(model, weights, gates)
            assert sum(map(len, al.width_gates(model).values())) < 6 * 40
        assert (model(draw(0)[0]) - before).abs().max() < 1e-10
        if stops:
            states = copy.deepcopy([each.state_dict() for each in (model, weights, gates)])
            model, gates, weights = prepare(chain(width=40), **options)
            if shrinks:
                al.shrink_(model, weights, gates, like=states[0])
            for each, state in zip((model, weights, gates), states, strict=True):
                each.load_state_dict(state)
        assert 0 < model.state_dict()["archlearn_gates.slope"].min() < 1
        train(model, gates, weights, range(stop, STEPS))
        runs.append(model(draw(0)[0]))
    assert torch.equal(*runs)


def test_only_layers_that_nothing_goes_around_merge() -> None:
    model, gates, weights = prepare(Mixed().double(), budget={"parameters": "30%"})
    assert sum(row.depth for row in al.inspect(model).rows) == 4
    train(model, gates, weights, range(STEPS))
    assert linear_layers(model) == ["second"]  # the first hidden layer of a chain stays
    assert gates.fits()


def test_protected_layers_and_those_that_would_overshoot_stay() -> None:
    model, gates, weights = prepare(chain(), budget={"parameters": "40%"}, protect=["10", "8"])
    train(model, gates, weights, range(STEPS))
    assert linear_layers(model) == ["2", "4", "6"]
    model, gates, weights = prepare(chain(n_hidden=2), budget={"parameters": "60%"})
    train(model, gates, weights, range(STEPS))
    assert linear_layers(model) == []


def test_a_run_that_ends_early_merges_no_more_layers_unless_it_must() -> None:
    model, gates, weights = prepare(chain())
    train(model, gates, weights, range(BEGIN + 8))
    gates.finish()
    assert linear_layers(model) == ["8", "10"]
    assert gates.fits()
    model, gates, _ = prepare(chain(), largest_cut=0.3)
    gates.finish()
    assert gates.fits()


def test_a_merge_that_saves_little_is_left_to_widths() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        *[nn.Conv2d(1, 40, 3, padding=1), nn.ReLU(), nn.Conv2d(40, 40, 3, padding=1), nn.ReLU()],
        *[nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, 40), nn.ReLU()],
        *[nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 4)],
    )
    found: list[int] = []
    for cost in ("multiply_adds", "parameters"):  # 0.2 and 10 % of which the dense layer has
        model = al.add_gates(net, torch.randn(2, 1, 8, 8))
        gates: Any = al.GateOptimizer(model, 3, budget={cost: "20%"})
        for _ in range(3):
            model(torch.randn(8, 1, 8, 8)).square().mean().backward()
            gates.step()
        found.append(len(linear_layers(model)))
    assert found == [0, 1]


def test_without_a_power_for_depth_widths_alone_are_learnt() -> None:
    model, gates, weights = prepare(chain(), schedule=al.GateSchedule(depth_power=0.0))
    train(model, gates, weights, range(STEPS))
    assert linear_layers(model) == []
    with pytest.raises(al.InputError, match="depth_power is 2; give a power from 0 to 1"):
        al.GateSchedule(depth_power=2)


@pytest.mark.parametrize(
    "options",
    [{"largest_cut": 0.3}, {"schedule": al.GateSchedule(depth_power=0.0), "largest_cut": 0.3}],
)
def test_more_layers_merge_where_widths_may_not_go_far_enough(options: Any) -> None:
    model, gates, weights = prepare(chain(), **options)
    train(model, gates, weights, range(STEPS))
    assert gates.fits()
    assert len(linear_layers(model)) > 4


def test_depth_alone_is_learnt_under_a_budget() -> None:
    model = al.add_gates(chain(), draw(0)[0][:2], learn={"*": al.Learn.DEPTH})
    gates = al.GateOptimizer(model, STEPS, budget={"parameters": "50%"})
    train(model, gates, torch.optim.AdamW(al.weights(model), lr=0.01), range(STEPS))
    assert linear_layers(model) == ["4", "6", "8", "10"]
    assert gates.fits()


def test_merges_are_due_when_the_path_falls_below_the_cost() -> None:
    """Worked by hand: 100 falls to 100 · (1/16)^(t/2), and each merge takes off 30."""

    def costs(states: Tensor) -> Tensor:
        return torch.stack([100.0 - 30.0 * states.sum(1), states.new_ones(len(states))], 1)

    def floors(states: Tensor) -> Tensor:
        return torch.zeros(len(states), 2)

    limits = torch.tensor([6.25, torch.inf])
    choice = DepthChoice(order=(2, 0, 1), last_resort=(3,), power=0.5, least=0.02)
    merges = plan_merges(costs, floors, torch.zeros(4), limits, choice)
    assert [merge.layer for merge in merges] == [2, 0, 1]
    times = [torch.log2(torch.tensor(100 / now)).item() / 2 for now in (100, 70, 40)]
    assert [merge.begin for merge in merges] == pytest.approx(times)
    assert not any(merge.is_needed for merge in merges)


def test_no_merge_leaves_a_network_that_widths_cannot_bring_to_the_budget() -> None:
    """Of 64-24-16-10 all hidden layers could merge: 640 multiply-adds, and nothing left to cut."""
    torch.manual_seed(0)
    layers = nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 10)
    model = al.add_gates(nn.Sequential(*layers), torch.randn(2, 64))
    gates = al.GateOptimizer(model, STEPS, budget={"multiply_adds": 624})
    optimizer = torch.optim.AdamW(al.weights(model), lr=1e-3)
    for _ in range(STEPS):
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step(), gates.step()
        optimizer.zero_grad(), gates.zero_grad()
    small = al.compact(model)
    assert al.count_costs(small, torch.randn(1, 64)).multiply_adds == 8 * (64 + 10)
