"""What is minimised and what is measured, for classes and for numbers."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from archlearn.training.data.datasets import Dataset, Task


@dataclass(frozen=True, slots=True)
class Objective:
    """Turns raw examples into inputs, and outputs into a loss.

    Attributes:
        task: Classes (cross-entropy) or numbers (squared error of standardised targets).
    """

    task: Task
    mean: Tensor
    std: Tensor
    target_mean: Tensor
    target_std: Tensor

    def inputs(self, raw: Tensor) -> Tensor:
        """Return normalised inputs; bytes count as 0 to 1."""
        values = raw.to(self.mean.dtype)
        if raw.dtype == torch.uint8:
            values = values / 255.0
        values = (values - self.mean) / self.std
        if values.ndim == 4:
            values = values.contiguous(memory_format=torch.channels_last)
        return values

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss over the examples."""
        if self.task == "classification":
            return F.cross_entropy(outputs.float(), targets)
        standard = (targets - self.target_mean) / self.target_std
        return F.mse_loss(outputs.float().reshape(standard.shape), standard.float())

    def score_sum(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the number of right classes, or the sum of squared errors in own units."""
        if self.task == "classification":
            return (outputs.argmax(1) == targets).sum().double()
        predicted = outputs.float().reshape(targets.shape) * self.target_std + self.target_mean
        return (predicted - targets).square().mean(tuple(range(1, targets.ndim))).sum().double()

    def to(self, device: torch.device) -> "Objective":
        """Return the same objective with its numbers on a device."""
        return Objective(
            self.task,
            self.mean.to(device),
            self.std.to(device),
            self.target_mean.to(device),
            self.target_std.to(device),
        )


def objective_of(dataset: Dataset) -> Objective:
    """Return the objective that fits a data set."""
    return Objective(
        dataset.task, dataset.mean, dataset.std, dataset.target_mean, dataset.target_std
    )
