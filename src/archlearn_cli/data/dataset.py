"""Data sets in memory: splits, checks, normalisation."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from archlearn.errors import DataError, SettingsError
from archlearn_cli.data.transforms import ImageTransform

Task = Literal["classification", "regression", "next_token"]
"""A class for each example, numbers for each example, or a class for each token of a text."""
_AS_THEY_ARE = ImageTransform()
_MOST_TO_MEASURE = 100_000
_NOTHING = torch.zeros(()), torch.ones(())
"""Mean and deviation of what is not normalised."""
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

    def __getitem__(self, places: slice | Tensor) -> "Split":
        """Return some of the examples; those of a slice are not copied, and as mixed as these."""
        is_slice = isinstance(places, slice)
        return Split(self.inputs[places], self.targets[places], self.mixed and is_slice)

    def to(self, device: torch.device) -> "Split":
        """Return the same examples on a device."""
        return Split(self.inputs.to(device), self.targets.to(device), self.mixed)


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
    framing: ImageTransform = _AS_THEY_ARE

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
    return _carve(examples, max(1, round(len(examples) * share)) if share else 0, SPLIT_SEED)


def carve_test(examples: Split, share: float) -> tuple[Split, Split]:
    """Return a part to learn from and a test part, for data that come in one piece."""
    return _carve(examples, max(1, round(len(examples) * share)), SPLIT_SEED + 1)


def _carve(examples: Split, n_apart: int, seed: int) -> tuple[Split, Split]:
    """Return what is left and the examples set apart: drawn, or the first of a mixed split."""
    if examples.mixed:
        return examples[n_apart:], examples[:n_apart]
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed))
    return examples[order[n_apart:]], examples[order[:n_apart]]


def measure_channels(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation by channel of images, by feature of vectors.

    Bytes count as 0 to 1. A feature that never varies has its deviation set to 1. Of very many
    examples, some evenly spaced ones are measured.
    """
    inputs = inputs[:: 1 + (len(inputs) - 1) // _MOST_TO_MEASURE]
    dims = [d for d in range(inputs.ndim) if d != 1]
    scale = 255.0 if inputs.dtype == torch.uint8 else 1.0
    total = torch.zeros(2, inputs.shape[1], dtype=torch.float64)
    for piece in inputs.split(4096):
        values = piece.double() / scale
        total += torch.stack([values.sum(dims), values.square().sum(dims)])
    mean, square = total / (inputs.numel() / inputs.shape[1])
    std = (square - mean**2).clamp_min(0).sqrt()
    std = torch.where(std < 1e-8, torch.ones_like(std), std)
    shape = [-1] + [1] * (inputs.ndim - 2)
    return mean.float().reshape(shape), std.float().reshape(shape)


MOST_CLASSES = 1_000_000
"""A network has an output for each, so one stray number would fill the memory."""


def check_split(split: Split, part: str, name: str) -> None:
    """Refuse examples that are none, of no shape, or hold what is no number."""
    if len(split.inputs) != len(split.targets) or len(split) == 0:
        raise DataError(
            f"the {part} part of {name!r} has {len(split.inputs)} inputs and "
            f"{len(split.targets)} targets; both must be the same and not 0"
        )
    if split.inputs.ndim < 2:
        raise DataError(
            f"the {part} inputs of {name!r} have shape {tuple(split.inputs.shape)}; give examples "
            "x features or examples x channels x height x width"
        )
    for what, values in (("inputs", split.inputs), ("targets", split.targets)):
        if values.layout != torch.strided or values.is_complex():
            raise DataError(
                f"the {part} {what} of {name!r} are {values.layout}, {values.dtype}; give dense "
                "tensors of real numbers"
            )
        if not values.is_floating_point() or bool(torch.isfinite(values.sum())):
            continue
        odd = ~torch.isfinite(values.reshape(len(values), -1)).all(1)
        if odd.any():
            raise DataError(
                f"the {part} {what} of {name!r} hold what is no finite number, first in example "
                f"{int(odd.nonzero()[0])} ({int(odd.sum())} examples in all); repair them or leave "
                "them out"
            )


def check_classes(split: Split, part: str, name: str) -> None:
    """Refuse targets that are no classes, which are counted from 0, one for each example."""
    targets = split.targets
    if targets.is_floating_point() or targets.ndim != 1:
        raise DataError(
            f"the {part} targets of {name!r} are {targets.dtype} of shape {tuple(targets.shape)}; "
            'give one whole number for each example, its class, or set task = "regression"'
        )
    lowest, highest = int(targets.min()), int(targets.max())
    if lowest < 0 or highest >= MOST_CLASSES:
        raise DataError(
            f"the {part} targets of {name!r} go from {lowest} to {highest}; classes are counted "
            f"from 0 without gaps, and there may be {MOST_CLASSES:,} of them"
        )


def check_tokens(split: Split, part: str, name: str) -> None:
    """Refuse a text that is no rows of tokens, counted from 0, with one target for each."""
    inputs, targets = split.inputs, split.targets
    if inputs.dtype != torch.long or targets.dtype != torch.long or inputs.shape != targets.shape:
        raise DataError(
            f"the {part} part of {name!r} has inputs of {inputs.dtype} and shape "
            f"{tuple(inputs.shape)} and targets of {targets.dtype} and shape "
            f"{tuple(targets.shape)}; to predict the next token give both as torch.int64, "
            "examples x tokens"
        )
    if min(int(inputs.min()), int(targets.min())) < 0:
        raise DataError(f"the {part} part of {name!r} has tokens below 0; they are counted from 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Examples:
    """What a source gives: examples to learn from and examples to test on.

    Attributes:
        validation: Given by sources that come with one; else a part of `train` is taken.
    """

    name: str
    source: str
    train: Split
    test: Split
    task: Task = "classification"
    validation: Split | None = None

    def change_parts(self, change: Callable[[Split], Split]) -> "Examples":
        """Return the same with each part changed in one way."""
        validation = None if self.validation is None else change(self.validation)
        return replace(
            self, train=change(self.train), test=change(self.test), validation=validation
        )


def build_dataset(
    examples: Examples,
    *,
    validation_share: float,
    limit: int | None = None,
    classes: int | None = None,
    framing: ImageTransform | None = None,
) -> Dataset:
    """Return a data set whose mean and deviation are those of its train part.

    Args:
        examples: What a source gave.
        validation_share: Part of the train examples that is set apart to validate on.
        limit: Keep only so many train examples, drawn always alike.
        classes: Keep only the examples of the first so many classes.
        framing: How images are scaled and varied on their way to the network.
    """
    _check(examples)
    framing, shape = framing or ImageTransform(), tuple(examples.train.inputs.shape[1:])
    asked = framing.side is not None or framing.augment != "no"
    if asked and (len(shape) != 3 or (framing.side is not None and framing.side < 1)):
        raise SettingsError(
            f"resize {framing.side} and augment {framing.augment!r} were asked for, but an "
            f"example of {examples.name!r} has shape {shape}; both are for images, channels x "
            "height x width, and a side of at least 1"
        )
    if classes is not None:
        examples = _keep_classes(examples, classes)
    if examples.task == "classification":
        examples = examples.change_parts(_number_classes)
    train, validation = examples.train, examples.validation
    if validation is None:
        train, validation = carve_validation(train, validation_share)
    if limit is not None and limit < len(train):
        drawn = torch.randperm(len(train), generator=torch.Generator().manual_seed(limit))
        few = drawn[:limit].sort().values
        train = train[:limit] if train.mixed else train[few]
    if len(train) == 0:
        raise DataError(
            f"{examples.name!r} has {len(examples.train)} train examples, and none is left when "
            f"{len(validation)} of them are set apart to validate on; give more examples, "
            "or a smaller --validation"
        )
    mean, std, target_mean, target_std = *_NOTHING, *_NOTHING
    if examples.task != "next_token":  # those of tokens would mean nothing
        mean, std = measure_channels(train.inputs)
    if examples.task == "regression":
        values = train.targets.double()
        target_mean, target_std = values.mean(0).float(), values.std(0).clamp_min(1e-12).float()
    return Dataset(
        name=examples.name,
        source=examples.source,
        task=examples.task,
        train=train,
        validation=validation,
        test=examples.test,
        mean=mean,
        std=std,
        n_outputs=_count_outputs(examples),
        target_mean=target_mean,
        target_std=target_std,
        framing=framing,
    )


def _number_classes(part: Split) -> Split:
    """Return examples whose classes are of a type that torch takes for a target."""
    fits = part.targets.dtype in (torch.uint8, torch.int64)
    return part if fits else replace(part, targets=part.targets.long())


def _keep_classes(examples: Examples, classes: int) -> Examples:
    """Return the examples of the first classes alone."""
    if examples.task != "classification":
        kind = "is a regression" if examples.task == "regression" else "predicts the next token"
        raise SettingsError(
            f"the first {classes} classes of {examples.name!r} were asked for, but it {kind} and "
            "has none; leave --classes out"
        )
    n_classes = _count_outputs(examples)
    if not 2 <= classes <= n_classes:
        raise SettingsError(
            f"the first {classes} classes of {examples.name!r} were asked for, but it has "
            f"{n_classes}; choose 2 to {n_classes} classes"
        )
    return examples.change_parts(lambda part: part[part.targets < classes])


def _check(examples: Examples) -> None:
    """Refuse data that would fail later with a less helpful message."""
    parts = {"train": examples.train, "test": examples.test, "validation": examples.validation}
    for part, split in parts.items():
        if split is not None:
            check_split(split, part, examples.name)
            if examples.task == "classification":
                check_classes(split, part, examples.name)
            elif examples.task == "next_token":
                check_tokens(split, part, examples.name)
    if examples.train.inputs.shape[1:] != examples.test.inputs.shape[1:]:
        raise DataError(
            f"train examples of {examples.name!r} have shape "
            f"{tuple(examples.train.inputs.shape[1:])} but test examples "
            f"{tuple(examples.test.inputs.shape[1:])}; make them the same"
        )
    if examples.task == "classification" and _count_outputs(examples) < 2:
        raise DataError(
            f"all targets of {examples.name!r} are 0: one class, and nothing to tell apart; give "
            "two at least"
        )


def _count_outputs(examples: Examples) -> int:
    if examples.task == "regression":
        return examples.train.targets[0].numel()
    tensors = [examples.train.targets, examples.test.targets]
    if examples.task == "next_token":
        tensors += [examples.train.inputs, examples.test.inputs]
    return max(int(values.max()) for values in tensors) + 1
