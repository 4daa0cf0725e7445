"""`multiple_of`: widths that hardware likes, beside a budget and exact as ever."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import archlearn as al
import archlearn_cli as cli
from tests.optim.test_gate_optimizer import Residual

NETWORKS = {
    "lenet": (1, 28, 28),
    "resnet20": (3, 32, 32),
    "vit:0.5": (3, 32, 32),
}


def learn(name: str, n_steps: int = 12, **options: Any) -> tuple[nn.Module, Any]:
    """Return a gated network behind a few steps on random images, and its gates' optimiser."""
    torch.manual_seed(0)
    x, y = torch.randn(4, *NETWORKS[name]), torch.randint(10, (4,))
    model = al.add_gates(cli.models.build_network(name, NETWORKS[name], 10), x[:1])
    gates: Any = al.GateOptimizer(model, n_steps, multiple_of=8, **options)
    for _ in range(n_steps):
        cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for weight in al.weights(model):
                if weight.grad is not None:
                    weight -= 0.01 * weight.grad
        gates.step()
        model.zero_grad()
    return model, gates


def widths_of(model: nn.Module) -> dict[str, int]:
    """Return the rows of each layer's weight."""
    return {
        name: module.weight.shape[0]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Conv2d)
    }


def check_multiples(model: nn.Module, small: nn.Module) -> None:
    full, found = widths_of(model), widths_of(small)
    # What has merged with the last layer has its ten outputs.
    odd = {name: n for name, n in found.items() if n % 8 and n not in (full[name], 10)}
    assert not odd
    assert any(n < full[name] for name, n in found.items())


@pytest.mark.parametrize("share", [50, 20])
@pytest.mark.parametrize("name", NETWORKS)
def test_widths_are_multiples_of_eight_or_whole(name: str, share: int) -> None:
    cost = "parameters" if name == "lenet" else "multiply_adds"
    if name.startswith("vit"):
        share += 30  # its attention stays
    model, gates = learn(name, budget={cost: f"{share}%"})
    small: Any = al.compact(model)
    plan = al.plan(model)
    limit = share / 100 * getattr(plan.before, cost)
    assert 0.8 * limit <= getattr(plan.after, cost) <= limit
    check_multiples(model, small)
    assert small.certificate.difference_float64 < 1e-10
    assert gates.costs()["parameters"] == plan.after.parameters


def test_least_widths_and_protected_layers_are_rounded_up() -> None:
    options: dict[str, Any] = {"least_width": 9, "protect": ["conv1"]}
    model, _ = learn("lenet", budget={"parameters": "3%"}, **options)
    counts = {name: int((gate >= 0.5).sum()) for name, gate in al.width_gates(model).items()}
    assert min(counts.values()) == 16
    assert 20 in counts.values()


def test_a_price_closes_whole_blocks() -> None:
    model, _ = learn("lenet", width_cost=1e-2)
    check_multiples(model, al.compact(model))


def test_widths_are_multiples_where_the_network_shrinks_while_it_learns() -> None:
    torch.manual_seed(0)
    data = torch.randn(64, 64), torch.randint(10, (64,))
    model = al.add_gates(Residual(), data[0][:2])
    full = widths_of(model)
    schedule = al.GateSchedule(patience=2)
    budget = {"multiply_adds": "40%"}
    gates = al.GateOptimizer(model, 60, budget=budget, multiple_of=8, schedule=schedule)
    optimizer = torch.optim.SGD(al.weights(model), lr=0.05)
    both: tuple[Any, Any] = (optimizer, gates)
    n_cuts = 0
    for _ in range(60):
        cross_entropy(model(data[0]), data[1]).backward()
        for each in both:
            each.step()
            each.zero_grad()
        if gates.can_shrink():
            al.shrink_(model, optimizer, gates)
            n_cuts += 1
            cut = {name: n for name, n in widths_of(model).items() if n < full[name]}
            assert cut
            assert all(n % 8 == 0 for n in cut.values())
        counts = [int((gate >= 0.5).sum()) for gate in al.width_gates(model).values()]
        assert all(count % 8 == 0 for count in counts)
    assert n_cuts > 1
    small = al.compact(model)
    assert all(n % 8 == 0 or n == full[name] for name, n in widths_of(small).items())
    assert gates.fits()


def test_a_multiple_that_is_no_number_of_channels_is_refused() -> None:
    model = al.add_gates(Residual(), torch.randn(2, 64))
    with pytest.raises(al.InputError, match=r"multiple_of is 0; give a whole number from 1 on"):
        al.GateOptimizer(model, 10, multiple_of=0)


def test_each_head_keeps_a_multiple_however_many_heads_are_left() -> None:
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(48, 6, 32, 0.0, batch_first=True)
    x = torch.randn(4, 5, 48)
    model = al.add_gates(block, x)
    gates: Any = al.GateOptimizer(model, 20, budget={"parameters": "30%"}, multiple_of=4)
    for _ in range(20):
        model(x).square().mean().backward()
        gates.step()
        gates.zero_grad()
    names = ["self_attn.in_proj_weight/2", "self_attn.in_proj_weight/3"]
    within = [int((al.width_gates(model)[name] >= 0.5).sum()) for name in names]
    assert all(n % 4 == 0 for n in within)
    assert any(n < 8 for n in within)
