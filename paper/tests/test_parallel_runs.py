"""A team's runs are ordinary runs: what they come to does not depend on the company."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from archlearn import SettingsError, width_gates
from archlearn_cli.data import build_dataset, load_examples, no_progress
from archlearn_cli.training import (
    RunSettings,
    evaluate,
    learn,
    load_dataset,
    objective_of,
    override,
)
from archlearn_paper import evaluation
from archlearn_paper.experiment import Run
from archlearn_paper.parallel_runs import train_side_by_side

GIVEN = {"data": "digits", "model": "mlp:20-10", "epochs": 2, "limit": 400, "accelerator": "cpu"}


def settings(**given: object) -> RunSettings:
    return override(RunSettings(), GIVEN | given)


def test_a_run_in_a_team_comes_to_what_it_comes_to_alone(tmp_path) -> None:
    runs = [Run(row="a", settings=settings(seed=seed)) for seed in (3, 4)]
    together = list(train_side_by_side(runs))
    alone = list(train_side_by_side(runs[1:]))
    assert [outcome.row.seed for outcome in together] == [3, 4]
    assert together[1].row.test_loss == alone[0].row.test_loss
    assert together[0].row.test_loss != together[1].row.test_loss
    summary = learn(settings(seed=4, report=False), tmp_path / "run")
    assert alone[0].row.parameters == summary["after"]["parameters"]
    assert alone[0].row.architecture == summary["after"]["architecture"]
    assert alone[0].row.test_accuracy == summary["test_accuracy"]


def test_history_has_the_widths_of_every_epoch_from_the_beginning_on() -> None:
    (outcome,) = train_side_by_side([Run(row="a", settings=settings(epochs=3))])
    assert [entry["epoch"] for entry in outcome.row.history] == [0, 1, 2, 3]
    assert [entry["step"] for entry in outcome.row.history] == [0, 10, 20, 30]
    assert sum(outcome.row.history[0]["widths"].values()) == 30
    assert sum(outcome.row.history[-1]["widths"].values()) <= 30


def test_a_run_can_start_from_a_network_and_leaves_it_alone() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.ReLU(), nn.Linear(7, 10))
    before = network[1].weight.clone()
    run = Run(row="a", settings=settings(learn="nothing", epochs=1), network=network)
    (outcome,) = train_side_by_side([run])
    assert torch.equal(network[1].weight, before)
    assert outcome.row.architecture == "7-10"
    assert outcome.row.parameters == 64 * 7 + 7 + 7 * 10 + 10
    assert not torch.equal(outcome.model[1].weight, before)


def test_what_is_done_after_an_epoch_is_part_of_the_run() -> None:
    def close_one(model: nn.Module, epochs_done: int) -> None:
        next(iter(width_gates(model).values()))[0] = 0.0

    run = Run(
        row="a",
        settings=settings(epochs=1, start_after=1.0, gate_optimizer="penalty"),
        after_epoch=close_one,
    )
    (outcome,) = train_side_by_side([run])
    assert [sum(entry["widths"].values()) for entry in outcome.row.history] == [30, 29]


def test_without_a_validation_part_all_train_examples_are_learnt_from() -> None:
    (outcome,) = train_side_by_side([Run(row="a", settings=settings(validation=0.0, limit=None))])
    assert outcome.row.validation_accuracy is None
    assert outcome.row.validation_loss is None
    assert math.isfinite(outcome.row.train_loss)


def test_the_train_loss_of_very_many_large_inputs_is_that_of_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run(row="a", settings=settings(learn="nothing", epochs=1))
    (whole,) = train_side_by_side([run])
    monkeypatch.setattr(evaluation, "_MOST_NUMBERS", 400 * 64 - 1)
    (some,) = train_side_by_side([run])
    dataset = load_dataset(run.settings, no_progress)
    half = evaluate(some.model, dataset.train[::2], objective_of(dataset))
    assert some.row.train_loss == pytest.approx(half.loss)
    assert some.row.train_loss != whole.row.train_loss
    assert some.row.test_loss == whole.row.test_loss


@pytest.mark.parametrize(("limit", "n_test"), [(60, 90), (200, 180), (1000, 360), (None, 360)])
def test_few_train_examples_are_scored_on_few(
    monkeypatch: pytest.MonkeyPatch, limit: int | None, n_test: int
) -> None:
    monkeypatch.setattr(evaluation, "_FEWEST_SCORED", 100)
    asked = settings(limit=limit, validation=0.0)
    evaluation._load.cache_clear()
    found, whole = evaluation.find_dataset(asked), load_dataset(asked, no_progress)
    evaluation._load.cache_clear()
    assert torch.equal(found.test.targets, whole.test.targets[:: 360 // n_test])
    assert torch.equal(found.train.targets, whole.train.targets)
    assert len(found.validation) == 0


def test_team_normalises_as_asked() -> None:
    with pytest.raises(SettingsError, match="images of three colours"):
        list(train_side_by_side([Run(row="a", settings=settings(normalise="imagenet"))]))


def test_only_the_first_classes_are_kept() -> None:
    dataset = build_dataset(load_examples("digits"), validation_share=0.1, classes=3)
    assert dataset.n_outputs == 3
    for split in (dataset.train, dataset.validation, dataset.test):
        assert sorted(split.targets.unique().tolist()) == [0, 1, 2]
    (outcome,) = train_side_by_side([Run(row="a", settings=settings(classes=3))])
    assert list(outcome.row.widths.values())[-1] == 3


@pytest.mark.parametrize("classes", [1, 11])
def test_classes_that_are_not_there_are_refused(classes: int) -> None:
    with pytest.raises(SettingsError, match="choose 2 to 10 classes"):
        build_dataset(load_examples("digits"), validation_share=0.1, classes=classes)


def test_a_run_that_ends_compact_comes_to_what_it_would_have_come_to() -> None:
    given = {"learn": "width", "momentum": 0.0, "precision": "64-true", "epochs": 6}
    given |= {"start_after": 0.0, "width_cost": 0.02, "freeze_for": 0.5, "gate_rate": 0.1}
    run = Run(row="a", settings=settings(**given))
    (whole,) = train_side_by_side([run])
    (small,) = train_side_by_side([dataclasses.replace(run, finish_compact=True)])
    assert small.row.architecture == whole.row.architecture != "20-10-10"
    assert small.row.history == whole.row.history
    assert min(small.row.widths.values()) > 2
    assert small.row.parameters == whole.row.parameters
    assert small.row.test_loss == pytest.approx(whole.row.test_loss, rel=1e-9)


def test_every_epoch_is_told_and_a_run_handed_over_at_its_end() -> None:
    places: list[tuple[int, int]] = []
    outcomes = train_side_by_side(
        [Run(row=row, settings=settings(limit=200)) for row in "ab"],
        on_epoch=lambda done, of: places.append((done, of)),
    )
    assert next(outcomes).row.row == "a"
    assert places == [(1, 4), (2, 4)]
    assert [outcome.row.row for outcome in outcomes] == ["b"]
    assert places == [(1, 4), (2, 4), (3, 4), (4, 4)]
