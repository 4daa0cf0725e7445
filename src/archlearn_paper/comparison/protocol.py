"""What all methods share: network, data, order of data, epochs, budgets."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from archlearn.errors import SettingsError
from archlearn.gating.parameters import width_gates
from archlearn.models.model_registry import build_network
from archlearn.training.checkpoint import seed_everything
from archlearn.training.objectives import objective_of
from archlearn.training.settings import RunSettings
from archlearn_paper.baselines.budget import TOLERANCE, ParameterCounts, gate_widths
from archlearn_paper.evaluation import find_dataset, list_losses, refuse_regression
from archlearn_paper.experiment import Scale
from archlearn_paper.recipes import (
    RATE_OF_AN_EXAMPLE,
    VALIDATION,
    learn_to_budget,
    train_plainly,
)

FIRST_PART = 0.4
"""Part of the epochs before a network is brought to its budget; the rest comes after, for small
networks gain from training for long."""
CALIBRATION_SEED = 1000
"""Strengths are chosen on this seed, which is none of those that count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonSetup:
    """What is the same for all methods, at one scale.

    Attributes:
        model: The large network to begin with.
        budgets: Numbers of parameters.
        scale: Seeds, epochs and data.
    """

    model: str
    budgets: tuple[int, ...]
    scale: Scale

    @property
    def first_epochs(self) -> int:
        """Epochs before a network is brought to its budget."""
        return max(1, round(FIRST_PART * self.scale.epochs))

    @property
    def last_epochs(self) -> int:
        """Epochs after that."""
        return max(1, self.scale.epochs - self.first_epochs)

    def calibration(self) -> "ComparisonSetup":
        """Return the setup in which strengths are chosen: one other seed, and validation data."""
        share = self.scale.validation or VALIDATION
        scale = replace(self.scale, seeds=(CALIBRATION_SEED,), validation=share)
        return replace(self, scale=scale)

    def plain(self, seed: int, epochs: int, rate_factor: float = 1.0) -> RunSettings:
        """Return the settings of training without gates of ours."""
        scale, rate = replace(self.scale, epochs=epochs), rate_factor * RATE_OF_AN_EXAMPLE
        return train_plainly(scale, seed, model=self.model, rate=rate)

    def to_budget(self, seed: int, budget: int, cost_power: float) -> RunSettings:
        """Return the settings of a run that learns which parameters stay.

        Gates stand still when the networks of other methods are brought to their budget.
        """
        settings = learn_to_budget(
            self.scale, seed, budget, cost_power, model=self.model, rate=RATE_OF_AN_EXAMPLE
        )
        return replace(settings, gates=replace(settings.gates, freeze_for=1 - FIRST_PART))

    def example(self) -> Tensor:
        """Return two inputs as the network takes them."""
        dataset = find_dataset(self.plain(0, 1))
        return objective_of(dataset).inputs(dataset.train.inputs[:2])

    def fresh_network(self, seed: int) -> nn.Module:
        """Return the large network as a run of that seed begins with it."""
        dataset = find_dataset(self.plain(0, 1))
        with torch.random.fork_rng([]):
            seed_everything(seed, 0)
            return build_network(self.model, dataset.input_shape, dataset.n_outputs)

    def losses(self, model: nn.Module) -> Iterator[Tensor]:
        """Yield the losses of a model on some batches of train data."""
        return list_losses(self.plain(0, 1), model)


def check_setup(setup: ComparisonSetup) -> None:
    """Refuse data without classes and budgets out of reach, before anything is trained.

    Raises:
        SettingsError: If a budget is below the network with a channel a layer, or not below the
            whole network.
        DataError: If the data have no classes.
    """
    refuse_regression(find_dataset(setup.plain(0, 1)))
    network, example = setup.fresh_network(0), setup.example()
    gated = gate_widths(network, example)
    least = ParameterCounts(gated).parameters([1] * len(width_gates(gated)))
    most = sum(parameter.numel() for parameter in network.parameters())
    for budget in setup.budgets:
        if least > (1 + TOLERANCE) * budget or budget >= most:
            raise SettingsError(
                f"--budget {budget:,}: {setup.model} has {most:,} parameters, and {least:,} with "
                "one channel in each layer; choose budgets in between"
            )
