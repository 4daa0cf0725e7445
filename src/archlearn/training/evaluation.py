"""A network is scored on a split: mean loss, and accuracy or squared error."""

import math
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archlearn.data.dataset import Split
from archlearn.training.objectives import Objective

_BATCH = {"cpu": 1000, "cuda": 5000}
_MOST_NUMBERS = {"cpu": 1 << 24, "cuda": 1 << 28}
"""Of a batch of inputs; what a network makes of them is some ten times more."""
_NUMBERS_OF_A_TOKEN = 256
"""A token becomes a vector of about this size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """How well a network does.

    Attributes:
        accuracy: Share of right classes; None for a regression.
        error: Mean squared error in the targets' own units; None for classes.
    """

    loss: float
    accuracy: float | None
    error: float | None
    n_examples: int


@contextmanager
def _without_trials() -> Generator[None]:
    """Take convolutions as they come: trying several is for shapes that are met very often."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@torch.no_grad()
@_without_trials()
def sum_scores(network: nn.Module, split: Split, objective: Objective) -> Tensor:
    """Return loss sum, score sum and number of examples, in evaluation mode.

    The mode of every submodule is afterwards what it was.
    """
    device = objective.mean.device
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    floating = (p.dtype for p in network.parameters() if p.is_floating_point())
    number_format = next(floating, objective.mean.dtype)
    n_at_once = _count_at_once(split, objective)
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        for raw, targets in zip(
            split.inputs.split(n_at_once), split.targets.split(n_at_once), strict=True
        ):
            raw, targets = raw.to(device), targets.to(device)
            outputs = network(as_format(objective.inputs(raw), number_format))
            loss = objective.loss(outputs, targets).double() * len(targets)
            score = objective.score_sum(outputs, targets)
            sums += torch.stack([loss, score, torch.full_like(loss, len(targets))])
    finally:
        for module, training in modes.items():
            module.training = training
    return sums


def as_format(inputs: Tensor, number_format: torch.dtype) -> Tensor:
    """Return inputs in a network's number format; tokens stay whole numbers."""
    return inputs.to(number_format) if inputs.is_floating_point() else inputs


def _count_at_once(split: Split, objective: Objective) -> int:
    """Return how many examples are scored at once: fewer where they are large."""
    device = objective.mean.device.type
    shape = objective.framing.shape(tuple(split.inputs.shape[1:]))
    most_numbers = _MOST_NUMBERS.get(device, _MOST_NUMBERS["cpu"])
    numbers = math.prod(shape) * (_NUMBERS_OF_A_TOKEN if objective.task == "next_token" else 1)
    fitting = most_numbers // max(1, numbers)
    return max(1, min(_BATCH.get(device, _BATCH["cpu"]), fitting))


def score_of(sums: Tensor, task: str) -> Score:
    """Return the score that sums over all examples amount to."""
    loss, score, count = sums.tolist()
    classification = task != "regression"
    return Score(
        loss=loss / count,
        accuracy=score / count if classification else None,
        error=None if classification else score / count,
        n_examples=int(count),
    )


def evaluate(network: nn.Module, split: Split, objective: Objective) -> Score:
    """Return the score of a network on a split, on the objective's device."""
    return score_of(sum_scores(network, split, objective), objective.task)
