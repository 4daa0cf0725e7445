"""A data set is three splits of tensors and the numbers that normalise them."""

import hashlib
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from archlearn.data.transforms import Framing

Task = Literal["classification", "regression", "next_token"]
"""A class for each example, numbers for each example, or a class for each token of a text."""
_AS_THEY_ARE = Framing()
_MOST_TO_MEASURE = 100_000
SPLIT_SEED = 20170
"""The validation split does not follow the run's seed: runs of several seeds stay comparable."""


@dataclass(frozen=True, slots=True)
class Split:
    """Examples, in memory or mapped from a file; images are bytes and become floats by batch.

    Attributes:
        mixed: Whether the examples lie in a random order already. Parts of such a split are
            slices of it, so that one larger than memory is never copied.
    """

    inputs: Tensor
    targets: Tensor
    mixed: bool = False

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.targets)

    @property
    def n_bytes(self) -> int:
        """Return the size of the inputs."""
        return self.inputs.numel() * self.inputs.element_size()

    def take(self, indices: Tensor) -> "Split":
        """Return the examples at the given places."""
        return Split(self.inputs[indices], self.targets[indices])

    def to(self, device: torch.device) -> "Split":
        """Return the same examples on a device."""
        return Split(self.inputs.to(device), self.targets.to(device), self.mixed)

    def every(self, step: int, first: int) -> "Split":
        """Return each so-manieth example, from the first one on; nothing is copied."""
        return Split(self.inputs[first::step], self.targets[first::step], self.mixed)

    def cut(self, place: int) -> tuple["Split", "Split"]:
        """Return the examples before a place and those from it on; nothing is copied."""
        return (
            Split(self.inputs[:place], self.targets[:place], self.mixed),
            Split(self.inputs[place:], self.targets[place:], self.mixed),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """Train, validation and test examples of one task.

    Attributes:
        source: Where the examples came from, in words.
        mean: Mean of the train inputs, shaped so that it can be taken from a batch.
        std: Standard deviation of the train inputs, shaped likewise.
        n_outputs: Number of classes, of numbers to predict, or of different tokens.
        target_mean: Mean of the train targets of a regression; 0 for classes.
        target_std: Standard deviation of the train targets; 1 for classes.
        framing: How images are scaled and varied on their way to the network.
    """

    name: str
    source: str
    task: Task
    train: Split
    validation: Split
    test: Split
    mean: Tensor
    std: Tensor
    n_outputs: int
    target_mean: Tensor
    target_std: Tensor
    framing: Framing = _AS_THEY_ARE

    def to(self, device: torch.device) -> "Dataset":
        """Return the same data set with its examples on a device."""
        parts = {part: getattr(self, part).to(device) for part in ("train", "validation", "test")}
        return replace(self, **parts)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Return the shape of one example as the network sees it."""
        return self.framing.shape(tuple(self.train.inputs.shape[1:]))


def fingerprint(dataset: Dataset) -> str:
    """Return a text that differs, almost surely, where the train data differ."""
    digest = hashlib.sha256()
    for tensor in (dataset.train.inputs[:1000], dataset.train.targets):
        digest.update(tensor.contiguous().numpy().tobytes())
    shape = "x".join(str(size) for size in dataset.train.inputs.shape)
    return f"{shape} {digest.hexdigest()[:16]}"


def carve_validation(examples: Split, share: float) -> tuple[Split, Split]:
    """Return a train and a validation part, always the same ones for the same share.

    A share of 0 leaves the validation part empty; any other has one example at least.
    """
    n_validation = max(1, round(len(examples) * share)) if share else 0
    if examples.mixed:
        validation, train = examples.cut(n_validation)
        return train, validation
    generator = torch.Generator().manual_seed(SPLIT_SEED)
    order = torch.randperm(len(examples), generator=generator)
    return examples.take(order[n_validation:]), examples.take(order[:n_validation])


def carve_test(examples: Split, share: float) -> tuple[Split, Split]:
    """Return a part to learn from and a test part, for data that come in one piece."""
    n_test = max(1, round(len(examples) * share))
    if examples.mixed:
        test, rest = examples.cut(n_test)
        return rest, test
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(SPLIT_SEED + 1))
    return examples.take(order[n_test:]), examples.take(order[:n_test])


def measure_channels(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation by channel of images, by feature of vectors.

    Bytes count as 0 to 1. A feature that never varies has its deviation set to 1. Of very many
    examples, some evenly spaced ones are measured.
    """
    inputs = inputs[:: 1 + (len(inputs) - 1) // _MOST_TO_MEASURE]
    keep = 1
    dims = [d for d in range(inputs.ndim) if d != keep]
    mean, square = _moments(inputs, dims)
    std = (square - mean**2).clamp_min(0).sqrt()
    std = torch.where(std < 1e-8, torch.ones_like(std), std)
    shape = [-1] + [1] * (inputs.ndim - 2)
    return mean.float().reshape(shape), std.float().reshape(shape)


def _moments(inputs: Tensor, dims: list[int]) -> tuple[Tensor, Tensor]:
    """Return the means of the values and of their squares, in float64, piece by piece."""
    scale = 255.0 if inputs.dtype == torch.uint8 else 1.0
    total = torch.zeros(inputs.shape[1], dtype=torch.float64)
    total_square = torch.zeros_like(total)
    for piece in inputs.split(4096):
        values = piece.double() / scale
        total += values.sum(dims)
        total_square += values.square().sum(dims)
    count = inputs.numel() / inputs.shape[1]
    return total / count, total_square / count
