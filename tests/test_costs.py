"""Costs are what a network weighs and what one run of it takes."""

import dataclasses
import json
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

import archlearn as al
from archlearn.analysis.cost_model import build_cost_table, marginal_costs
from archlearn.costs import COSTS, Costs, PriceName
from archlearn.gating.cost_counter import count_layer_costs
from archlearn.gating.gate_container import find_container
from archlearn.optim.cost_function import CostFunction
from archlearn.tracing.transformer_blocks import count_flops
from archlearn_cli.models import LeNet
from tests.optim.test_recurrent_units import make as make_reader

DIGITS = torch.zeros(1, 1, 28, 28)

# 24 x 24 places behind the first convolution, 8 x 8 behind the second, 4 x 4 behind the pooling
LENET_PARAMETERS = (25 + 1) * 20 + (20 * 25 + 1) * 50 + (50 * 16 + 1) * 500 + (500 + 1) * 10
LENET_MACS = 576 * 25 * 20 + 64 * 25 * 20 * 50 + 800 * 500 + 500 * 10


@pytest.fixture(scope="module")
def lenet() -> nn.Module:
    """A gated LeNet; each test sets all its gates."""
    return al.add_gates(LeNet(), DIGITS)


@torch.no_grad()
def keep_(model: nn.Module, widths: tuple[int, int, int], is_linear: bool) -> None:
    for gate, width in zip(al.width_gates(model).values(), widths, strict=True):
        gate.copy_((torch.arange(len(gate)) < width).float())
    al.depth_gates(model)["fc1"].fill_(float(is_linear))


def test_lenet_worked_by_hand() -> None:
    costs = al.count_costs(LeNet(), DIGITS)
    assert costs == al.Costs(431_080, 2_293_000)
    assert costs == al.Costs(LENET_PARAMETERS, LENET_MACS)
    assert str(costs) == "431,080 parameters, 2,293,000 multiply-adds"


def test_gates_are_not_counted(lenet: nn.Module) -> None:
    assert al.count_costs(lenet) == al.Costs(431_080, 2_293_000)
    by_hand = nn.Sequential(nn.Linear(4, 3), al.TriState(3, nn.PReLU()), nn.Linear(3, 2))
    assert al.count_costs(by_hand, torch.zeros(1, 4)) == al.Costs(15 + 1 + 8, 12 + 6)


@pytest.mark.parametrize(
    ("widths", "is_linear", "architecture", "parameters"),
    [
        ((20, 50, 500), False, "20-50-500-10", 431_080),
        ((16, 26, 500), True, "16-26-10", 15_012),
        ((20, 50, 20), False, "20-50-20-10", 41_800),
        ((16, 40, 500), True, "16-40-10", 22_866),
        ((20, 50, 70), False, "20-50-70-10", 82_350),
    ],
)
def test_rows_of_the_papers_table(
    lenet: nn.Module,
    widths: tuple[int, int, int],
    is_linear: bool,
    architecture: str,
    parameters: int,
) -> None:
    keep_(lenet, widths, is_linear)
    assert str(al.read_architecture(lenet)) == architecture
    assert al.plan(lenet).after.parameters == parameters
    small = al.compact(lenet)
    assert al.count_costs(small).parameters == parameters
    assert sum(p.numel() for p in small.parameters()) == parameters


def test_multiply_adds_of_a_compact_lenet_worked_by_hand(lenet: nn.Module) -> None:
    keep_(lenet, (16, 26, 500), is_linear=True)
    expected = 576 * 25 * 16 + 64 * 25 * 16 * 26 + 26 * 16 * 10
    assert al.count_costs(al.compact(lenet)).multiply_adds == expected
    assert al.plan(lenet).after.multiply_adds == expected


@pytest.mark.parametrize(
    ("layer", "shape", "parameters", "multiply_adds"),
    [
        (nn.Linear(7, 5, bias=False), (3, 7), 35, 3 * 35),
        (nn.Linear(7, 5), (2, 4, 7), 40, 8 * 35),
        (nn.Conv1d(4, 6, 3), (1, 4, 10), 4 * 6 * 3 + 6, 8 * 72),
        (nn.Conv2d(4, 6, 3, padding=1), (2, 4, 5, 5), 4 * 6 * 9 + 6, 2 * 25 * 216),
        (nn.Conv2d(4, 6, 3, stride=2), (1, 4, 7, 7), 4 * 6 * 9 + 6, 9 * 216),
        (nn.Conv2d(4, 6, 3, groups=2), (1, 4, 5, 5), 2 * 6 * 9 + 6, 9 * 108),
        (nn.Conv2d(4, 4, 3, groups=4), (1, 4, 5, 5), 4 * 9 + 4, 9 * 36),
        (nn.ConvTranspose2d(4, 6, 2, stride=2), (1, 4, 5, 5), 4 * 6 * 4 + 6, 25 * 96),
        (nn.ConvTranspose2d(4, 6, 3, groups=2), (1, 4, 5, 5), 4 * 3 * 9 + 6, 25 * 108),
        (nn.Conv3d(2, 3, 2), (1, 2, 3, 3, 3), 2 * 3 * 8 + 3, 8 * 48),
        (nn.LSTM(5, 6), (7, 2, 5), 4 * 6 * 13, 7 * 2 * 4 * 6 * 11),
        (nn.LSTM(5, 6, 2, bidirectional=True), (7, 2, 5), 2 * 24 * 33, 14 * 2 * 24 * 29),
        (nn.GRU(5, 6), (7, 2, 5), 3 * 6 * 13, 7 * 2 * 3 * 6 * 11),
    ],
    ids=lambda value: str(value) if isinstance(value, nn.Module) else "",
)
def test_layers_worked_by_hand(
    layer: nn.Module, shape: tuple[int, ...], parameters: int, multiply_adds: int
) -> None:
    costs = al.count_costs(layer, torch.zeros(shape))
    assert costs == al.Costs(parameters, multiply_adds)


