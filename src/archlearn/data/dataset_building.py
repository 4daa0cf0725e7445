"""Two piles of examples become a data set: a validation part and normalising numbers."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from archlearn.data.dataset import Dataset, Split, Task, carve_validation, measure_channels
from archlearn.data.transforms import Framing
from archlearn.data.validation import check_classes, check_split, check_tokens
from archlearn.errors import DataError, SettingsError


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


def build_dataset(
    examples: Examples,
    *,
    validation_share: float,
    limit: int | None = None,
    classes: int | None = None,
    framing: Framing | None = None,
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
    framing = framing or Framing()
    _check_framing(examples, framing)
    if classes is not None:
        examples = _keep_classes(examples, classes)
    examples = _number_classes(examples)
    train, validation = _choose_parts(examples, validation_share, limit)
    if len(train) == 0:
        raise DataError(
            f"{examples.name!r} has {len(examples.train)} train examples, and none is left when "
            f"{len(validation)} of them are set apart to validate on; give more"
        )
    mean, std = _measure_inputs(train.inputs, examples.task)
    target_mean, target_std = _measure_targets(train.targets, examples.task)
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


def _number_classes(examples: Examples) -> Examples:
    """Return examples whose classes are of a type that torch takes for a target."""
    if examples.task != "classification":
        return examples
    parts = (examples.train, examples.test, examples.validation)
    train, test, validation = (
        part
        if part is None or part.targets.dtype in (torch.uint8, torch.int64)
        else replace(part, targets=part.targets.long())
        for part in parts
    )
    assert train is not None
    assert test is not None
    return replace(examples, train=train, test=test, validation=validation)


def _choose_parts(examples: Examples, share: float, limit: int | None) -> tuple[Split, Split]:
    """Return what is learnt from and what is validated on."""
    train, validation = examples.train, examples.validation
    if validation is None:
        train, validation = carve_validation(train, share)
    if limit is not None and limit < len(train):
        train = train.cut(limit)[0] if train.mixed else train.take(_draw(len(train), limit))
    return train, validation


def _check_framing(examples: Examples, framing: Framing) -> None:
    shape = tuple(examples.train.inputs.shape[1:])
    asked = framing.side is not None or framing.augment != "no"
    if asked and (len(shape) != 3 or (framing.side is not None and framing.side < 1)):
        raise SettingsError(
            f"resize {framing.side} and augment {framing.augment!r} were asked for, but an "
            f"example of {examples.name!r} has shape {shape}; both are for images, channels x "
            "height x width, and a side of at least 1"
        )


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
    parts = [examples.train, examples.test, examples.validation]
    train, test, validation = (part and part.take(part.targets < classes) for part in parts)
    assert train is not None
    assert test is not None
    return replace(examples, train=train, test=test, validation=validation)


def _draw(n: int, limit: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(limit))[:limit].sort().values


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


def _measure_inputs(inputs: Tensor, task: Task) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of the inputs; those of tokens would mean nothing."""
    if task == "next_token":
        return torch.zeros(()), torch.ones(())
    return measure_channels(inputs)


def _measure_targets(targets: Tensor, task: Task) -> tuple[Tensor, Tensor]:
    if task != "regression":
        return torch.zeros(()), torch.ones(())
    values = targets.double()
    return values.mean(0).float(), values.std(0).clamp_min(1e-12).float()


def _count_outputs(examples: Examples) -> int:
    if examples.task == "regression":
        return examples.train.targets[0].numel()
    known = [examples.train.targets, examples.test.targets]
    if examples.task == "next_token":
        known += [examples.train.inputs, examples.test.inputs]
    return max(int(values.max()) for values in known) + 1
