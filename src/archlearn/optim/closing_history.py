"""How long gates have been closed: after so many decisions in a row it is for good.

The count is `closed` in the `state` of the gate's optimiser. What is closed for good is cut out by
`shrink_`, or could have been: so it never opens again, whether it was or not.
"""

import torch
from torch import Tensor

from archlearn.optim.gate_importance import State
from archlearn.optim.gate_ranking import Holds

_FOR_GOOD = 2**24
"""Stands for the number of decisions since a gate closed when it never opens again."""
_RESERVE = 4
"""At least so many channels of each group, the last that closed, are never closed for good."""


def find_closed_for_good(gates: list[Tensor], state: State, device: torch.device) -> Tensor:
    """Return which gates have been closed too long to open again."""
    return _times_closed(gates, state, device) == _FOR_GOOD


def count_closed_(
    gates: list[Tensor], state: State, is_open: Tensor, holds: Holds, patience: int
) -> None:
    """Count at how many decisions in a row gates have been closed, until it is for good.

    The last few of each group that closed may always come back: what fits of the budget in the
    end is filled up with them.

    Args:
        gates: Those of widths, then those of branches.
        state: What is known of them.
        is_open: 1 for those that are open now, in the same order.
        holds: The group of each width gate, and by how many gates a group may widen.
        patience: After how many decisions it is for good.
    """
    group = holds.group
    times, n_width = _times_closed(gates, state, group.device), len(group)
    counts = torch.where(is_open > 0, 0, (times + 1).clamp(max=_FOR_GOOD - 1))
    recent = torch.where(counts > 0, counts, _FOR_GOOD)[:n_width]
    order = torch.argsort(group * (_FOR_GOOD + 1) + recent, stable=True)
    first = torch.searchsorted(group[order], group[order])
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device) - first
    may_return = torch.zeros_like(counts, dtype=torch.bool)
    may_return[:n_width] = place < holds.step[group].clamp(min=_RESERVE)
    is_long = (counts >= patience) & ~may_return
    counts = torch.where(is_long | (times == _FOR_GOOD), _FOR_GOOD, counts)
    for gate, count in zip(gates, counts.split([g.numel() for g in gates]), strict=True):
        state[gate]["closed"] = count.view(gate.shape).clone()


def _times_closed(gates: list[Tensor], state: State, device: torch.device) -> Tensor:
    found = [torch.zeros(0, dtype=torch.int32, device=device)]
    for gate in gates:
        count = state[gate].get("closed")
        found.append(torch.zeros_like(gate, dtype=torch.int32) if count is None else count)
    return torch.cat([count.reshape(-1) for count in found])
