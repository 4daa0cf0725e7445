"""Given numbers of neurons are kept exactly; which ones, the gates decide."""

import pytest
import torch
from torch import nn

import archlearn as al
from archlearn_cli.models import LeNet
from archlearn_cli.training import GateSettings, RunSettings, override
from archlearn_paper.experiment import Run
from archlearn_paper.parallel_runs import train_side_by_side
from archlearn_paper.recipes import Given, Holder, count_kept, fix_width, project, reinitialise


def test_the_largest_gates_stay_and_move_no_further_than_they_must() -> None:
    gate = torch.tensor([0.9, 0.2, 0.45, 0.6, 0.1])
    torch.testing.assert_close(project(gate, 2), torch.tensor([0.9, 0.2, 0.45, 0.6, 0.1]))
    torch.testing.assert_close(project(gate, 3), torch.tensor([0.9, 0.2, 0.5, 0.6, 0.1]))
    torch.testing.assert_close(project(gate, 1), torch.tensor([0.9, 0.2, 0.45, 0.499, 0.1]))


@pytest.mark.parametrize("n_kept", [1, 3, 7])
def test_exactly_so_many_are_open_even_if_all_are_equal(n_kept: int) -> None:
    for value in (0.0, 0.55, 1.0):
        assert int((project(torch.full((7,), value), n_kept) >= 0.5).sum()) == n_kept


def test_the_number_falls_evenly_to_the_final_one() -> None:
    assert [count_kept(100, 20, done) for done in (0.0, 0.5, 1.0)] == [100, 60, 20]


def test_the_number_is_reached_half_way_through_the_time_in_which_gates_move() -> None:
    settings = RunSettings(epochs=100, gates=GateSettings(start_after=0.1, freeze_for=0.3))
    holder = fix_width(Given(widths={"fc1": 5}), settings)
    assert (holder.first, holder.last) == (10, 40)


def test_gates_of_a_model_are_held() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
    model = al.add_gates(net, torch.zeros(2, 4))
    first, second = al.width_gates(model)
    holder = Holder(target=Given(widths={first: 4}, linear=("2",)), first=0, last=2)
    with torch.no_grad():
        holder(model, 1)
        assert int((al.width_gates(model)[first] >= 0.5).sum()) == 6
        holder(model, 2)
    assert int((al.width_gates(model)[first] >= 0.5).sum()) == 4
    assert int((al.width_gates(model)[second] >= 0.5).sum()) == 6
    assert {name: gate.item() >= 0.5 for name, gate in al.depth_gates(model).items()}["2"]


def test_a_run_ends_with_the_given_widths() -> None:
    settings = override(
        RunSettings(),
        {
            "data": "digits",
            "model": "mlp:20-10",
            "learn": "width",
            "epochs": 6,
            "limit": 300,
            "accelerator": "cpu",
            "width_cost": 1e-3,
        },
    )
    given = Given(widths=dict(zip(_layers(settings), (7, 4), strict=True)))
    (outcome,) = train_side_by_side(
        [Run(row="a", settings=settings, after_epoch=fix_width(given, settings))]
    )
    assert outcome.row.architecture == "7-4-10"


def _layers(settings: RunSettings) -> list[str]:
    (plain,) = train_side_by_side([Run(row="a", settings=override(settings, {"epochs": 1}))])
    return list(plain.row.widths)[:-1]


DIGITS = torch.zeros(1, 1, 28, 28)


@pytest.fixture
def compact() -> nn.Module:
    torch.manual_seed(0)
    gated = al.add_gates(LeNet(), DIGITS)
    with torch.no_grad():
        for gate in al.width_gates(gated).values():
            gate[3:] = 0.0
    return al.compact(gated)


def test_architecture_stays_and_weights_are_new(compact: nn.Module) -> None:
    fresh = reinitialise(compact, seed=1)
    shapes = {name: tensor.shape for name, tensor in compact.state_dict().items()}
    assert {name: tensor.shape for name, tensor in fresh.state_dict().items()} == shapes
    for name, parameter in fresh.named_parameters():
        assert not torch.equal(parameter, compact.get_parameter(name)), name
    assert fresh(DIGITS).shape == (1, 10)


def test_the_seed_decides_and_nothing_else(compact: nn.Module) -> None:
    first = reinitialise(compact, seed=1)
    torch.randn(7)
    again, other = reinitialise(compact, seed=1), reinitialise(compact, seed=2)
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name))
    assert not torch.equal(first.get_parameter("fc1.weight"), other.get_parameter("fc1.weight"))


def test_callers_random_numbers_go_on_as_they_would() -> None:
    net = nn.Linear(2, 2)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    reinitialise(net, seed=1)
    assert torch.equal(torch.rand(3), expected)


def test_running_statistics_start_anew() -> None:
    net = nn.Sequential(nn.BatchNorm1d(2))
    net(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    fresh = reinitialise(net, seed=0)
    assert torch.equal(fresh.get_buffer("0.running_mean"), torch.zeros(2))
    assert not torch.equal(net.get_buffer("0.running_mean"), torch.zeros(2))


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


def test_a_layer_that_cannot_start_anew_is_named() -> None:
    with pytest.raises(al.InputError, match="'1', a Scale, has parameters but no"):
        reinitialise(nn.Sequential(nn.Linear(1, 1), Scale()), seed=0)