def test_a_recurrent_layer_of_cudnn_is_counted_by_its_matrices() -> None:
    x, state = torch.zeros(7, 2, 5, device="meta"), torch.zeros(1, 2, 6, device="meta")
    weights = [torch.zeros(*size, device="meta") for size in ((24, 5), (24, 6), (24,), (24,))]
    lstm = (2, 6, 0, 1, False, 0.0, False, False, [], None)  # as torch calls it for an nn.LSTM
    with count_flops() as counter:
        torch.ops.aten._cudnn_rnn(x, weights, 4, None, state, state, *lstm)
    assert counter.get_total_flops() == 2 * 7 * 2 * 24 * 11


class Twice(nn.Module):
    """One layer called twice: its parameters count once, its work twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.relu(self.layer(x)))


def test_a_shared_layer_weighs_once_and_works_twice() -> None:
    assert al.count_costs(Twice(), torch.zeros(1, 5)) == al.Costs(30, 50)


def test_counting_leaves_the_model_alone() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).train()
    al.count_costs(net, torch.randn(5, 4))
    assert net.training
    assert net[1].running_mean.tolist() == [0.0, 0.0, 0.0]
    assert net[0].weight.grad is None


def test_a_model_that_does_not_know_its_inputs_asks_for_them() -> None:
    with pytest.raises(al.InputError, match="Linear does not know its inputs; give example_inputs"):
        al.count_costs(nn.Linear(2, 2))


class LearntStart(nn.Module):
    """Hands a view of its own parameter to a submodule: torch's counter cannot take that."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.randn(1, 1, 4))
        self.memory, self.hidden, self.last = nn.GRU(3, 4), nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.memory(x, self.start.expand(-1, x.shape[1], -1))
        return self.last(torch.relu(self.hidden(x)))


def test_views_of_parameters_may_be_handed_to_submodules() -> None:
    x, net = torch.randn(5, 2, 3), LearntStart()
    of_memory, of_layers = 5 * 2 * 3 * 4 * (3 + 4), 5 * 2 * (4 * 6 + 6 * 2)
    assert al.count_costs(net, x).multiply_adds == of_memory + of_layers
    model = al.add_gates(net, x)
    assert al.count_costs(al.compact(model)) == al.plan(model).after
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_prices_budgets_and_tables_have_the_same_costs() -> None:
    names = [field.name for field in dataclasses.fields(al.Costs)]
    assert list(COSTS) == names
    assert {price.value for price in al.Price} == {"neurons", *names} == set(get_args(PriceName))


def test_a_plan_of_fewer_costs_is_read(lenet: nn.Module) -> None:
    old = json.loads(al.plan(lenet).to_json())
    del old["before"]["multiply_adds"]
    assert al.Plan.from_json(json.dumps(old)).before == al.Costs(431_080, 0)


def test_costs_by_layer_add_up_to_those_of_the_model() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(6))
            self.embed = nn.Embedding(9, 6)
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6)) for _ in range(2)
            )
            self.head = nn.Linear(6, 9, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: Tensor) -> Tensor:
            x = self.embed(x) * self.scale
            x = x @ x.transpose(-1, -2) @ x  # of the model itself
            for block in self.blocks:
                x = x + block(x)
            return self.head(x)

    model, x = Tied(), torch.zeros(2, 5, dtype=torch.long)
    found = count_layer_costs(model, x)
    assert found["blocks.0.0"] == Costs(6 * 8 + 8, 2 * 5 * 6 * 8)
    assert found[""] == Costs(6, 2 * 2 * 5 * 5 * 6)
    assert list(found)[:2] == ["", "blocks.0.0"]  # the table is the head's
    total = al.count_costs(model, x)
    assert sum(costs.parameters for costs in found.values()) == total.parameters
    assert sum(costs.multiply_adds for costs in found.values()) == total.multiply_adds


def test_a_recurrent_unit_costs_its_rows_and_columns_in_all_layers_and_directions() -> None:
    model, gate, _ = make_reader("lstm", bidirectional=True)
    container = find_container(model)
    assert container is not None
    cost = CostFunction(model, container.learnable)
    table = build_cost_table(container.channel_graph, model)
    for n in (6, 5):
        with torch.no_grad():
            gate[n:] = 0.2
        after = al.plan(model).after
        weights, head = 2 * (4 * n * (5 + n) + 4 * n * (2 * n + n)), 2 * n * 10
        assert after.parameters == weights + 2 * 2 * 2 * 4 * n + head + 10
        assert after.multiply_adds == 2 * 4 * weights + 2 * head  # two examples of four steps
        found = cost((gate > 0.5).double()[None], torch.zeros(1, 0).double())[0].tolist()
        assert found == [after.parameters, after.multiply_adds]
        price = marginal_costs(table, torch.tensor([float(n)]), table.multiply_adds)
        assert price.item() == 2 * 4 * 2 * (4 * (5 + 2 * n) + 4 * 3 * 2 * n) + 2 * 2 * 10
