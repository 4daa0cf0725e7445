"""Random inputs like the example, for certificates.

They go into one batch with the example, where they can.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from archlearn.tracing.symbolic_trace import ExampleInputs

N_RANDOM = 3
# Three random inputs of so many numbers cost next to nothing; larger ones are weighed.
_FEW = 2**14


@dataclass(frozen=True, slots=True)
class SampleInput:
    """Arguments for one call of both models.

    Attributes:
        n_inputs: How many inputs it stands for; the examples count as one.
        n_rows: How many rows it has, if rows of the example were left out.
    """

    inputs: ExampleInputs
    n_inputs: int
    n_rows: int | None = None


def plain_samples(inputs: ExampleInputs) -> list[SampleInput]:
    """Return the example inputs, and random ones of the same shapes."""
    n = N_RANDOM if N_RANDOM * _size(inputs) <= _FEW else 1
    drawn = [draw_like(inputs, seed) for seed in range(n)]
    return [SampleInput(trial, 1) for trial in (inputs, *drawn)]


def joined_sample(inputs: ExampleInputs, most_rows: int | None = None) -> SampleInput | None:
    """Return the example and random rows in one batch, or None if it does not look like one.

    Args:
        inputs: The example inputs.
        most_rows: Of a larger batch the first so many rows are enough.
    """
    n_rows = _count_rows(inputs)
    if not n_rows:
        return None
    n = N_RANDOM if N_RANDOM * (_size(inputs) // n_rows) <= _FEW else 1
    inputs = _first_rows(inputs, most_rows)
    n_left = _count_rows(inputs)
    drawn = draw_like(inputs, 0, lambda shape: (n, *shape[1:]))
    return SampleInput(_join(inputs, drawn), 1 + n, n_left + n if n_left < n_rows else None)


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
