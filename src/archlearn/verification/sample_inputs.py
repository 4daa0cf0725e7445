"""Random inputs like the example, for certificates.

Random inputs are small images where the model takes them and each weight still has a part in
the result, and they go into one batch with each other, or with the example, where they can.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from archlearn.tracing.traces import ExampleInputs

N_RANDOM = 3
# Three random inputs of so many numbers cost next to nothing; larger ones are weighed.
_FEW = 2**14


@dataclass(frozen=True, slots=True)
class SampleInput:
    """Arguments for one call of both models.

    Attributes:
        n_inputs: How many inputs it stands for; the examples count as one.
        is_small: Whether its images are smaller than the example.
        n_rows: How many rows it has, if rows of the example were left out.
    """

    inputs: ExampleInputs
    n_inputs: int
    is_small: bool = False
    n_rows: int | None = None


def plain_samples(inputs: ExampleInputs) -> list[SampleInput]:
    """Return the example inputs, and random ones of the same shapes."""
    n = N_RANDOM if N_RANDOM * _size(inputs) <= _FEW else 1
    drawn = [draw_like(inputs, seed) for seed in range(n)]
    return [SampleInput(trial, 1) for trial in (inputs, *drawn)]


def quick_samples(
    inputs: ExampleInputs, shrink: float, most_rows: int | None = None
) -> list[SampleInput]:
    """Return fewer calls that compare more; none if the inputs do not look like batches.

    Args:
        inputs: The example inputs.
        shrink: By how much images may be smaller and still meet every weight.
        most_rows: Of a larger batch the first so many rows are enough.
    """
    n_rows = _count_rows(inputs)
    if not n_rows:
        return []
    row = _size(inputs) // n_rows
    inputs = _first_rows(inputs, most_rows)
    n_left = _count_rows(inputs)
    n_cut = n_left if n_left < n_rows else None
    small = _shrunk_sizes(inputs, shrink)
    if small is None:
        n = N_RANDOM if N_RANDOM * row <= _FEW else 1
        drawn = draw_like(inputs, 0, lambda shape: (n, *shape[1:]))
        return [SampleInput(_join(inputs, drawn), 1 + n, n_rows=n_cut and n_cut + n)]
    drawn = draw_like(inputs, 0, lambda shape: (N_RANDOM, shape[1], *small))
    return [SampleInput(inputs, 1, n_rows=n_cut), SampleInput(drawn, N_RANDOM, is_small=True)]


def draw_like(
    inputs: ExampleInputs,
    seed: int,
    reshape: Callable[[tuple[int, ...]], tuple[int, ...]] = lambda shape: shape,
) -> ExampleInputs:
    """Return random inputs of the same kind; booleans and complex numbers stay as they are."""
    generator = torch.Generator().manual_seed(seed)

    def draw(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.numel() == 0:
            return value
        shape = reshape(tuple(value.shape))
        if value.is_floating_point():
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(value)
        if value.dtype is torch.bool or value.is_complex():
            return value if shape == value.shape else _repeat_rows(value, shape[0])
        low, high = int(value.min()), int(value.max())
        return torch.randint(low, high + 1, shape, generator=generator).to(value)

    return ExampleInputs(*tree_map(draw, (inputs.args, inputs.kwargs)))


def _tensors(inputs: ExampleInputs) -> list[Tensor]:
    return [leaf for leaf in tree_leaves((inputs.args, inputs.kwargs)) if isinstance(leaf, Tensor)]


def _size(inputs: ExampleInputs) -> int:
    return sum(tensor.numel() for tensor in _tensors(inputs))


def _count_rows(inputs: ExampleInputs) -> int:
    """Return the size of the first dimension, if all tensors have one and the same."""
    counts = {tensor.shape[0] if tensor.dim() > 1 else 0 for tensor in _tensors(inputs)}
    return counts.pop() if len(counts) == 1 else 0


def _shrunk_sizes(inputs: ExampleInputs, shrink: float) -> list[int] | None:
    """Return smaller sizes of the only image, halved as often as before, if that is worth it."""
    tensors = _tensors(inputs)
    if len(tensors) != 1 or not tensors[0].is_floating_point() or not math.isfinite(shrink):
        return None
    image = tensors[0]
    sizes = [_shrunk(size, shrink) for size in image.shape[2:]]
    is_worth = N_RANDOM * math.prod(sizes) * 4 <= math.prod(image.shape[2:])
    return sizes if sizes and is_worth else None


def _shrunk(size: int, shrink: float) -> int:
    step = math.gcd(size, 32)
    return min(size, math.ceil(size / shrink / step) * step)


def _join(first: ExampleInputs, second: ExampleInputs) -> ExampleInputs:
    def join(one: Any, two: Any) -> Any:
        return torch.cat([one, two]) if isinstance(one, Tensor) else one

    return ExampleInputs(*tree_map(join, (first.args, first.kwargs), (second.args, second.kwargs)))


def _first_rows(inputs: ExampleInputs, n: int | None) -> ExampleInputs:
    def cut(value: Any) -> Any:
        return value[:n] if isinstance(value, Tensor) else value

    return ExampleInputs(*tree_map(cut, (inputs.args, inputs.kwargs)))


def _repeat_rows(value: Tensor, n: int) -> Tensor:
    return value[torch.arange(n, device=value.device) % len(value)]
