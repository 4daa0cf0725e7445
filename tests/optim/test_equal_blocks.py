"""`equal_blocks`: layers that differ in the number of their block alone stay equally wide."""

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import archlearn as al

STEPS = 120


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, width), nn.Linear(width, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(8, 16), nn.Linear(16, 3)
        self.blocks = nn.ModuleList(map(Block, widths))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def add_gates(net: nn.Module) -> nn.Module:
    return al.add_gates(net, torch.randn(2, 8), learn={"*": al.Learn.WIDTH})


def learn(
    model: nn.Module,
    *,
    shrinks: bool = False,
    share: int = 40,
    patience: int = 2,
    **options: Any,
) -> tuple[dict[str, int], Any]:
    """Return how many gates of each group are open in the end, and the compact model."""
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 1).long()
    schedule = al.GateSchedule(decisions=20, patience=patience, memory=0.5)
    budget = {"parameters": f"{share}%"}
    gates = al.GateOptimizer(model, STEPS, budget=budget, schedule=schedule, **options)
    weights = torch.optim.Adam(al.weights(model), lr=1e-2)
    n_shrinks = 0
    for _ in range(STEPS):
        cross_entropy(model(x), y).backward()
        for optimizer in (weights, gates):
            optimizer.step()
            optimizer.zero_grad()
        if shrinks and gates.can_shrink():
            al.shrink_(model, weights, gates)
            n_shrinks += 1
    assert n_shrinks > 1 or not shrinks
    open_gates = {name: int((gate >= 0.5).sum()) for name, gate in al.width_gates(model).items()}
    return open_gates, al.compact(model)


def make_net(*widths: int) -> Net:
    torch.manual_seed(0)
    return Net(*widths)


@pytest.mark.parametrize("shrinks", [False, True])
@pytest.mark.parametrize("multiple_of", [1, 4])
def test_blocks_stay_equally_wide_within_the_budget(multiple_of: int, shrinks: bool) -> None:
    net = make_net(40, 40, 40, 40)
    options: dict[str, Any] = {"multiple_of": multiple_of, "shrinks": shrinks}
    free, _ = learn(add_gates(net), **options)
    assert len({n for name, n in free.items() if "blocks" in name}) > 1
    equal, small = learn(add_gates(net), equal_blocks=True, **options)
    widths = {n for name, n in equal.items() if "blocks" in name}
    assert len(widths) == 1
    assert max(widths) < 40
    assert max(widths) % multiple_of == 0
    used = al.count_costs(small).parameters / al.count_costs(net, torch.randn(2, 8)).parameters
    assert 0.3 < used <= 0.4
    assert small.certificate.difference_float64 < 1e-10


def test_a_block_is_told_by_a_number_behind_its_name() -> None:
    net = make_net(40)
    net.blocks = nn.Sequential(OrderedDict((f"layer_{place}", Block(40)) for place in range(3)))  # pyright: ignore[reportAttributeAccessIssue]
    found, _ = learn(add_gates(net), equal_blocks=True)
    assert found.keys() - {"stem"} == {f"blocks.layer_{place}.up" for place in range(3)}
    (width,) = {n for name, n in found.items() if "blocks" in name}
    assert width < 40


def test_it_is_said_that_no_blocks_are_alike(caplog: pytest.LogCaptureFixture) -> None:
    learn(add_gates(make_net(40, 32)), equal_blocks=True)
    assert "equal_blocks=True changes nothing: no two of" in caplog.text
    caplog.clear()
    learn(add_gates(make_net(40, 40)), equal_blocks=True)
    assert "equal_blocks" not in caplog.text


def test_blocks_that_began_with_other_widths_go_on_alone() -> None:
    found, _ = learn(add_gates(make_net(40, 32, 40, 32)), equal_blocks=True)
    first, second, third, fourth = (found[f"blocks.{place}.up"] for place in range(4))
    assert (first, second) == (third, fourth)
    assert first != second


def test_all_of_a_protected_block_stays_in_the_others_too() -> None:
    model = add_gates(make_net(24, 24, 40, 40))
    found, _ = learn(model, equal_blocks=True, protect=["blocks.0.up"])
    assert (found["blocks.0.up"], found["blocks.1.up"]) == (24, 24)
    assert found["blocks.2.up"] == found["blocks.3.up"] < 40


def test_blocks_that_were_cut_to_other_widths_become_equal() -> None:
    net = make_net(40, 40, 40, 40)
    with torch.no_grad():
        dict(net.named_parameters())["blocks.2.down.weight"].mul_(10.0)  # it earns more than others
    model = add_gates(net)
    learn(model, shrinks=True, share=60, protect=["blocks.2.up"])
    cut = [len(gate) for name, gate in al.width_gates(model).items() if "blocks" in name]
    assert len(set(cut)) > 1
    found, _ = learn(model, equal_blocks=True, share=55, patience=20)
    (width,) = {n for name, n in found.items() if "blocks" in name}
    assert 1 < width <= min(cut)


def test_a_block_that_is_left_out_takes_no_channels_of_the_others_along() -> None:
    net = make_net(40, 40, 40, 40)
    with torch.no_grad():
        dict(net.named_parameters())["blocks.2.down.weight"].mul_(1e-3)  # it earns least
    asked = {"*.up": al.Learn.WIDTH, "blocks.[0-9]": al.Learn.DEPTH}
    model = al.add_gates(net, torch.randn(2, 8), learn=asked)
    found, small = learn(model, equal_blocks=True, shrinks=True, share=30)
    names = [name for name, tensor in small.named_parameters() if name.endswith("up.weight")]
    assert 0 < len(names) < 4
    (width,) = {found[name.removesuffix(".weight")] for name in names}
    used = al.count_costs(small).parameters / al.count_costs(net, torch.randn(2, 8)).parameters
    assert 0.2 < used <= 0.3
    assert width > 4
