"""Loss and score: cross-entropy of classes or next tokens, squared error."""

from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlearn.optim.distillation import at_least_single
from archlearn_cli.data.dataset import Dataset, Task
from archlearn_cli.data.transforms import ImageTransform


@dataclass(frozen=True, slots=True)
class Objective:
    """Turns raw examples into inputs, and outputs into a loss.

    Attributes:
        task: Classes or next tokens (cross-entropy), or numbers (squared error of standardised
            targets). Outputs for tokens are batch x length x tokens.
        framing: How images are scaled and, while learning, varied.
    """

    task: Task
    mean: Tensor
    std: Tensor
    target_mean: Tensor
    target_std: Tensor
    framing: ImageTransform

    def inputs(self, raw: Tensor) -> Tensor:
        """Return normalised inputs as they are measured on; bytes count as 0 to 1.

        Tokens are handed on as they are.
        """
        return _laid_out(self.framing.for_evaluation(self._normalised(raw)))

    def training_inputs(self, raw: Tensor) -> Tensor:
        """Return normalised inputs as they are learnt from, varied at random where asked for."""
        return _laid_out(self.framing.for_training(self._normalised(raw)))

    def _normalised(self, raw: Tensor) -> Tensor:
        if self.task == "next_token":
            return raw
        values = raw.to(self.mean.dtype)
        if raw.dtype == torch.uint8:
            values = values / 255.0
        return (values - self.mean) / self.std

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss over the examples, or over all tokens, in nats."""
        if self.task != "regression":
            scores = at_least_single(outputs)
            return F.cross_entropy(scores.reshape(-1, scores.shape[-1]), targets.reshape(-1))
        standard = (targets - self.target_mean) / self.target_std
        predictions = at_least_single(outputs)
        return F.mse_loss(predictions.reshape(standard.shape), standard.to(predictions.dtype))

    def score_sum(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the number of right classes, or the sum of squared errors in own units.

        Of a text, which counts as one example, the share of right tokens is summed.
        """
        if self.task != "regression":
            right = (outputs.argmax(-1) == targets).double()
            return right.reshape(len(targets), -1).mean(1).sum()
        predicted = outputs.float().reshape(targets.shape) * self.target_std + self.target_mean
        return (predicted - targets).square().mean(tuple(range(1, targets.ndim))).sum().double()

    def to(self, device: torch.device) -> "Objective":
        """Return the same objective with its numbers on a device."""
        names = ("mean", "std", "target_mean", "target_std")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def _laid_out(values: Tensor) -> Tensor:
    return values.contiguous(memory_format=torch.channels_last) if values.ndim == 4 else values


def objective_of(dataset: Dataset) -> Objective:
    """Return the objective that fits a data set."""
    return Objective(**{field.name: getattr(dataset, field.name) for field in fields(Objective)})


def in_format_of(network: nn.Module, example: Tensor) -> Tensor:
    """Return inputs in the number format of a network's weights; tokens stay whole numbers."""
    floating = (p.dtype for p in network.parameters() if p.is_floating_point())
    return example.to(next(floating, example.dtype)) if example.is_floating_point() else example
