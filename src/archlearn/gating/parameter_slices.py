"""Slices of parameters that gates act on, with what lies aside of those that are closed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from archlearn.gating.channel_slices import Slices

FIRST_MOMENTS = frozenset({"exp_avg", "momentum_buffer", "grad_avg", "prev"})
"""States of optimisers that are forgotten when a slice closes: they would go on moving it."""
VALUES = "values"
_FLAT = -1


@dataclass(slots=True, eq=False)
class Line:
    """All slices of one parameter along one dimension that gates act on in the same way.

    Attributes:
        dim: The dimension, or `_FLAT` for the parameter's elements one by one.
        gates: The gates of each slice, `(rows, size)`, or -1.
        reads: Whether they are zero while closed; slices that write a channel are kept as they
            were, for without a gradient weight decay would shrink them.
        is_closed: Whether each slice is closed now.
        index: Which slices these are, where the parameter is; None for none.
        aside: Their values, and those of element-wise states of the optimiser.
        start: Where the sum over the first slice is held.
    """

    parameter: str
    dim: int
    gates: Tensor
    reads: bool
    is_closed: Tensor
    index: Tensor | None = None
    aside: dict[str, Tensor] = field(default_factory=dict)
    start: int = 0

    def of(self, tensor: Tensor) -> tuple[Tensor, int]:
        """Return a tensor like the parameter as the slices lie in it, and their dimension."""
        return (tensor.view(-1), 0) if self.dim == _FLAT else (tensor, self.dim)

    def select(self, tensor: Tensor) -> Tensor:
        """Return a copy of the closed slices."""
        assert self.index is not None
        slices, dim = self.of(tensor)
        return slices.index_select(dim, self.index)

    def fill_(self, tensor: Tensor) -> None:
        """Set the closed slices to zero."""
        if self.index is not None:
            slices, dim = self.of(tensor)
            slices.index_fill_(dim, self.index, 0.0)

    def sum(self, product: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the sum over each slice."""
        slices, dim = self.of(product)
        others = [d for d in range(slices.dim()) if d != dim]
        return slices.sum(others, dtype=dtype) if others else slices.to(dtype)


@dataclass(slots=True, eq=False)
class Held:
    """A parameter that gates act on, with the optimiser that steps it."""

    parameter: nn.Parameter
    optimizer: torch.optim.Optimizer
    readers: list[Line]
    writers: list[Line]

    def states(self) -> dict[str, Tensor]:
        """Return the optimiser's states that have a number for each of the parameter's."""
        state: Mapping[str, Any] = self.optimizer.state.get(self.parameter, {})
        shape = self.parameter.shape
        return {
            key: value
            for key, value in state.items()
            if isinstance(value, Tensor) and value.shape == shape and key != "step"
        }


def join_slices(
    parameters: Mapping[str, nn.Parameter], slices: Iterable[Slices], *, reads: bool
) -> list[Line]:
    """Return all slices of the same parameter and dimension as one table of gates."""
    rows: dict[tuple[str, int], list[Tensor]] = {}
    for s in slices:
        if s.parameter not in parameters:
            continue
        dim, gates = _find_dimension(s, parameters[s.parameter])
        table = rows.setdefault((s.parameter, dim), [])
        for row in gates:
            if bool((row >= 0).any()):
                _add_row(table, row)
    return [
        Line(
            name,
            dim,
            torch.stack(gates_of_line),
            reads,
            torch.zeros(len(gates_of_line[0]), dtype=torch.bool, device="cpu"),
        )
        for (name, dim), gates_of_line in rows.items()
        if gates_of_line
    ]


def _add_row(rows: list[Tensor], row: Tensor) -> None:
    """Put a row of gates into the first that has none where this has some."""
    for index, other in enumerate(rows):
        both = (other >= 0) & (row >= 0)
        if bool((other[both] == row[both]).all()):
            rows[index] = torch.where(row >= 0, row, other)
            return
    rows.append(row.clone())


def _find_dimension(slices: Slices, parameter: nn.Parameter) -> tuple[int, Tensor]:
    """Return along which dimension gates differ, where they were given for each element."""
    if slices.dim is not None:
        return slices.dim, slices.gates
    shape = parameter.shape or torch.Size([1])
    gates = slices.gates.view(-1, *shape)
    for dim in range(len(shape)):
        line = gates.movedim(dim + 1, 1).flatten(2)
        if bool((line == line[:, :, :1]).all()):
            return dim, line[:, :, 0]
    return _FLAT, slices.gates
