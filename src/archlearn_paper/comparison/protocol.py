"""What all methods share: network, data, order of data, epochs, budgets."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from archlearn.errors import DataError, SettingsError
from archlearn.gating.attach import add_gates
from archlearn.gating.learn import Learn
from archlearn.gating.parameters import width_gates
from archlearn.models.model_registry import build_network
from archlearn.training.checkpoint import seed_everything
from archlearn.training.defaults import TRAVEL
from archlearn.training.objectives import objective_of
from archlearn.training.settings import RunSettings
from archlearn_paper.baselines.budget import TOLERANCE, ParameterCounts
from archlearn_paper.evaluation import find_dataset
from archlearn_paper.experiment import Scale
from archlearn_paper.recipes import Terms, learn_architecture, train_plainly

FIRST_PART = 0.4
"""Part of the epochs before a network is brought to its budget; the rest comes after, for small
networks gain from training for long."""
FREEZE_FOR = 0.05
"""Last part of the first epochs in which gates stand still: there is more training to come."""
START_AFTER = 0.25
"""Part of the first epochs before gates move. Drawn ones that move earlier close all at once:
their network has learnt nothing yet that would hold them open."""
MOST_GATE_RATE = 1.0
"""Above this the noise of the loss, and not its mean, would move the gates."""
VALIDATION = 1 / 12
CALIBRATION_SEED = 1000
"""Strengths are chosen on this seed, which is none of those that count."""
N_TRIM_BATCHES, TRIM_BATCH_SIZE = 30, 100
"""What a channel is worth is measured on many small batches: the square of a batch's gradient says
more of it the smaller the batch is."""


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

    def plain(self, seed: int, epochs: int) -> RunSettings:
        """Return the settings of training without gates of ours."""
        return train_plainly(replace(self.scale, epochs=epochs), seed, model=self.model)

    def gated(self, seed: int, terms: Terms) -> RunSettings:
        """Return the settings of the first part of a run that learns its widths.

        Where the terms have no rate for the gates, it follows from the cost, within bounds.
        """
        scale = replace(self.scale, epochs=self.first_epochs)
        rate = terms.gate_rate or min(MOST_GATE_RATE, self._find_gate_rate(terms.cost))
        terms = replace(terms, start_after=START_AFTER, freeze_for=FREEZE_FOR, gate_rate=rate)
        return learn_architecture(scale, seed, terms, model=self.model)

    def _find_gate_rate(self, cost: float) -> float:
        """Return the rate that the engine would derive from a cost."""
        n_steps = self.first_epochs * (
            len(find_dataset(self.plain(0, 1)).train) // self.scale.batch_size
        )
        return TRAVEL / (cost * max(1, n_steps) * (1 - START_AFTER - FREEZE_FOR))

    def given_gates(self, seed: int, terms: Terms) -> RunSettings:
        """Return the same for a network that comes with gates of its own."""
        settings = self.gated(seed, terms)
        kept = settings.gates
        return replace(settings, gates=replace(kept, learn="nothing"))

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
        dataset = find_dataset(self.plain(0, 1))
        objective = objective_of(dataset)
        train = dataset.train
        size = TRIM_BATCH_SIZE
        n_batches = min(N_TRIM_BATCHES, max(1, len(train.inputs) // size))
        for place in range(n_batches):
            part = slice(place * size, (place + 1) * size)
            yield objective.loss(model(objective.inputs(train.inputs[part])), train.targets[part])


def check_setup(setup: ComparisonSetup) -> None:
    """Refuse data without classes and budgets out of reach, before anything is trained.

    Raises:
        SettingsError: If a budget is below the network with a channel a layer, or not below the
            whole network.
        DataError: If the data have no classes.
    """
    if find_dataset(setup.plain(0, 1)).task == "regression":
        raise DataError(
            f"{setup.scale.data!r} is a regression, but results state an accuracy; choose data "
            "with classes (archlearn data lists them)"
        )
    network, example = setup.fresh_network(0), setup.example()
    gated = add_gates(network, example, learn={"*": Learn.WIDTH}, width_start=1.0)
    least = ParameterCounts(gated).parameters([1] * len(width_gates(gated)))
    most = sum(parameter.numel() for parameter in network.parameters())
    for budget in setup.budgets:
        if least > (1 + TOLERANCE) * budget or budget >= most:
            raise SettingsError(
                f"--budget {budget:,}: {setup.model} has {most:,} parameters, and {least:,} with "
                "one channel in each layer; choose budgets in between"
            )
