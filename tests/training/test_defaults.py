"""Settings left open follow from steps, widths and loss."""

import math

import pytest
import torch

from archlearn_cli.data import Dataset, Examples, Split, build_dataset
from archlearn_cli.training import RunSettings, override
from archlearn_cli.training.defaults import (
    COST_OF_ALL_NEURONS,
    TRAVEL,
    count_steps,
    derive_sizes,
    derive_strengths,
    make_schedule,
)


def make_dataset(n: int) -> Dataset:
    split = Split(torch.zeros(n, 1), torch.arange(n) % 10)
    examples = Examples(name="x", source="x", train=split, test=split, validation=split)
    return build_dataset(examples, validation_share=0.1)


@pytest.mark.parametrize("n", [300, 1_300, 55_000])
@pytest.mark.parametrize("n_neurons", [57, 570])
def test_travel_of_gates_and_cost_of_all_neurons_are_the_same_everywhere(
    n: int, n_neurons: int
) -> None:
    dataset = make_dataset(n)
    settings = derive_strengths(derive_sizes(RunSettings(), n, 1), dataset, n_neurons)
    cost, rate = settings.strengths.width_cost, settings.gates.gate_rate
    assert cost is not None
    assert rate is not None
    assert cost * n_neurons == pytest.approx(COST_OF_ALL_NEURONS * math.log(10))
    schedule = make_schedule(settings, n)
    moved = sum(schedule.gate_rate_at(step) for step in range(schedule.n_steps)) * cost
    assert moved == pytest.approx(TRAVEL, rel=0.01)


@pytest.mark.parametrize(("epochs", "travel"), [(3, 0.054), (10, 0.18), (83, 1.494), (84, 1.5)])
def test_in_a_short_run_gates_move_no_faster_than_in_one_of_834_steps(
    epochs: int, travel: float
) -> None:
    settings = derive_sizes(RunSettings(epochs=epochs), 1300, 1)
    assert count_steps(settings, 1300) == 10 * epochs
    settings = derive_strengths(settings, make_dataset(1300), 570)
    cost, rate = settings.strengths.width_cost, settings.gates.gate_rate
    assert cost is not None
    assert rate is not None
    assert rate * cost * 10 * epochs * 0.6 == pytest.approx(travel)
    assert rate * cost < 0.00301


@pytest.mark.parametrize("given", [{"width_cost": 1e-3}, {"travel": 1.5}])
def test_who_sets_a_price_or_a_travel_gets_it_in_a_short_run_too(given: dict[str, float]) -> None:
    asked = override(RunSettings(epochs=3), given)
    settings = derive_strengths(derive_sizes(asked, 1300, 1), make_dataset(1300), 570)
    cost, rate = settings.strengths.width_cost, settings.gates.gate_rate
    assert cost is not None
    assert rate is not None
    assert rate * cost * 30 * 0.6 == pytest.approx(TRAVEL)


def test_what_is_asked_for_is_not_changed() -> None:
    asked = override(RunSettings(), {"epochs": 3, "batch_size": 50, "width_cost": 1e-3})
    settings = derive_strengths(derive_sizes(asked, 1000, 1), make_dataset(1000), 10)
    assert settings.epochs == 3
    assert settings.batch_size == 50
    assert settings.strengths.width_cost == 1e-3
    assert count_steps(settings, 1000) == 60


@pytest.mark.parametrize(
    ("batch", "rate"), [(10, 0.02), (125, 0.02), (250, 0.04), (500, 0.08), (1000, 0.08)]
)
def test_rate_follows_the_batch_up_to_a_large_one(batch: int, rate: float) -> None:
    settings = derive_sizes(RunSettings(batch_size=batch), 55_000, 1)
    assert settings.optimizer.learning_rate == pytest.approx(rate)


def test_batch_is_the_same_for_any_number_of_processes() -> None:
    assert [derive_sizes(RunSettings(), 55_000, n).batch_size for n in (1, 4, 300)] == [
        125,
        125,
        300,
    ]


def test_rates_warm_up_fall_to_zero_and_gates_stand_still_at_both_ends() -> None:
    asked = override(
        RunSettings(),
        {"epochs": 10, "batch_size": 10, "learning_rate": 1.0, "warmup_epochs": 1.0,
         "gate_rate": 2.0, "start_after": 0.1, "freeze_for": 0.3, "width_cost": 1.0},
    )  # fmt: skip
    schedule = make_schedule(asked, 100)
    rates = [schedule.weight_rate(step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (place + 1) for place in range(10)])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] < 1e-3
    moving = [step for step in range(100) if schedule.gate_rate_at(step) > 0]
    assert moving == list(range(10, 70))
    assert schedule.gate_rate_at(40) == 2.0
